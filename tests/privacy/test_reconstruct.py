"""What leaks in plain is shown by the attack itself, and noise ends it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedsolve.method import Rows
from fedsolve.moments import Moments
from fedsolve.privacy.noise import Noise, Release
from fedsolve.privacy.reconstruct import compare, reconstruct
from fedsolve.study.disclosure import disclosures
from fedsolve.study.experiment import Settings
from tests.runtime.test_cli import Command


def sparse(n: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows as a network with relu gives them: half of the numbers are zero."""
    rng = np.random.default_rng(seed)
    return np.maximum(rng.normal(size=(n, m)), 0.0), rng.integers(3, size=n)


@pytest.mark.parametrize("ones", [False, True])
def test_rows_and_labels_come_back_from_sums(ones: bool) -> None:
    rows, labels = sparse(12, 80)
    guess = reconstruct(Moments.of(rows, labels, classes=3, intercept=ones))
    assert guess is not None
    design = np.column_stack([rows, np.ones(12)]) if ones else rows
    match = compare(design, labels, guess)
    assert (match.alike, match.exact, match.labels) == (1.0, 1.0, 1.0)
    np.testing.assert_allclose(guess.rows[list(match.order)], design, atol=1e-3)


def test_whatever_is_found_has_the_same_sums() -> None:
    """Why nobody could do better: every guess explains F'F and F'Y."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(8, 20)), np.array([0, 1, 2, 0, 1, 2, 0, 1])
    moments = Moments.of(rows, labels, classes=3)
    guess = reconstruct(moments, turns=20, starts=1)
    assert guess is not None
    again = Moments.of(guess.rows, guess.labels, classes=3)
    np.testing.assert_allclose(again.gram, moments.gram, atol=1e-8)
    np.testing.assert_allclose(again.cross, moments.cross, atol=1e-8)


def test_more_rows_than_features_are_not_separated() -> None:
    rows, labels = sparse(50, 20)
    assert reconstruct(Moments.of(rows, labels, classes=3)) is None


def test_noise_ends_it() -> None:
    rows, labels = sparse(12, 80)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    exact = reconstruct(Moments.of(rows, labels, classes=3))
    assert exact is not None
    assert compare(rows, labels, exact).alike == 1.0
    noisy = Release(Noise(8.0), Rows(1.0)).noisy(Moments.of(rows, labels, classes=3).arrays())
    guess = reconstruct(Moments.from_arrays({**noisy, "count": np.array(12)}))
    assert guess is None or compare(rows, labels, guess).alike == 0.0


def test_a_guess_shows_no_rows() -> None:
    guess = reconstruct(Moments.of(*sparse(5, 30), classes=3))
    assert repr(guess).startswith("Guess(5 rows")


def site_file(path: Path, n: int = 12) -> None:
    rows, labels = sparse(n, 81)
    np.savez(path, x=rows, y=labels)


def test_a_file_that_names_no_owner_is_one_site(tmp_path: Path) -> None:
    site_file(tmp_path / "ward.npz", 16)
    found = disclosures(Settings(data=str(tmp_path / "ward.npz")))
    assert len(found) == 1
    assert found[0].report.samples == 13  # a fifth is held back
    shown = found[0].shown
    assert shown is not None
    assert shown.match.alike == 1.0
    assert shown.pictures == (9, 9)
    np.testing.assert_allclose(shown.found, shown.rows, atol=1e-2)
    assert "rows" not in repr(shown)
    assert len(disclosures(Settings(data=str(tmp_path / "ward.npz"), clients=2, partition="iid"))) == 2


def test_on_the_command_line(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    site_file(tmp_path / "ward.npz", 16)
    picture = tmp_path / "seen.svg"
    answer = command("disclose", "--data", "ward.npz", "--picture", "seen.svg")
    assert answer.code == 0, answer.err
    assert "rows and labels can be recovered one by one" in answer.out
    assert "refused in plain: " in answer.out
    assert "100 % of the rows were recovered" in answer.out
    assert picture.read_text().count("<svg") == 1
    assert picture.stat().st_mode & 0o077 == 0  # it shows records


def test_of_several_sites_each_has_a_line(command: Command) -> None:
    answer = command("disclose", "--clients", "4", "--partition", "iid")
    assert answer.code == 0, answer.err
    assert answer.out.count("client-") >= 4
    assert "of 4 sites would disclose single records in plain" in answer.out
    one = command("disclose", "--clients", "4", "--partition", "iid", "--site", "client-01")
    assert "359 samples" in one.out or "360 samples" in one.out


TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: pip install 'fedsolve[torch]'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--method", "fedavg"], "fedavg sends", marks=TORCH),
        (["--method", "apfl"], "apfl sends"),
        (["--site", "nobody"], "unknown site 'nobody'"),
    ],
)
def test_what_is_refused(words: list[str], said: str, command: Command) -> None:
    answer = command("disclose", "--clients", "3", "--partition", "iid", *words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_a_picture_needs_rows(command: Command) -> None:
    assert "nothing to draw" in command("disclose", "--data", "wards", "--picture", "a.svg").err
