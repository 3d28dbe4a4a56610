"""Data sets as they are published: Tiny-ImageNet, ImageNet-R, and LEAF's FEMNIST and Shakespeare."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import sys
import tarfile
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.data import catalog, layouts, leaf
from fedsolve.data.samples import Unread
from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.features.images import Pictures
from fedsolve.reproduce.cells import images, published
from tests.conftest import numbers

with warnings.catch_warnings():  # typer imports names that its own click calls deprecated: not ours to mend
    warnings.simplefilter("ignore", DeprecationWarning)
    from fedsolve import cli

RNG = np.random.default_rng(0)
WNIDS = ("n01443537", "n01629819", "n02124075")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("FEDSOLVE_DATA", str(place))
    monkeypatch.setenv("FEDSOLVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return place


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "tiny-imagenet",
            "put a folder tiny-imagenet-200 with train/WNID/images, val/images and val/val_annotations.txt",
        ),
        ("imagenet-r", "put a folder imagenet-r of pictures (WNID/FILE)"),
        ("femnist", "put a folder femnist with train/*.json and test/*.json"),
        ("shakespeare:64", "put a folder shakespeare with train/*.json and test/*.json"),
        ("cifar10", "put cifar-10-binary.tar.gz or cifar-10-python.tar.gz"),
    ],
)
def test_what_is_absent_says_what_to_put_where(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=f"{name.partition(':')[0]} is not here: {re.escape(words)}.* holds neither"):
        fs.load(name)
    assert words in catalog.absent(name)
    monkeypatch.delenv("FEDSOLVE_DATA")
    assert "FEDSOLVE_DATA is not set" in catalog.absent(name)


def test_near_names_are_offered() -> None:
    with pytest.raises(FedsolveError, match="did you mean 'tiny-imagenet'"):
        fs.load("tiny-imagenett")


# --- pictures ---


def paint(path: Path, colour: int = 0) -> np.ndarray:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 60, (8, 8, 3)).astype(np.uint8)
    pixels[..., colour % 3] += 150
    image.fromarray(pixels).save(path, "PNG")  # whatever it is called: its bytes say what it is
    return pixels


def tiny(root: Path, *, wnids: bool = True) -> dict[str, np.ndarray]:
    """Three classes, four training pictures each, and five for the test in no order of classes."""
    painted = {}
    for colour, wnid in enumerate(WNIDS):
        for number in range(4):
            place = f"train/{wnid}/images/{wnid}_{number}.JPEG"
            painted[place] = paint(root / place, colour)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t7\t7\n")
    lines = []
    for number, colour in enumerate((2, 0, 1, 1, 0)):
        painted[f"val/images/val_{number}.JPEG"] = paint(root / f"val/images/val_{number}.JPEG", colour)
        lines.append(f"val_{number}.JPEG\t{WNIDS[colour]}\t0\t0\t7\t7\n")
    (root / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    paint(root / "test/images/test_0.JPEG")
    (root / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\n")
    if wnids:
        (root / "wnids.txt").write_text("\n".join(reversed(WNIDS)) + "\n")
    return painted


@pytest.mark.parametrize("folder", ["tiny-imagenet-200", "tiny-imagenet"])
@pytest.mark.parametrize("wnids", [True, False])
def test_tiny_imagenet_by_name_and_by_path(home: Path, folder: str, wnids: bool) -> None:
    painted = tiny(home / folder, wnids=wnids)
    for name in ("tiny-imagenet", str(home / folder)):
        table = fs.load(name)
        assert table.class_names == WNIDS
        assert table.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert isinstance(table.inputs, Pictures) and isinstance(table.test, Unread)  # still in their files
        assert table.test.labels.tolist() == [2, 0, 1, 1, 0]
        train = [pixels for place, pixels in painted.items() if place.startswith("train")]
        np.testing.assert_array_equal(np.stack(list(table.inputs)), np.stack(train))
        tests = [pixels for place, pixels in painted.items() if place.startswith("val")]
        np.testing.assert_array_equal(np.stack(list(table.test.inputs)), np.stack(tests))
        federation = table.split("iid", clients=2, test="official")
        assert sum(len(client.test) for client in federation.clients.values()) == 5
    assert catalog.absent("tiny-imagenet") == ""
    with pytest.raises(ParameterError, match="'tiny-imagenet' takes no argument"):
        fs.load("tiny-imagenet:3")


def test_pictures_of_tiny_imagenet_are_read_when_they_are_needed(home: Path) -> None:
    tiny(home / "tiny-imagenet-200")
    table = fs.load("tiny-imagenet")
    paint(home / "tiny-imagenet-200" / "val/images/val_3.JPEG", 2)
    with pytest.raises(DataError, match=r"val_3\.JPEG was changed while it was used"):
        table.stacked()


def test_broken_pictures_are_left_out_with_their_labels(home: Path) -> None:
    tiny(home / "tiny-imagenet-200")
    (home / "tiny-imagenet-200/train/n01443537/images/n01443537_1.JPEG").write_bytes(b"no picture")
    (home / "tiny-imagenet-200/val/images/val_0.JPEG").write_bytes(b"")
    with pytest.raises(DataError, match=r"1 of 12 pictures.*n01443537_1\.JPEG \(not a picture\).*--skip-broken"):
        fs.load("tiny-imagenet")
    table = catalog.load("tiny-imagenet", skip_broken=True)
    assert table.labels.tolist() == [0] * 3 + [1] * 4 + [2] * 4
    assert table.test is not None and table.test.labels.tolist() == [0, 1, 1, 0]
    assert len(table.skipped) == 2


ANNOTATION = "val_0.JPEG\tn02124075\t0\t0\t7\t7\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (ANNOTATION, "", "has no line for 'val_0.JPEG' (1 in all)"),
        (ANNOTATION, ANNOTATION + "val_9.JPEG\tn02124075\t0\n", "a line for a picture that is not there, 'val_9.JPEG'"),
        (ANNOTATION, ANNOTATION * 2, "line 6: 'val_0.JPEG' stands there twice"),
        (
            "val_0.JPEG\tn02124075",
            "val_0.JPEG\tn09999999",
            "line 5: unknown class 'n09999999'; train has no folder of it",
        ),
        (
            ANNOTATION,
            "val_0.JPEG n02124075 0 0\n",
            "line 5: wanted FILE, WNID and a box, between tabs; got 'val_0.JPEG n",
        ),
        (ANNOTATION, "\udcff\n", "is not a text in UTF-8"),
    ],
)
def test_annotations_that_do_not_fit_are_refused(home: Path, old: str, new: str, words: str) -> None:
    tiny(home / "tiny-imagenet-200")
    path = home / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new), errors="surrogateescape")
    with pytest.raises(DataError, match=f"val_annotations.txt.*{re.escape(words)}"):
        fs.load("tiny-imagenet")


def test_a_copy_of_tiny_imagenet_that_lacks_parts_is_refused(home: Path) -> None:
    root = home / "tiny-imagenet-200"
    tiny(root)
    (root / "wnids.txt").write_text("\n".join([*WNIDS, "n09999999"]))
    with pytest.raises(DataError, match=r"wnids\.txt names the class 'n09999999', of which train holds no picture"):
        fs.load("tiny-imagenet")
    (root / "wnids.txt").write_text("\n".join(WNIDS[1:]))
    with pytest.raises(DataError, match=r"wnids\.txt lacks the class 'n01443537' of train"):
        fs.load("tiny-imagenet")
    (root / "wnids.txt").unlink()
    (root / "val" / "val_annotations.txt").unlink()
    with pytest.raises(DataError, match=r"cannot read .*val_annotations\.txt: No such file"):
        fs.load("tiny-imagenet")
    shutil.rmtree(root / "val")
    with pytest.raises(DataError, match=r"holds no pictures val/images/\*; wanted the official layout"):
        fs.load("tiny-imagenet")


def test_imagenet_r_is_a_folder_a_class_and_a_text(home: Path) -> None:
    for wnid in WNIDS:
        for kind in ("art", "sketch"):
            paint(home / "imagenet-r" / wnid / f"{kind}_0.jpg")
    (home / "imagenet-r" / "README.txt").write_text("n01443537 goldfish\n")
    for name in ("imagenet-r", str(home / "imagenet-r")):
        table = fs.load(name)
        assert (table.class_names, table.labels.tolist(), table.test) == (WNIDS, [0, 0, 1, 1, 2, 2], None)
    shutil.move(home / "imagenet-r", home / "inner")
    shutil.move(home / "inner", home / "imagenet-r" / "a" / "b")
    with pytest.raises(DataError, match=r"must hold one folder per class.*its pictures lie 3 folders deep"):
        fs.load("imagenet-r")


def test_notes_beside_pictures_do_not_make_them_leaf(home: Path) -> None:
    for wnid in WNIDS:
        paint(home / "set" / "train" / wnid / "0.png")
    (home / "set" / "train" / "notes.json").write_text("{}")
    assert fs.load(str(home / "set")).class_names == WNIDS


@pytest.mark.parametrize("dataset", ["Tiny-ImageNet", "ImageNet-R"])
def test_the_papers_sets_are_known_by_name(dataset: str) -> None:
    """So that who has them runs `--scale paper`."""
    found = images(dataset, "paper", "a-network")
    assert not isinstance(found, str) and found.data in layouts.OFFICIAL
    assert f'"{dataset}"' in json.dumps(published())


# --- LEAF ---


def users(path: Path, data: dict[str, tuple[list[Any], list[Any]]], **change: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {
        "users": list(data),
        "num_samples": [len(x) for x, _ in data.values()],
        "hierarchies": [],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in data.items()},
    }
    path.write_text(json.dumps(held | change))
    return path


def drawn(count: int, shift: int = 0) -> tuple[list[Any], list[Any]]:
    return RNG.random((count, 784)).round(3).tolist(), [(shift + number) % 62 for number in range(count)]


@pytest.mark.parametrize("below", ["", "data"])
def test_femnist_is_a_table_whose_clients_are_the_writers(home: Path, below: str) -> None:
    root = home / "femnist" / below
    first, second, third, tests = drawn(5), drawn(4, 10), drawn(3, 59), drawn(2, 36)
    users(root / "train" / "all_data_0.json", {"f0000_14": first, "f0001_41": second})
    users(root / "train" / "all_data_1.json", {"f0002_00": third})
    users(root / "test" / "all_data_0.json", {"f0001_41": tests, "f0002_00": ([], [])})
    users(home / "femnist" / "all_data" / "other.json", {"nobody": drawn(3)})
    for name in ("femnist", str(home / "femnist")):
        table = fs.load(name)
        assert numbers(table).shape == (14, 28, 28) and numbers(table).dtype == np.float32
        wanted = np.array(first[0] + second[0] + third[0] + tests[0], dtype=np.float32)
        np.testing.assert_array_equal(numbers(table).reshape(14, -1), wanted)
        assert table.labels.tolist() == first[1] + second[1] + third[1] + tests[1]
        assert table.classes == 62 and table.class_names[9:11] == ("9", "A") and table.class_names[35:37] == ("Z", "a")
        assert table.test is None  # LEAF's test samples are the same writers'
        clients = table.split("by-client", test=0).clients
        assert {name: len(client.train) for name, client in clients.items()} == {
            "f0000_14": 5,
            "f0001_41": 6,
            "f0002_00": 3,
        }
    assert catalog.absent("femnist") == ""


def test_leaf_without_a_split_is_read_from_all_data(home: Path) -> None:
    users(home / "femnist" / "data" / "all_data" / "all_data_0.json", {"a": drawn(3), "b": drawn(2)})
    assert len(fs.load("femnist").labels) == 5


LINE = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer"


def test_shakespeare_predicts_the_next_character(home: Path) -> None:
    windows = [(LINE[start : start + 20], LINE[start + 20]) for start in range(len(LINE) - 20)]
    first, second = windows[:40], windows[40:]
    root = home / "shakespeare"
    users(root / "train" / "a.json", {"HAMLET": ([x for x, _ in first], [y for _, y in first])})
    others = [x for x, _ in second], [y for _, y in second]
    users(root / "test" / "a.json", {"HAMLET": (["x" * 20], ["y"]), "OPHELIA": others})
    for name, width in (("shakespeare", 1024), ("shakespeare:64", 64), (str(root), 1024)):
        table = fs.load(name)
        assert numbers(table).shape == (len(windows) + 1, width)
        named = [
            {" ": "space", "\n": "newline"}.get(y, y) for y in [y for _, y in first] + ["y"] + [y for _, y in second]
        ]
        assert [table.class_names[label] for label in table.labels] == named
        assert table.client is not None and Counter(table.client.tolist()) == {"HAMLET": 41, "OPHELIA": len(second)}
        np.testing.assert_array_equal(numbers(table)[0], leaf.hashed([windows[0][0]], width)[0])
    for bad in ("0", "-1", "a", "1e3", "65537", "9" * 30, "²"):
        with pytest.raises(ParameterError, match="written shakespeare:COLUMNS, with 1 to 65536 columns"):
            fs.load(f"shakespeare:{bad}")


@given(st.lists(st.text("ab é€\n😀", min_size=1, max_size=14), min_size=1, max_size=4), st.integers(1, 300))
def test_rows_are_counts_of_hashed_runs(texts: list[str], columns: int) -> None:
    """A second derivation, character by character; a row depends on its own last ten characters alone."""
    rows = leaf.hashed(texts, columns)
    for text, row in zip(texts, rows, strict=True):
        last = (" " * 10 + text)[-10:]
        wanted = np.zeros(columns)
        for start in range(10):
            for stop in range(start + 1, min(start + 3, 10) + 1):
                wanted[zlib.crc32(f"{10 - start} {last[start:stop]}".encode()) % columns] += 1
        np.testing.assert_array_equal(row, wanted)


def test_what_comes_next_can_be_learnt(home: Path) -> None:
    text = "abcdefghij" * 30
    samples = [text[start : start + 12] for start in range(200)], [text[start + 12] for start in range(200)]
    users(home / "shakespeare" / "train" / "a.json", {"A": samples, "B": samples})
    result = fs.run(fs.AFL(ridge=0.1, intercept=False), fs.load("shakespeare:256").split("by-client"))
    assert result.accuracy.mean == 1.0


GOOD = {"a": drawn(2), "b": drawn(1)}
ROW = [0.5] * 784


@pytest.mark.parametrize(
    ("data", "change", "words"),
    [
        (GOOD, {"users": ["a", "b", "c"], "num_samples": [2, 1, 0]}, "user 'c' has no data in user_data"),
        (GOOD, {"users": ["a"], "num_samples": [2]}, "user 'b' is not among the users"),
        (GOOD, {"users": ["a", "a", "b"], "num_samples": [2, 2, 1]}, "one number for each of 3 different users"),
        (GOOD, {"num_samples": [2]}, "num_samples must hold one number for each of 2 different users"),
        (GOOD, {"num_samples": [2, 5]}, "user 'b' has 1 inputs and 1 labels, and num_samples says 5"),
        (GOOD, {"users": "ab"}, "wanted users, a list of names"),
        (GOOD, {"users": [1, 2]}, "wanted users, a list of names"),
        (GOOD, {"user_data": []}, "wanted users, a list of names, and user_data, an object"),
        (GOOD, {"user_data": {"a": [], "b": []}}, "must have a list x and a list y"),
        ({"a" * 101: drawn(1)}, {}, "names of users have at most 100 characters"),
        ({"a": ([ROW], [1, 2])}, {}, "user 'a' has 1 inputs and 2 labels"),
        ({"a": ([ROW], [62])}, {}, "labels must be integers from 0 to 61; got 62"),
        ({"a": ([ROW], [-1])}, {}, "labels must be integers from 0 to 61; got -1"),
        ({"a": ([ROW], ["A"])}, {}, "labels must be integers from 0 to 61; got 'A'"),
        ({"a": ([ROW[1:]], [1])}, {}, "each x must be 784 numbers, as in FEMNIST; got 783 values"),
        ({"a": ([[*ROW[1:], "x" * 9]], [1])}, {}, "each x must be 784 numbers"),
        ({"a": ([[*ROW[1:], None]], [1])}, {}, "each x must be 784 numbers"),
        ({"a": ([[*ROW[1:], 1e300]], [1])}, {}, "numbers of single precision"),
        ({"a": ([ROW, "a text"], [1, 2])}, {}, "each x must be 784 numbers, as in FEMNIST; got 'a text'"),
        ({"a": (["a text", ROW], ["b", "c"])}, {}, "each x must be a text, as in Shakespeare"),
        ({"a": (["a text", ""], ["b", "c"])}, {}, "each x must be a text"),
        ({"a": (["a text"], ["ab"])}, {}, "each y must be the one character that follows; got 'ab'"),
        ({"a": (["a text"], [3])}, {}, "each y must be the one character that follows; got 3"),
    ],
)
def test_files_that_do_not_fit_are_refused(home: Path, data: Any, change: dict[str, Any], words: str) -> None:
    users(home / "set" / "train" / "one.json", data, **change)
    with pytest.raises(DataError, match=f"one.json.*{re.escape(words)}"):
        fs.load(str(home / "set"))


def test_a_set_is_what_its_name_says(home: Path) -> None:
    users(home / "femnist" / "train" / "a.json", {"a": (["a text"], ["b"])})
    users(home / "shakespeare" / "train" / "a.json", {"a": drawn(1)})
    with pytest.raises(DataError, match="each x must be 784 numbers, as in FEMNIST; got 'a text'"):
        fs.load("femnist")
    with pytest.raises(DataError, match="each x must be a text, as in Shakespeare"):
        fs.load("shakespeare:8")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"users": [], "users": []}', "[" * 10_000, '{"users": NaN}'])
def test_broken_json_is_refused(home: Path, text: str) -> None:
    (home / "femnist" / "train").mkdir(parents=True)
    (home / "femnist" / "train" / "one.json").write_text(text)
    with pytest.raises(DataError, match=r"one\.json"):
        fs.load("femnist")


def test_a_file_that_is_too_large_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = users(home / "femnist" / "train" / "one.json", GOOD)
    monkeypatch.setattr(leaf, "LARGEST_FILE", path.stat().st_size - 1)
    with pytest.raises(DataError, match=r"one\.json must have 1 to \d+ bytes; got \d+; split it by users"):
        fs.load("femnist")


def test_users_without_any_sample_are_refused(home: Path) -> None:
    users(home / "femnist" / "train" / "one.json", {"a": ([], [])})
    with pytest.raises(DataError, match="holds no samples in LEAF's JSON"):
        fs.load("femnist")


# --- the command line ---


def test_the_command_line_runs_on_them_by_name_and_by_path(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["fedsolve", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, capsys.readouterr().err

    tiny(home / "tiny-imagenet-200")
    samples = [(f"{number % 5}") * 12 for number in range(40)], [str((number + 1) % 5) for number in range(40)]
    users(home / "shakespeare" / "train" / "a.json", {"LEAR": samples, "FOOL": samples})
    rows = [[float(number % 3 == 0)] * 392 + [float(number % 3 == 1)] * 392 for number in range(30)]
    users(home / "femnist" / "train" / "a.json", dict.fromkeys("ab", (rows, [number % 3 for number in range(30)])))
    pixels = np.repeat(np.arange(10, dtype=np.uint8)[:, None] * 20, 3072, axis=1)
    batch = pickle.dumps({b"data": pixels, b"labels": list(range(10))}, 2)
    with tarfile.open(home / "cifar-10-python.tar.gz", "w:gz") as tar:
        for member in ("data_batch_1", "test_batch"):
            info = tarfile.TarInfo(f"cifar-10-batches-py/{member}")
            info.size = len(batch)
            tar.addfile(info, io.BytesIO(batch))
    for words in (
        ("tiny-imagenet", "--test", "official", "--partition", "iid", "--clients", "2"),
        (str(home / "tiny-imagenet-200"), "--test", "global", "--partition", "iid", "--clients", "2"),
        ("cifar10", "--test", "global", "--partition", "iid", "--clients", "2"),
        ("shakespeare:64",),
        ("femnist",),
    ):
        out = tmp_path / "out" / str(zlib.crc32(words[0].encode()))
        code, said = command(
            "run", "--method", "afl", "--set", "ridge=1", "--data", *words, "--quiet", "--out", str(out)
        )
        assert code == 0, said
        result = json.loads((out / "result.json").read_text())
        if len(words) == 1:  # natural clients
            assert sorted(result["clients"]) in (["FOOL", "LEAR"], ["a", "b"])
    code, said = command("run", "--data", "imagenet-r", "--quiet")
    assert code == 2 and "imagenet-r is not here: put a folder imagenet-r" in " ".join(said.split())
