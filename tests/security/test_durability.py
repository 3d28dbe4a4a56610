"""Whatever ends a process, or fills the disk: the old or the new result is whole and in its place."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedsolve import disk, report
from fedsolve.errors import DataError
from fedsolve.result import CHECKPOINT, Result, replaceable
from tests.conftest import ROOT
from tests.runtime.test_cli import Command, samples, shell
from tests.security.killing import check_whole, ended, forked, results

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def killing(*arguments: object) -> None:
    """In a process of its own, which forks those that are killed."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.killing", *map(str, arguments)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def pair() -> tuple[Result, Result]:
    return results()


# --- kills ---


@pytest.mark.parametrize(
    ("before", "exchange", "how"),
    [
        ("earlier", "swap", "kill"),
        ("earlier", "rename", "kill"),
        ("earlier", "swap", "interrupt"),
        pytest.param("earlier", "rename", "interrupt", marks=pytest.mark.long),
        pytest.param("first", "swap", "kill", marks=pytest.mark.long),
        pytest.param("first", "swap", "interrupt", marks=pytest.mark.long),
    ],
)
def test_a_save_that_is_stopped_before_any_of_its_events(tmp_path: Path, before: str, exchange: str, how: str) -> None:
    """A kill between the two renames lost both versions from sight; what it left was counted, and stayed."""
    killing("events", tmp_path, before, exchange, how)


@needs_strace
def test_a_save_that_is_killed_at_the_calls_that_change_places(tmp_path: Path) -> None:
    killing("calls", tmp_path, "mkdir", "rename", "renameat2", "fsync", "syncfs", "rmdir")


@needs_strace
@pytest.mark.long
def test_a_save_that_is_killed_at_each_of_its_system_calls(tmp_path: Path) -> None:
    killing("calls", tmp_path)


@needs_strace
def test_what_replaces_something_is_on_the_disk_before_it_does(tmp_path: Path) -> None:
    """Nothing was brought to the disk: a power cut could leave a result of empty files."""
    killing("order", tmp_path)


def test_commands_that_are_killed_at_random_moments(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="compare needs it for its page")
    killing("random", tmp_path, 6, 0)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_three_hundred_kills_at_random_moments(tmp_path: Path) -> None:
    killing("random", tmp_path, 300, 1)


# --- what is left behind ---


def test_what_is_under_way_is_not_swept(tmp_path: Path, pair: tuple[Result, Result]) -> None:
    old, new = pair
    with disk.replacing(tmp_path / "out") as folder:  # the same process is another owner
        new.save(tmp_path / "out")
        child = forked(lambda: new.save(tmp_path / "out"))
        assert ended(child) == 0
        assert folder.is_dir()
        shutil.copytree(old.save(tmp_path / "copy"), folder, dirs_exist_ok=True)
    assert check_whole(tmp_path / "out").method == old.method
    assert sorted(os.listdir(tmp_path)) == ["copy", "out"]


