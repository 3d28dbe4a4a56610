"""Headers of safetensors messages that a stranger wrote: refused in a sentence, at once, without memory."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsolve import codec
from fedsolve.errors import DataError

MEGABYTE = 2**20
ENTRY = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}


def message(header: object, data: bytes = bytes(16)) -> bytes:
    """A message with this header, as JSON unless it is bytes already."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def frugal(read: Callable[[], object]) -> Exception | None:
    """What reading raises; at once, and with little memory."""
    error: Exception | None = None
    tracemalloc.start()
    started = time.perf_counter()
    try:
        read()
    except DataError as fault:
        error = fault
    seconds, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1
    assert peak < 64 * MEGABYTE
    return error


def test_what_an_honest_sender_wrote_is_still_read() -> None:
    arrays, metadata = codec.read(message({"__metadata__": {"a": "b"}, "w": ENTRY}))
    assert arrays["w"].shape == (2,)
    assert metadata == {"a": "b"}


SHAPES: list[Any] = [
    ["a", 3_000_000_000],
    ["ab", 16],
    [3_000_000_000, "a"],
    [True, 2],
    [2.0],
    ["2"],
    [None, 2],
    [[2], 1],
    [-1, -2],
    [0, 2**62],
    [0, 2**40, 2**40],
    [2**64],
    [10**290] * 60,
    [1] * 65,
    [2**62] * 64,
    {"2": 2},
    "2",
    2,
    None,
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sides_are_whole_numbers_before_anything_is_multiplied(shape: Any) -> None:
    """A text times a number is a long text: 83 bytes asked version 0.1.0 for 24 GB."""
    error = frugal(lambda: codec.read(message({"w": {**ENTRY, "shape": shape}}), "ward-a"))
    assert str(error).startswith("ward-a is damaged or not a safetensors file")


@pytest.mark.parametrize(
    "offsets", [[0, 16.0], [False, 16], ["0", "16"], [0], [0, 16, 16], [-16, 0], [0, 2**70], "ab", None, {}, [[], 16]]
)
def test_offsets_are_two_whole_numbers(offsets: Any) -> None:
    assert frugal(lambda: codec.read(message({"w": {**ENTRY, "data_offsets": offsets}}))) is not None


HEADERS: dict[str, Any] = {
    "a list": [],
    "a number": 1,
    "nothing": None,
    "no entry": {"w": None},
    "an entry of text": {"w": "F64"},
    "a part missing": {"w": {"dtype": "F64", "shape": [2]}},
    "a part too many": {"w": {**ENTRY, "strides": [8]}},
    "an unknown type": {"w": {**ENTRY, "dtype": "F128"}},
    "a type of lists": {"w": {**ENTRY, "dtype": ["F64"]}},
    "metadata of numbers": {"__metadata__": {"seconds": None}, "w": ENTRY},
    "metadata of lists": {"__metadata__": [["a", "b"]], "w": ENTRY},
    "metadata of objects": {"__metadata__": {"a": {"b": "c"}}, "w": ENTRY},
    "a name twice": b'{"w": %b, "w": %b}' % ((json.dumps(ENTRY).encode(),) * 2),
    "metadata twice": b'{"__metadata__": {"a": "b", "a": "c"}, "w": %b}' % json.dumps(ENTRY).encode(),
    "half a character": b'{"\\ud800": %b}' % json.dumps(ENTRY).encode(),
    "half a character beside": b'{"__metadata__": {"a": "\\udfff"}, "w": %b}' % json.dumps(ENTRY).encode(),
    "not a number": b'{"w": {"dtype": "F64", "shape": [NaN], "data_offsets": [0, 16]}}',
    "endless": b'{"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, Infinity]}}',
    "endless by its digits": b'{"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, 1e999]}}',
    "5000 digits": b'{"w": {"dtype": "F64", "shape": [%b], "data_offsets": [0, 16]}}' % (b"9" * 5000),
    "400 digits": b'{"w": {"dtype": "F64", "shape": [%b], "data_offsets": [0, 16]}}' % (b"9" * 400),
    "20,000 brackets": b"[" * 20_000,
    "20,000 objects": b'{"a":' * 20_000,
    "no text": b"\xff\xfe\x00" * 8,
    "UTF-16": '{"w": 1}'.encode("utf-16"),
    "empty": b"",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_of_another_form_is_damaged(header: Any) -> None:
    error = frugal(lambda: codec.read(message(header)))
    assert isinstance(error, DataError)
    assert len(str(error)) < 1000
    assert str(error).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([2**63, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["header", "metadata", "entry", "dtype", "shape", "data_offsets", "side", "offset"]))
def test_any_json_in_place_of_any_part_is_refused_or_read(value: Any, part: str) -> None:
    header: Any = {"__metadata__": {"a": "b"}, "w": dict(ENTRY)}
    if part == "header":
        header = value
    elif part == "metadata":
        header["__metadata__"] = value
    elif part == "entry":
        header["w"] = value
    elif part == "side":
        header["w"]["shape"] = [value]
    elif part == "offset":
        header["w"]["data_offsets"] = [0, value]
    else:
        header["w"][part] = value
    try:
        arrays, metadata = codec.read(message(header))
    except DataError as error:
        assert str(error).isprintable()
        return
    assert all(isinstance(array, np.ndarray) and array.nbytes <= 16 for array in arrays.values())
    assert all(isinstance(text, str) for text in metadata.values())


def test_the_headers_of_a_stranger_fill_no_memory() -> None:
    """Parsed headers are kept for the next message of the same layout; a thousand that never come again must go."""
    codec._parse.cache_clear()
    tracemalloc.start()
    for number in range(1000):
        empty = {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
        codec.read(message({f"{number}/{place}": empty for place in range(110)}, b""))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    codec._parse.cache_clear()
    assert kept < 32 * MEGABYTE
