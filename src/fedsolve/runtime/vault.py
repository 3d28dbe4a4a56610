"""What a site keeps of secure sums from one run to the next: one file, for its owner alone.

Digests of the sessions it has opened and rosters of the sums it has unmasked stay for good: who restores an old state
opens old sums again. The secrets of the session under way are there until it is unmasked, or another run begins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedsolve import codec, disk
from fedsolve.arrays import Arrays
from fedsolve.runtime.masking import STAYS

FILE = "secure.safetensors"
T = TypeVar("T")


def using(state: Path, act: Callable[[Arrays], tuple[Arrays, T]]) -> T:
    """Do something with what is kept, and keep what comes of it before anybody hears of it; one process at a time."""
    path = disk.private_folder(state) / FILE
    with disk.alone(path):
        kept = codec.read_file(path)[0] if path.exists() else {}
        after, found = act(kept)
        if after is not kept:
            codec.write_file(path, after)
        return found


def forget(state: Path) -> None:
    """Remove the secrets of a session that was never unmasked."""

    def without(kept: Arrays) -> tuple[Arrays, None]:
        rest = {name: array for name, array in kept.items() if name in STAYS}
        return (kept if rest.keys() == kept.keys() else rest), None

    if (state / FILE).exists():
        using(state, without)
