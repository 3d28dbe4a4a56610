"""Files that a stranger wrote: tables, settings and archives. One sentence that names the file, at once, frugally."""

from __future__ import annotations

import io
import time
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec, methods
from fedsolve.data.files import labels_of, read_columns
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.runtime.client import Memory, Request
from fedsolve.study.settings import Settings, read_config
from tests.security.test_hostile_headers import frugal

X = np.arange(6.0).reshape(3, 2)


# --- npz ---


def npy(header: str, values: bytes = bytes(48)) -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values


def packed(path: Path, member: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "x.npy") -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(name, member)
    return path


HEADERS = {
    "a huge shape": "{'descr': '<f8', 'fortran_order': False, 'shape': (3000000000, 3000000000), }",
    "a shape beyond all numbers": "{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }" % ("9" * 400),
    "a shape of nothing": "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 4611686018427387904), }",
    "a shape of texts": "{'descr': '<f8', 'fortran_order': False, 'shape': ('a', 6), }",
    "a shape of truths": "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 6), }",
    "a negative side": "{'descr': '<f8', 'fortran_order': False, 'shape': (-6,), }",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (6,), }",
    "records": "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (6,), }",
    "empty texts": "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }",
    "an unknown type": "{'descr': '<f999', 'fortran_order': False, 'shape': (6,), }",
    "no dictionary": "[1, 2]",
    "too few keys": "{'descr': '<f8'}",
    "deep brackets": "(" * 5000,
    "deep brackets of a dictionary": "{'descr': " * 1000,
    "a program": "__import__('os').system('true')",
    "open quotes": "{'descr': '<f8",
    "a strange escape": "{'descr': '\\d', 'fortran_order': False, 'shape': (6,), }",
    "a zero byte": "{'descr': '<f8\0', 'fortran_order': False, 'shape': (6,), }",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_an_array_that_is_not_what_its_header_says_is_refused(tmp_path: Path, header: str) -> None:
    path = packed(tmp_path / "a.npz", npy(header))
    error = frugal(lambda: read_columns(path))
    assert str(error).startswith(f"{path} is damaged or not an .npz file of plain arrays")
    assert str(error).isprintable()


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_ways_of_packing_are_refused_before_they_unpack_anything(tmp_path: Path, method: int) -> None:
    path = packed(tmp_path / "a.npz", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (6,), }"), method)
    spoilt = bytearray(path.read_bytes())
    spoilt[60:80] = bytes(20)
    path.write_bytes(bytes(spoilt))
    assert "packed by another method" in str(frugal(lambda: read_columns(path)))


def test_a_small_file_that_announces_gigabytes_is_refused_before_room_is_made(tmp_path: Path) -> None:
    """A megabyte of zeros packs to a thousand bytes; 64 GB of them would be 64 MB on disk."""
    zeros = 90_000_000
    path = packed(
        tmp_path / "a.npz", npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({zeros}, 1), }}", bytes(zeros))
    )
    assert path.stat().st_size < 100_000
    assert "times its size; if that is right, write it without compression" in str(frugal(lambda: read_columns(path)))


def test_a_file_that_announces_what_it_does_not_hold_is_refused(tmp_path: Path) -> None:
    """The sizes in the directory of the archive and in the array's header agree, and both are wrong."""
    path = packed(tmp_path / "a.npz", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (6,), }"))
    content = path.read_bytes()
    true_size = len(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (6,), }"))
    path.write_bytes(content.replace(true_size.to_bytes(4, "little"), (2**32 - 2).to_bytes(4, "little")))
    assert isinstance(frugal(lambda: read_columns(path)), DataError)


@pytest.mark.parametrize("letter", [0xD800, 0x110000, 2**32 - 1])
def test_texts_that_are_not_unicode_are_refused(tmp_path: Path, letter: int) -> None:
    path = tmp_path / "a.npz"
    member = npy("{'descr': '<U1', 'fortran_order': False, 'shape': (3,), }", letter.to_bytes(4, "little") * 3)
    assert "not Unicode" in str(frugal(lambda: read_columns(packed(path, member, name="y.npy"))))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f8", ">f8", "<f4", "<i8", "|u1", "|b1", "<U3", ">U3"])
