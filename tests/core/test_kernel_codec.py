"""Laws of the bytes: alignment, exact lengths, order, limits, and the rights of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsolve import arrays, codec
from fedsolve.errors import DataError
from tests.core.test_codec import library


@pytest.mark.parametrize("length", range(1, 20))
def test_arrays_are_aligned_whatever_the_length_of_the_header(length: int) -> None:
    """Eight bytes of length, a header padded to a multiple of eight, then wide types first."""
    named: dict[str, Any] = {
        "x" * length: np.ones(3),
        "a": np.ones(3, np.uint8),
        "b": np.ones(2, np.float32),
        "c": np.ones(1, np.int16),
    }
    data = codec.encode(named)
    assert int.from_bytes(data[:8], "little") % 8 == 0
    found = codec.decode(data)
    assert arrays.same(found, named)
    start = np.frombuffer(data, np.uint8).ctypes.data
    for array in found.values():
        assert (array.ctypes.data - start) % array.itemsize == 0


def test_a_message_is_no_longer_than_it_must_be_and_depends_on_names_not_on_their_order() -> None:
    named = {"b": np.ones(2), "a": np.ones((2, 3)), "c": np.ones(4)}
    data = codec.encode(named, {"k": "v"})
    assert bytes(data) == bytes(codec.encode(dict(reversed(named.items())), {"k": "v"}))
    length = int.from_bytes(data[:8], "little")
    assert len(data) == 8 + length + 8 * 12
    header = json.loads(bytes(data[8 : 8 + length]))
    assert length - len(json.dumps(header, separators=(",", ":"))) < 8
    assert [header[name]["data_offsets"] for name in "abc"] == [[0, 48], [48, 64], [64, 96]]
    assert header["__metadata__"] == {"k": "v"}
    mixed = codec.decode(codec.encode({"b": np.ones(1), "a": np.ones(1, np.int64), "c": np.ones(1, np.uint64)}))
    assert list(mixed) == ["a", "b", "c"]  # as wide as each other: by name
    assert "__metadata__" not in json.loads(bytes(codec.encode(named))[8:].split(b"}}")[0] + b"}}")


@pytest.mark.parametrize("extra", [1, 8, 1000])
def test_bytes_behind_the_last_array_are_refused_like_missing_ones(extra: int) -> None:
    whole = bytes(codec.encode({"w": np.ones(3)}))
    with pytest.raises(DataError, match=rf"{24 + extra} bytes of data where 24 were announced"):
        codec.decode(whole + bytes(extra))
    with pytest.raises(DataError, match="message is damaged"):
        codec.decode(whole[:-1])
    with pytest.raises(DataError, match="message is damaged"):
        codec.read(whole[:-1])


@pytest.mark.parametrize("length", range(9))
def test_fewer_than_eight_bytes_are_no_message_and_neither_is_an_empty_header(length: int) -> None:
    with pytest.raises(DataError, match="cut off" if length < 8 else "damaged"):
        codec.decode(bytes(length))


def test_a_message_of_nothing_is_read() -> None:
    assert codec.read(codec.encode({})) == ({}, {})
    smallest = (2).to_bytes(8, "little") + b"{}"
    assert codec.read(smallest) == ({}, {})


@pytest.mark.parametrize("more", [1, 2**20, 2**56, 2**63])
def test_a_header_longer_than_the_message_is_cut_off(more: int) -> None:
    with pytest.raises(DataError, match="the header is cut off"):
        codec.decode((2 + more).to_bytes(8, "little") + b"{}")


def test_a_header_beyond_the_formats_limit_is_refused_though_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codec._LARGEST_HEADER == 100_000_000  # what the safetensors library refuses beyond
    monkeypatch.setattr(codec, "_LARGEST_HEADER", 100)
    short, long = (codec.encode({"a" * length: np.ones(1)}) for length in (10, 200))
    assert set(codec.decode(short)) == {"a" * 10}
    with pytest.raises(DataError, match="the header is cut off"):
        codec.decode(long)


def test_large_headers_are_read_but_not_kept() -> None:
    many = codec.encode({f"array-{number:05d}": np.array(number) for number in range(2000)})
    few = codec.encode({"array": np.array(1)})
    codec._parse.cache_clear()
    for _ in range(2):
        codec.decode(many)
    assert codec._parse.cache_info().currsize == 0
    for _ in range(2):
        codec.decode(few)
    assert codec._parse.cache_info()[:1] == (1,)


@pytest.mark.parametrize("shape", [[-1], [-2, -4], [2, -4, -1], [-1, 8, -1]])
def test_negative_sides_are_refused_though_their_product_fits(shape: list[int]) -> None:
    header = json.dumps({"w": {"dtype": "F64", "shape": shape, "data_offsets": [0, 64]}}).encode()
    with pytest.raises(DataError, match="the shape of 'w' must be at most 64 whole numbers from 0 on"):
        codec.decode(len(header).to_bytes(8, "little") + header + bytes(64))


@pytest.mark.parametrize("room", range(-12, 13))
def test_allotted_arrays_go_out_without_a_copy_just_while_the_header_has_room(room: int) -> None:
    """The header and its length take 1024 bytes at most; metadata of every size around that are read back."""
    layout = (("a", "<f8", (3,)), ("b", "<f8", (2,)))
    parts = codec.allot(layout)
    for array in parts.values():
        array[...] = 1.5
    kept = {name: array.copy() for name, array in parts.items()}
    bare = len(codec._header(layout, (("k", ""),)))
    texts = {"k": "v" * (1024 - 8 - bare + room)}
    data = codec.encode(parts, texts)
    assert np.shares_memory(np.frombuffer(data, np.uint8), parts["a"]) == (room <= 0)
    found, metadata = codec.read(data)
    assert arrays.same(found, kept)
    assert metadata == texts
    assert arrays.same(library().load(bytes(data)), kept)
    assert all(array.flags.aligned for array in (*parts.values(), *found.values()))


def test_arrays_of_which_only_the_first_lies_in_a_message_are_copied() -> None:
    parts = codec.allot((("a", "<f8", (2,)), ("b", "<f8", (2,))))
    parts["a"][...], parts["b"][...] = 1.0, 2.0
    for mixed in (
        {"a": parts["a"], "b": np.full(2, 3.0)},
        {"a": np.full(2, 3.0), "b": parts["b"]},
        {"a": parts["b"], "b": parts["a"]},
        {"a": parts["a"][::-1], "b": parts["b"]},
    ):
        wanted = {name: array.copy() for name, array in mixed.items()}
        assert arrays.same(codec.decode(codec.encode(mixed)), wanted)
    assert parts["a"].flags.writeable  # nobody sent it as it is


# --- files


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"a\.safetensors is damaged"):
        codec.read_file(path)
