"""CIFAR's archives for Python: what is in them is read, and nothing that they name is run."""

from __future__ import annotations

import io
import pickle
import re
import struct
import tarfile
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.data import archives
from fedsolve.data.pickled import read_pickle
from fedsolve.errors import DataError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(9, 32, 32, 3)).astype(np.uint8)
PIXELS = IMAGES.transpose(0, 3, 1, 2).reshape(9, -1)
LABELS = np.arange(9)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    return tmp_path


def batch(rows: slice, key: str = "labels") -> dict[bytes, Any]:
    names = [f"picture_{number}.png".encode() for number in LABELS[rows]]
    content = {b"batch_label": b"batch 1 of 5", b"data": PIXELS[rows], b"filenames": names}
    return content | {key.encode(): LABELS[rows].tolist(), b"coarse_labels": [1] * len(names)}


def old(content: dict[bytes, Any], protocol: int) -> bytes:
    """The same dictionary as Python 2 wrote it: texts and the content of arrays as plain strings."""
    binary = protocol > 0

    def text(value: bytes) -> bytes:
        if not binary:
            shown = "".join(chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in value)
            return b"S'" + shown.encode() + b"'\n"
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return (
            b"I%d\n" % value
            if not binary
            else b"K" + bytes([value])
            if value < 256
            else b"J" + struct.pack("<i", value)
        )

    def array(value: np.ndarray) -> bytes:
        kind = b"cnumpy\ndtype\n(" + text(b"u1") + number(0) + number(1) + b"tR"
        kind += b"(" + number(3) + text(b"|") + b"NNN" + b"I-1\nI-1\n" + number(0) + b"tb"
        head = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + text(b"b") + b"tR"
        shape = b"(" + b"".join(map(number, value.shape)) + b"t"
        return head + b"(" + number(1) + shape + kind + b"I00\n" + text(value.tobytes()) + b"tb"

    def any_of(value: Any) -> bytes:
        if isinstance(value, np.ndarray):
            return array(value)
        if isinstance(value, list):
            return b"(l" + b"".join(any_of(each) + b"a" for each in value)
        return text(value) if isinstance(value, bytes) else number(value)

    pairs = b"".join(text(key) + any_of(value) + b"s" for key, value in content.items())
    return (b"\x80\x02" if protocol == 2 else b"") + b"(d" + pairs + b"."


