"""What holds data, statistics or models can be read by its owner alone, whatever the umask and the other threads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import disk, report
from fedsolve.checks import sample_federation
from fedsolve.features import cache
from fedsolve.ledger.contribution import Contribution
from fedsolve.ledger.store import Ledger
from fedsolve.runtime import sites
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.runtime.client import Memory
from fedsolve.runtime.drive import Snapshot
from tests.core.test_kernel_cache import FEATURES
from tests.runtime.test_sites import JOB, ward

MASKS = (0o000, 0o022, 0o077)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> dict[str, str]:
    """Everything below a folder that anybody but its owner may read, write or enter."""
    paths = [folder, *folder.rglob("*")]
    return {str(path): oct(rights(path)) for path in paths if rights(path) != (0o700 if path.is_dir() else 0o600)}


@pytest.fixture(params=MASKS, ids=oct)
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield int(request.param)
    os.umask(before)


THREADS = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
import fedsolve as fs
from fedsolve import codec, disk
from fedsolve.checks import sample_federation
home, mask = Path(sys.argv[1]), int(sys.argv[2])
os.umask(mask)
result = fs.run(fs.AFL(ridge=0.0, intercept=False), sample_federation())

def work(number):
    result.save(home / f"runs-{number}" / "out")
    result.save(home / f"runs-{number}" / "out")
    result.shared.save(disk.private_folder(home / "models") / f"{number}.safetensors")
    for each in range(20):
        codec.write_file(home / "models" / f"{number}-{each}.safetensors", {"w": np.ones(3)})
        disk.write_bytes(home / "models" / f"{number}-{each}.html", b"<html>", public=True)

with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(8)))
assert os.umask(0) == mask, "the umask of the process was touched"
"""


@pytest.mark.parametrize("mask", MASKS, ids=oct)
def test_eight_threads_write_private_files_under_any_umask(tmp_path: Path, mask: int) -> None:
    """The umask was set to 0 and back around each file: of 3,200 files under umask 077, 18 could be read by all."""
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(home), str(mask)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = list(home.rglob("*.html"))
    assert len(pages) == 160 and {rights(page) for page in pages} == {0o666 & ~mask}
    for page in pages:
        page.unlink()
    assert open_to_others(home) == {}
    assert len(list(home.rglob("*.safetensors"))) >= 8 * 22


def test_folders_that_are_there_keep_their_rights(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    fs.run(fs.AFL(ridge=0.0, intercept=False), sample_federation()).save(shared / "runs" / "out")
    assert rights(shared) == 0o755
    assert rights(shared / "runs") == rights(shared / "runs" / "out") == 0o700


def test_models_of_groups_are_for_their_owner_alone(tmp_path: Path) -> None:
    """A group may have one member."""
    folder = fs.run(fs.PFedACnnL(network="lr", groups=3), sample_federation()).save(tmp_path / "runs" / "out")
    assert len(list((folder / "groups").iterdir())) == 3
    assert open_to_others(tmp_path / "runs") == {}


def kept_checkpoint(home: Path) -> None:
    state = Snapshot(1, {"w": np.ones(2)}, (), frozenset(), {})
    Checkpoint(home / "run", every=1).keep(state, {"a": Memory({"private": np.ones(3)})})


def kept_ledger(home: Path) -> None:
    disk.private_folder(home)
    moments = fs.Moments.of(np.random.default_rng(0).normal(size=(9, 3)), np.arange(9) % 2, classes=2)
    with Ledger.create(home / "fed.db", fs.AFL(ridge=0.0, intercept=False), fs.Task(fs.Classes(2), (3,))) as ledger:
        Contribution.of("a", moments.arrays()).save(home / "a.safetensors", ledger.terms)
        ledger.terms.save(home / "invitation.safetensors")
        assert [answer.event for answer in ledger.offer_files([home / "a.safetensors"])] == ["added"]
        assert open_to_others(home) == {}  # with the log beside it
        ledger.solve().save(home / "solved")


def kept_features(home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSOLVE_CACHE", str(home))
        cache.extract(FEATURES, np.arange(96, dtype=np.uint8).reshape(4, 2, 4, 3))


def kept_at_a_site(home: Path) -> None:
    beside = disk.private_folder(home.parent / "data")
    rows = [f"{row},{row % 4},{('ill', 'well')[row % 2]}" for row in range(20)]
    site = ward(beside, "a", "age,pulse,label", *rows)
    site = type(site)(site.name, site.data, home)
    task = site.describe(JOB).task
    method = JOB.create()
    message = method.message(method.init_server(fs.Server(task, 0, np.random.default_rng(0))), "a", "update")
    sites.respond(site, JOB, task, sites.opening(JOB, task.described, message), "1")


@pytest.mark.parametrize("keep", [kept_checkpoint, kept_ledger, kept_features, kept_at_a_site])
def test_checkpoints_ledgers_caches_and_states_are_private(
    tmp_path: Path, mask: int, keep: Callable[[Path], None]
) -> None:
    """All but ledgers could be read by everybody."""
    keep(tmp_path / "home")
    assert any(path.is_file() for path in (tmp_path / "home").rglob("*"))
    assert open_to_others(tmp_path / "home") == {}


def test_a_page_is_public_by_intent(tmp_path: Path, mask: int) -> None:
    pytest.importorskip("matplotlib")
    fs.run(fs.AFL(ridge=0.0, intercept=False), sample_federation()).save(tmp_path / "out")
    assert rights(report.write([tmp_path / "out"], tmp_path / "page.html")) == 0o666 & ~mask


def test_an_exported_model_is_public_by_intent(tmp_path: Path, mask: int) -> None:
    pytest.importorskip("onnx")
    shared = fs.run(fs.AFL(ridge=0.0, intercept=False), sample_federation()).shared
    assert shared is not None
    assert rights(fs.to_onnx(shared, tmp_path / "m.onnx")) == 0o666 & ~mask


def test_a_federation_s_folders_are_its_owner_s_and_certificates_are_public(tmp_path: Path, mask: int) -> None:
    pytest.importorskip("cryptography")
    deploy = pytest.importorskip("fedsolve.deploy")
    deploy.init(tmp_path / "trial", ["ward-a"], "fed.example.org:443")
    paths = list((tmp_path / "trial").rglob("*"))
    assert {rights(path) for path in paths if path.is_dir()} == {0o700}
    assert {rights(path) for path in paths if path.suffix == ".key"} == {0o600}
    assert {rights(path) for path in paths if path.suffix == ".crt"} == {0o644 & ~mask}
