"""What a client remembers, on its way to the process that works for it and back."""

from __future__ import annotations

import json

from fedsolve.arrays import Array, Arrays, under
from fedsolve.codec import Bytes, encode, read
from fedsolve.runtime.client import Memory


def in_common(message: Arrays, before: Memory | None) -> dict[str, Array]:
    """The arrays that both sides have: the message, and what the client remembered."""
    return under("message", message) | under("before", before.arrays(with_model=False) if before else {})


def pack(memory: Arrays, common: Arrays) -> Bytes:
    """A client's memory; arrays that the other side has, or that are in it twice, are mentioned by name only."""
    places = {id(array): name for name, array in common.items()}
    distinct: dict[str, Array] = {}
    same: dict[str, str] = {}
    for name, array in memory.items():
        if id(array) in places:
            same[name] = places[id(array)]
        else:
            places[id(array)], distinct[name] = f"memory/{name}", array
    return encode(distinct, {"same": json.dumps(same)})


def unpack(data: Bytes, common: Arrays) -> Arrays:
    """The inverse of `pack`: one array for all names that it has."""
    memory, head = read(data, "what a client remembers")
    arrays = {**common, **under("memory", memory)}
    return memory | {name: arrays[place] for name, place in json.loads(head["same"]).items()}