def pack(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def check(table: fs.Table) -> None:
    np.testing.assert_array_equal(table.inputs, IMAGES[:6])
    np.testing.assert_array_equal(table.labels, LABELS[:6])
    assert table.test is not None
    np.testing.assert_array_equal(table.test.inputs, IMAGES[6:])
    np.testing.assert_array_equal(table.test.labels, LABELS[6:])


WRITERS = [(old, 0), (old, 1), (old, 2), (pickle.dumps, 0), (pickle.dumps, 1), (pickle.dumps, 2)]


@pytest.mark.parametrize(("write", "protocol"), WRITERS)
def test_cifar10_is_read_by_name_and_by_path(home: Path, write: Any, protocol: int) -> None:
    batches = {"data_batch_1": slice(0, 4), "data_batch_2": slice(4, 6), "test_batch": slice(6, 9)}
    members = {name: write(batch(rows), protocol) for name, rows in batches.items()}
    path = pack(home / "cifar-10-python.tar.gz", members | {"batches.meta": b"not looked into", "readme.html": b""})
    check(fs.load("cifar10"))
    check(fs.load(str(path)))


@pytest.mark.parametrize(("write", "protocol"), WRITERS)
def test_cifar100_has_fine_labels(home: Path, write: Any, protocol: int) -> None:
    batches = {"train": slice(6), "test": slice(6, 9)}
    members = {name: write(batch(rows, "fine_labels"), protocol) for name, rows in batches.items()}
    pack(home / "cifar-100-python.tar.gz", members | {"meta": b"", "file.txt~": b""})
    check(fs.load("cifar100"))


def test_the_binary_archive_comes_first(home: Path) -> None:
    (home / "cifar-10-python.tar.gz").write_bytes(b"not looked into")
    records = np.column_stack([LABELS.astype(np.uint8), PIXELS])
    binary = {"data_batch_1.bin": records[:6].tobytes(), "test_batch.bin": records[6:].tobytes()}
    path = pack(home / archives.CIFAR_SETS["cifar10"], binary)
    check(fs.load("cifar10"))
    check(fs.load(str(path)))
    path.unlink()
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz is damaged or not an archive"):
        fs.load("cifar10")
    with pytest.raises(DataError, match="there is no file"):
        fs.load(str(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({b"labels": [0] * 5}, "one label for each of 6 images; got 5 labels"),
        ({b"labels": [0] * 5 + [10]}, "labels must be integers from 0 to 9; got 10"),
        ({b"labels": [0] * 5 + [None]}, "labels must be integers from 0 to 9; got None"),
        ({b"labels": [0] * 5 + [True]}, "labels must be integers from 0 to 9; got True"),
        ({b"labels": b"012345"}, "must hold a list 'labels'"),
        ({b"data": PIXELS[:6, 1:]}, "rows of 3072 bytes"),
        ({b"data": [1, 2]}, "must hold an array 'data'"),
        ({b"data": PIXELS[:6].astype(np.float32)}, "it must hold arrays of bytes"),
    ],
)
def test_what_does_not_fit_is_said(home: Path, change: dict[bytes, Any], words: str) -> None:
    whole = {
        "data_batch_1": pickle.dumps(batch(slice(6)) | change, 2),
        "test_batch": pickle.dumps(batch(slice(6, 9)), 2),
    }
    pack(home / "cifar-10-python.tar.gz", whole)
    with pytest.raises(DataError, match=f"data_batch_1.*{re.escape(words)}"):
        fs.load("cifar10")
    pack(home / "cifar-10-python.tar.gz", {"test_batch": whole["test_batch"]})
    with pytest.raises(DataError, match="no training or no test records; wanted the version for Python"):
        fs.load("cifar10")


class Bomb:
    """What runs where Python reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_nothing_is_run(home: Path, protocol: int) -> None:
    mark = home / "exploded"
    with pytest.raises(DataError, match=r"names 'pathlib\S* Path\S*', which is never run|names '.* (getattr|touch)'"):
        read_pickle(pickle.dumps({b"data": Bomb(mark)}, protocol), "a batch")
    for hostile in (
        f"cos\nsystem\n(S'touch {mark}'\ntR.",
        f"cposix\nsystem\n(S'touch {mark}'\ntR.",
        f"(S'touch {mark}'\nios\nsystem\n.",
        f'c__builtin__\neval\n(S\'open("{mark}", "w")\'\ntR.',
        "cnumpy\nload\n(S'x'\ntR.",
        "cnumpy.core.multiarray\nscalar\n(S'x'\ntR.",
        "c__builtin__\nbytes\n)R.",
    ):
        with pytest.raises(DataError, match="a batch is damaged or no pickle of CIFAR"):
            read_pickle(hostile.encode(), "a batch")
    assert not mark.exists()


ENCODE = b"c_codecs\nencode\nq\x01X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"q\x02X\x06\x00\x00\x00latin1q\x03"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"}",
        b"(" * 100_000,
        b"]" * 100_000 + b"a" * 99_999 + b".",
        b"(" * 50_000 + b"t" * 50_000 + b".",
        b"T\xff\xff\xff\x7fabc.",
        b"T\xff\xff\xff\xffabc.",
        b"X\xff\xff\xff\xffabc.",
        b"\x8a\xff\x01.",
        b"I" + b"9" * 100_000 + b"\n.",
        b"r\xff\xff\xff\xff.",
        b"h\x07.",
        b"S'open\n.",
        b"S'\\q'\n.",
        b"\x80\x04}.",
        b"}(K\x01u.",
        b"}]K\x01s.",
        b"}K\x01K\x02s.",
        b"a",
        b"K\x01K\x02a.",
        b"(K\x01a.",
        b"]K\x01R.",
        b"]K\x01b.",
        b"cnumpy\ndtype\n(S'O'\ntR.",
        b"cnumpy\ndtype\n(S'u1'\ntRK\x01b.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\ntR(K\x01(I99999999999\nK\x09tcnumpy\ndtype\n(S'u1'\ntRI00\nS'a'\ntb.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\ntR(K\x01(I-1\ntcnumpy\ndtype\n(S'u1'\ntRI00\nS'a'\ntb.",
        b"c_codecs\nencode\n(V\\u20ac\nS'x'\ntR.",
        b"]" + ENCODE + b"(" + b"h\x01h\x02h\x03\x86R" * 10_000 + b"e.",
        b"](" + b"]q\x01(" + b"h\x01" * 1000 + b"eq\x02(" + b"h\x02" * 1000 + b"ee.",
    ],
)  # fmt: skip
def test_hostile_bytes_are_refused_in_bounded_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="a batch is damaged or no pickle of CIFAR: ") as refusal:
            read_pickle(data, "a batch")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(refusal.value)) < 700
    assert peak < 200_000 + 200 * len(data)
    if len(data) > 10**6:
        assert peak < 10 * len(data)


def test_a_cut_or_spoilt_pickle_is_refused_or_read_but_never_crashes() -> None:
    small = {b"labels": [1, 300], b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"filenames": [b"a", b"b"]}
    for whole in (old(small, 0), old(small, 2), pickle.dumps(small, 0), pickle.dumps(small, 2)):
        assert read_pickle(whole, "a batch")["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
        for at in range(len(whole)):
            with pytest.raises(DataError):
                read_pickle(whole[:at], "a batch")
            for change in (1, 2, 64, 128):
                spoilt = whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :]
                with suppress(DataError):
                    assert isinstance(read_pickle(spoilt, "a batch"), dict)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_dictionary_or_refused(data: bytes) -> None:
    for each in (data, b"}(" + data + b"u."):
        with suppress(DataError):
            assert isinstance(read_pickle(each, "a batch"), dict)


LEAVES = (
    st.integers(-(2**31), 2**31) | st.binary(max_size=9) | st.text("abcé\n€", max_size=9) | st.booleans() | st.none()
)
VALUES = st.recursive(LEAVES | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=4), max_leaves=9)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), VALUES, max_size=4), st.sampled_from([0, 1, 2]))
def test_it_reads_what_python_reads(content: dict[str, Any], protocol: int) -> None:
    """The second derivation: Python's own reader, of what Python's writer wrote."""
    data = pickle.dumps(content, protocol)
    if b"__builtin__\nbytes" in data:  # how no bytes at all are written, which the official files do not have
        return
    assert read_pickle(data, "a batch") == pickle.loads(data)  # noqa: S301 - written two lines above


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_arrays_of_either_order_keep_their_places(protocol: int) -> None:
    for array in (PIXELS[:2], np.asfortranarray(PIXELS[:2]), PIXELS[:0]):
        if array.size:
            np.testing.assert_array_equal(read_pickle(pickle.dumps({"data": array}, protocol), "a")["data"], array)