def test_the_folders_of_others_are_not_swept(tmp_path: Path, pair: tuple[Result, Result]) -> None:
    strangers = [
        ".out.old",
        ".out.0a1b2c3d",
        ".out.backup.fedsolve",
        ".other.0a1b2c3d.fedsolve",
        "out.0a1b2c3d.fedsolve",
    ]
    for name in strangers:
        (tmp_path / name).mkdir()
    (tmp_path / ".out.00000000.fedsolve").mkdir()
    pair[0].save(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == sorted([*strangers, "out"])


def test_a_file_sweeps_what_was_left_of_it(tmp_path: Path) -> None:
    for name in (".a.json.0a1b2c3d.fedsolve", ".b.json.0a1b2c3d.fedsolve"):
        (tmp_path / name).write_text("half")
    disk.write_bytes(tmp_path / "a.json", b"{}")
    assert sorted(os.listdir(tmp_path)) == [".b.json.0a1b2c3d.fedsolve", "a.json"]


def test_hidden_results_are_not_counted(tmp_path: Path, pair: tuple[Result, Result]) -> None:
    """Killed saves left whole results in hidden folders, and reports had them as runs."""
    pair[0].save(tmp_path / "out")
    pair[1].save(tmp_path / ".out.0a1b2c3d" / "below")
    assert [run.place.name for run in report.entries([tmp_path])] == ["out"]
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(DataError, match="holds no results"):
        report.entries([tmp_path])


def test_a_checkpoint_that_was_killed_does_not_block_its_folder(tmp_path: Path) -> None:
    """The folder was then "not a result of fedsolve", and the run could not go on."""
    (tmp_path / CHECKPOINT).write_text("whole")
    (tmp_path / f".{CHECKPOINT}.0a1b2c3d.fedsolve").write_text("half")
    assert replaceable(tmp_path)
    (tmp_path / ".bashrc").write_text("mine")
    assert not replaceable(tmp_path)


def test_savers_side_by_side_leave_one_whole_result(tmp_path: Path, pair: tuple[Result, Result]) -> None:
    start = threading.Barrier(8)

    def save(number: int) -> None:
        start.wait()
        for _ in range(5):
            pair[number % 2].save(tmp_path / "out")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(8)))
    check_whole(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_a_result_behind_a_link_is_replaced_and_the_link_stays(tmp_path: Path, pair: tuple[Result, Result]) -> None:
    pair[0].save(tmp_path / "there" / "out")
    (tmp_path / "here").symlink_to(tmp_path / "there" / "out")
    pair[1].save(tmp_path / "here")
    assert (tmp_path / "here").is_symlink()
    assert check_whole(tmp_path / "there" / "out").method == pair[1].method
    assert os.listdir(tmp_path / "there") == ["out"]


# --- a full disk ---


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_file_that_may_not_grow_leaves_the_earlier_result_and_nothing_else(
    tmp_path: Path, pair: tuple[Result, Result]
) -> None:
    old, new = pair
    old.save(tmp_path / "out")
    before = tree(tmp_path)

    def save() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
        with pytest.raises(DataError, match=r"cannot write to .*out: File too large$"):
            new.save(tmp_path / "out")
        with pytest.raises(DataError, match=r"cannot write to .*file: File too large$"):
            disk.write_bytes(tmp_path / "file", bytes(1000))

    assert ended(forked(save)) == 0
    assert tree(tmp_path) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_sentence_and_the_earlier_result_is_there(
    small_disk: Path, tmp_path: Path, command: Command
) -> None:
    data = str(samples(tmp_path))
    run = ("run", "--data", data, "--partition", "iid", "--no-alone", "--quiet", "--out", str(small_disk / "out"))
    assert command(*run, "--clients", "2").code == 0
    before = tree(small_disk)
    for more in (("--clients", "20"), ("--method", "fedprior", "--features", "random:200", "--clients", "2")):
        done = command(*run, *more)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.err == f"fedsolve: cannot write to {small_disk / 'out'}: No space left on device\n"
        assert tree(small_disk) == before and os.listdir(small_disk) == ["out"]
    check_whole(small_disk / "out")


# --- a place that cannot be written to ---

NEEDS = {"compare": "matplotlib", "export": "onnx", "deploy": "flwr"}  # what a command asks for first
OUT = Path("/proc/out")  # nobody can make a folder or a file there, not even root


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--data", "nothing.npz", "--out", OUT),
        ("run", "--data", "nothing.npz", "--out", "file/out"),
        ("compare", "--methods", "afl", "--data", "nothing.npz", "--out", OUT),
        ("compare", "--methods", "afl", "--data", "nothing.npz", "--out", "/proc/self/fdinfo"),  # which is there
        ("reproduce", "fedhip-2", "--out", OUT),
        ("predict", "nothing.safetensors", "--data", "nothing.npz", "--out", "/proc/out.csv"),
        ("predict", "nothing.safetensors", "--data", "nothing.npz", "--out", "labels.txt"),
        ("predict", "nothing.safetensors", "--data", "nothing.npz", "--out", "folder.csv"),
        ("export", "nothing.safetensors", "--out", "/proc/out.onnx"),
        ("export", "nothing.safetensors", "--out", "folder.csv"),
        ("report", "nothing", "--out", "/proc/out.html"),
        ("deploy", "run", "nothing", "--out", OUT),
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_an_unwritable_place_is_refused_before_anything_is_read(
    command: Command, tmp_path: Path, words: tuple[object, ...]
) -> None:
    """It was noticed after the computing. The other fault here, data that are not there, is met only by reading."""
    if words[0] in NEEDS:
        pytest.importorskip(NEEDS[str(words[0])])
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    done = command(*map(str, words))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert str(words[-1]) in done.err and "nothing" not in done.err
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.csv"]


def test_the_default_place_is_looked_at_too(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file of that name")
    done = command("run", "--data", "nothing.npz")
    assert (done.code, done.err) == (2, "fedsolve: cannot write to runs/run: Not a directory\n")


def test_looking_at_a_place_makes_no_folder(tmp_path: Path) -> None:
    disk.check_writable(tmp_path / "a" / "b" / "out")
    disk.check_file(tmp_path / "a" / "page.html")
    assert os.listdir(tmp_path) == []


def test_a_run_in_a_process_of_its_own_ends_with_2(tmp_path: Path) -> None:
    done = shell(tmp_path, "run", "--out", str(OUT))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"fedsolve: cannot write to {OUT}: No such file or directory\n"
