from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsolve import arrays, codec
from fedsolve.errors import DataError

DTYPES = st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"])
ANY = hnp.arrays(DTYPES.map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))


@st.composite
def laid_out(draw: st.DrawFn) -> np.ndarray:
    """An array in C, Fortran or strided order."""
    array = draw(ANY)
    layout = draw(st.sampled_from(["C", "F", "transposed", "strided", "reversed"]))
    if layout == "F":
        return np.asfortranarray(array) if array.ndim else array
    if layout == "transposed":
        return array.T
    if layout == "strided" and array.ndim:
        return np.repeat(array, 2, axis=0)[::2]
    return array[::-1] if layout == "reversed" and array.ndim else array


NAMED = st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), laid_out(), max_size=4)
TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


def library() -> Any:
    """The other implementation of the format."""
    return pytest.importorskip("safetensors.numpy", reason="safetensors is not installed: pip install safetensors")


@given(NAMED, TEXTS)
def test_bytes_give_back_the_same_bits_whatever_the_layout(named: dict[str, np.ndarray], texts: dict[str, str]) -> None:
    data = codec.encode(named, texts)
    found, metadata = codec.read(data)
    assert arrays.same(found, named)
    assert metadata == texts


@given(NAMED)
def test_the_safetensors_library_reads_what_we_write(named: dict[str, np.ndarray]) -> None:
    assert arrays.same(library().load(bytes(codec.encode(named, {"a": "b"}))), named)


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), ANY, max_size=4))
def test_we_read_what_the_safetensors_library_writes(named: dict[str, np.ndarray]) -> None:
    assert arrays.same(codec.decode(library().save(named)), named)


def test_decoded_arrays_are_read_only_and_aligned() -> None:
    named: dict[str, np.ndarray] = {"a": np.ones(3, np.uint8), "b": np.ones(2), "c": np.ones(3, np.float32)}
    for array in codec.decode(codec.encode(named)).values():
        assert not array.flags.writeable
        assert array.flags.aligned


@given(st.data())
def test_damaged_bytes_are_refused_or_read_whole_but_never_crash(data: st.DataObject) -> None:
    whole = codec.encode({"w": np.arange(6.0).reshape(2, 3), "n": np.array(3)}, {"k": "v"})
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DataError, match=r"file\.bin is damaged"):
        codec.decode(whole[:cut], "file.bin")
    spoilt = bytearray(whole)
    spoilt[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DataError):
        codec.decode(bytes(spoilt), "file.bin")


@pytest.mark.parametrize(
    "header",
    [
        '{"w":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}}',  # shorter than its shape
        '{"w":{"dtype":"F64","shape":[1],"data_offsets":[8,16]}}',  # a gap
        '{"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"v":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}',
        '{"w":{"dtype":"F64","shape":[-1,-1],"data_offsets":[0,8]}}',
        '{"w":{"dtype":"X","shape":[1],"data_offsets":[0,8]}}',
        '{"w":5}',
        "[]",
        "no json",
    ],
)
def test_headers_that_lie_are_refused(header: str) -> None:
    with pytest.raises(DataError, match="message is damaged"):
        codec.decode(len(header).to_bytes(8, "little") + header.encode() + bytes(8))


def test_types_that_cannot_travel_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="'w' has type complex128"):
        codec.encode({"w": np.zeros(2, complex)})


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    codec.write_file(path, {"w": np.ones(2)})

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(DataError, match=r"cannot write to .*a\.safetensors: disk full"):
        codec.write_file(path, {"w": np.zeros(2)})
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    np.testing.assert_array_equal(codec.read_file(path)[0]["w"], [1, 1])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nothing\.safetensors"):
        codec.read_file(tmp_path / "nothing.safetensors")


def test_allotted_arrays_are_sent_without_a_copy_once_and_frozen() -> None:
    like = {"b": np.zeros((2, 3)), "a": np.zeros(5), "n": np.array(1), "f": np.zeros(3, np.float32)}
    parts = codec.allot(arrays.layout(like))
    for array in parts.values():
        array[...] = 7
    kept = {name: array.copy() for name, array in parts.items()}
    data = codec.encode(parts, {"k": "v"})
    assert np.shares_memory(np.frombuffer(data, np.uint8), parts["b"])
    assert arrays.same(codec.decode(data), kept)
    assert arrays.same(library().load(bytes(data)), kept)
    with pytest.raises(ValueError, match="read-only"):
        parts["b"][0, 0] = 1
    again = codec.encode(parts, {"k": "other"})  # must not write over the header of the first
    assert not np.shares_memory(np.frombuffer(again, np.uint8), parts["b"])
    assert codec.read(data)[1] == {"k": "v"}
    assert arrays.same(codec.decode(again), kept)


def test_allotted_arrays_in_other_company_are_copied() -> None:
    parts = codec.allot((("a", "<f8", (3,)), ("b", "<f8", (2,))))
    for array in parts.values():
        array[...] = 1
    for other in ({**parts, "c": np.zeros(1)}, {"a": parts["a"]}, {"x": parts["a"], "b": parts["a"][:2]}):
        data = codec.encode(other)
        assert not np.shares_memory(np.frombuffer(data, np.uint8), parts["a"])
        assert arrays.same(codec.decode(data), other)
    long = codec.encode(parts, {"k": "v" * 2000})  # no room for this header
    assert arrays.same(codec.decode(long), parts)


def test_a_transposed_view_of_an_allotted_square_is_copied() -> None:
    parts = codec.allot((("a", "<f8", (3, 3)),))
    parts["a"][...] = np.arange(9.0).reshape(3, 3)
    turned = {"a": parts["a"].T}
    assert arrays.same(codec.decode(codec.encode(turned)), turned)


def test_hostile_headers_end_in_a_sentence() -> None:
    deep = b"[" * 200_000
    for text in (deep, b'{"w":{"dtype":"F64","shape":[9000000000,9000000000],"data_offsets":[0,8]}}'):
        with pytest.raises(DataError, match="is damaged"):
            codec.decode(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(DataError, match="cut off"):
        codec.decode((10**12).to_bytes(8, "little") + bytes(20))
    with pytest.raises(DataError, match="format's own name"):
        codec.encode({"__metadata__": np.zeros(1)})


def test_headers_too_large_to_cache_are_read() -> None:
    many = {f"array-{number:05d}": np.array(number) for number in range(2000)}
    assert arrays.same(codec.decode(codec.encode(many)), many)