def test_what_numpy_wrote_is_what_is_read(tmp_path: Path, kind: str, order: Any) -> None:
    """Against NumPy's own reader, packed and not, in both orders of bytes and of axes."""
    array = np.array([[1, 0, 1], [0, 1, 2]]).astype(kind, order=order)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", x=array, y=array[:, 0])
        with np.load(tmp_path / "a.npz") as wanted:
            columns = read_columns(tmp_path / "a.npz")
            for key in ("x", "y"):
                assert columns[key].dtype == wanted[key].dtype
                np.testing.assert_array_equal(columns[key], wanted[key])


# --- csv ---


def csv(path: Path, *labels: str) -> Path:
    path.write_text("a,y\n" + "".join(f"{number},{label}\n" for number, label in enumerate(labels)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "labels",
    [
        ("007", "7"),
        ("1_0", "10"),
        ("\u0663", "3"),
        ("1.0", "1"),
        ("1e1", "10"),
        ("+1", "1"),
        ("-0", "0"),
        ("0.10", "0.1"),
    ],
)
def test_labels_that_differ_stay_classes_that_differ(tmp_path: Path, labels: tuple[str, str]) -> None:
    """Version 0.1.0 read both texts of each pair as one number."""
    table = fs.load(str(csv(tmp_path / "a.csv", *labels, *labels)))
    assert table.class_names == tuple(sorted(labels))
    assert [table.class_names[number] for number in table.labels] == [*labels, *labels]


def test_columns_of_numbers_stay_numbers() -> None:
    assert labels_of(["0", "7", "10"]).tolist() == [0, 7, 10]
    assert labels_of(["0", "7", "10"]).dtype == np.int64
    assert labels_of(["0.0", "2.0"]).dtype == np.float64
    assert np.isnan(labels_of(["0", "1", "NaN"])[2])  # a label is missing: refused where labels are checked


@pytest.mark.parametrize("label", ["1" + "0" * 30, "1" + "0" * 400, "nan", "inf", "99999999999999999999"])
def test_numbers_that_no_class_has_are_refused_in_a_sentence(tmp_path: Path, label: str) -> None:
    path = csv(tmp_path / "a.csv", "0", "1", label)
    with pytest.raises(DataError, match=r"a\.csv: the label .*(in line 4|in row 2|characters)"):
        fs.load(str(path))


def test_one_long_label_does_not_make_all_of_them_long(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", *["ill"] * 10_000, "x" * 100_000)
    words = "the label 'y' has a text of 100000 characters in line 10002"
    assert words in str(frugal(lambda: read_columns(path)))


def test_many_columns_are_read_in_their_time(tmp_path: Path) -> None:
    """Each column was looked for among all others: 100,000 of them took a minute."""
    path, count = tmp_path / "a.csv", 30_000
    path.write_text(",".join(f"c{n}" for n in range(count)) + ",y\n" + "1," * count + "0\n")
    features = [f"c{n}" for n in range(count)]
    started = time.process_time()
    assert read_columns(path)["x"].shape == read_columns(path, features)["x"].shape == (1, count)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("column", ["\x1b[31mred", "a\u202eb", "x" * 1000])
def test_columns_have_no_names_that_a_terminal_obeys(tmp_path: Path, column: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{column},y\n1,0\n2,1\n", encoding="utf-8")
    with pytest.raises(
        DataError, match="a column's name has at most 200 characters, and no control character"
    ) as error:
        fs.load(str(path))
    assert str(error.value).isprintable()


@pytest.mark.parametrize("label", ["\x1b[31mred", "a\x9bb", "\u2028"])
def test_classes_and_clients_have_no_names_that_a_terminal_obeys(tmp_path: Path, label: str) -> None:
    with pytest.raises(ParameterError, match="without control characters"):
        fs.load(str(csv(tmp_path / "a.csv", "well", f"a{label}b")))
    with pytest.raises(DataError, match="no control character"):
        fs.Federation.from_arrays({f"ward{label}a": {"train": (X, [0, 1, 1])}})


def test_half_a_character_is_no_client() -> None:
    with pytest.raises(DataError, match="no control character"):
        fs.Federation.from_arrays({"ward \ud800": {"train": (X, [0, 1, 1])}})


# --- splits and settings ---


@pytest.mark.parametrize("clients", [10**10, 10**30])
def test_more_clients_than_samples_are_refused_before_each_gets_a_name(clients: int) -> None:
    table = fs.load("digits")
    for partition in ("iid", "dirichlet:0.1", "classes:2", "neighbours:2", "shards:2", "power-law"):
        error = frugal(partial(table.split, partition, clients=clients))
        assert f"{clients} clients are more than the 1797 samples" in str(error)


SETTINGS: dict[str, bytes] = {
    "deep.toml": b"clients = " + b"[" * 20_000,
    "deep.json": b'{"settings": ' + b"[" * 20_000,
    "tables.toml": b"[" + b".".join([b"a"] * 5000) + b"]\nb = 1",
    "dotted.toml": b"set." + b".".join([b"a"] * 5000) + b" = 1",
    "digits.toml": b"seed = " + b"9" * 5000,
    "digits.json": b'{"settings": {"data": "digits", "seed": ' + b"9" * 5000 + b"}}",
    "latin.toml": b'data = "\xe4"',
    "list.json": b"[]",
    "text.json": b'{"settings": "data"}',
    "pairs.json": b'{"settings": [["data", "digits"]]}',
    "twice.json": b'{"settings": {"data": "digits", "data": "mnist"}}',
    "half.json": b'{"settings": {"data": "\\ud800"}}',
    "value.toml": b'partition = [["iid"]]',
    "date.toml": b"test = 2020-01-01",
    "empty.json": b"",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_another_form_are_refused_by_the_name_of_their_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(SETTINGS[name])
    with pytest.raises(FedsolveError) as error:
        settings = Settings.of(read_config(path), str(path))
        methods.create(settings.method, settings.set)
    assert name in str(error.value) or name == "dotted.toml"
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1500


# --- requests and memories ---


HEADS: list[dict[str, str]] = [
    {"round": "1_0"}, {"round": "-1"}, {"round": "\u0663"}, {"round": "9" * 5000}, {"round": ""}, {"seed": "-1"},
    {"seed": "a"}, {"seed": "0x10"}, {"accepted": "yes"}, {"accepted": "2"}, {"pace": "nan"}, {"pace": "inf"},
    {"pace": "1e999"}, {"pace": "0"}, {"pace": "1_0.0"}, {"kind": "destroy"}, {"kind": ""},
]  # fmt: skip


@pytest.mark.parametrize("change", HEADS, ids=str)
def test_a_request_with_another_head_is_refused(change: dict[str, str]) -> None:
    request = Request("update", 1, 0, "identity of (2,)", {"w": X})
    arrays, head = codec.read(request.write())
    assert Request.read(codec.encode(arrays, head)).round == 1
    with pytest.raises(DataError, match="request without a proper head"):
        Request.read(codec.encode(arrays, head | change))


def test_every_request_that_is_written_is_read() -> None:
    for pace in (1.0, 1.5, 1e16, 123456.789, 1.7e308):
        request = Request("evaluate", 7, 10**40, "identity", {"w": X}, accepted=False, pace=pace)
        again = Request.read(request.write())
        assert (again.kind, again.round, again.seed, again.accepted, again.pace) == ("evaluate", 7, 10**40, False, pace)


MEMORIES: list[dict[str, Any]] = [
    {}, {"counted": True}, {"counted": True, "updated": [True, False]}, {"counted": 1.0, "updated": True},
    {"counted": True, "updated": []}, {"counted": np.nan, "updated": np.nan},
]  # fmt: skip


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_a_memory_of_another_form_is_refused(memory: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="the memory of a client"):
        Memory.from_arrays({name: np.array(value) for name, value in memory.items()})


# --- archives of pictures ---


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8b\x08" + bytes(40), b"\x1f\x8b\x08\x00" + b"\xff" * 60])
def test_a_damaged_archive_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for stem in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "mnist" / f"{stem}-ubyte.gz").write_bytes(damage)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(damage)
    for name, file in (("mnist", "train-images-idx3-ubyte.gz"), ("cifar10", "cifar-10-binary.tar.gz")):
        with pytest.raises(DataError, match=file):
            fs.load(name)


def test_a_member_that_announces_terabytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tarfile

    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    member.size = 2**40
    buffer = io.BytesIO()
    buffer.write(member.tobuf())
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(buffer.getvalue())
    assert "cifar-10-binary.tar.gz is damaged" in str(frugal(lambda: fs.load("cifar10")))
