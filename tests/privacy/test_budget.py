from __future__ import annotations

import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsolve.errors import DataError, FedsolveError, ParameterError
from fedsolve.privacy.account import composed, epsilon_of, mu_of
from fedsolve.privacy.budget import Budget

SMALL = mu_of(0.5, 1e-5)


def test_releases_about_the_same_data_add_up_and_others_do_not(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "state" / "spent.json", limit=1.0)
    assert budget.spent("a") == 0.0
    assert budget.spend("a", SMALL) == pytest.approx(0.5)
    assert budget.spend("b", SMALL) == pytest.approx(0.5)
    assert budget.spend("a", SMALL) == pytest.approx(epsilon_of(composed([SMALL, SMALL]), 1e-5))
    assert budget.spent("b") == pytest.approx(0.5)


def test_beyond_the_limit_nothing_is_spent(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "spent.json", limit=1.0)
    spent = 0
    with pytest.raises(DataError, match=r"its limit is 1: .* are spent"):
        while True:
            budget.spend("a", SMALL)
            spent += 1
    assert spent == 3  # 0.5, 0.73, 0.91, and no 1.07
    before = budget.path.read_bytes()
    with pytest.raises(DataError, match="its limit is 1"):
        budget.spend("a", SMALL)
    assert budget.path.read_bytes() == before
    budget.spend("other", SMALL)


def test_a_release_of_the_whole_limit_is_within_it(tmp_path: Path) -> None:
    assert Budget(tmp_path / "spent.json", limit=1.0).spend("a", mu_of(1.0, 1e-5)) == pytest.approx(1.0)


def test_its_owner_alone_reads_it(tmp_path: Path) -> None:
    Budget(tmp_path / "state" / "spent.json", limit=1.0).spend("a", SMALL)
    for path in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def _spend(path: Path) -> bool:
    try:
        Budget(path, limit=1.0).spend("a", mu_of(0.1, 1e-5))
    except DataError:
        return False
    return True


def test_processes_that_spend_at_once_forget_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spent.json"
    with ProcessPoolExecutor(4) as pool:
        granted = sum(pool.map(_spend, [path] * 100))
    alone = Budget(tmp_path / "alone.json", limit=1.0)
    possible = sum(_spend(alone.path) for _ in range(100))
    assert granted == possible < 100
    assert Budget(path, limit=1.0).spent("a") == pytest.approx(alone.spent("a"))


@given(st.one_of(st.binary(max_size=40), st.sampled_from([
    b"{}", b"[]", b'{"format": 2, "mu": {}}', b'{"format": 1}', b'{"format": 1, "mu": {"a": -1}}',
    b'{"format": 1, "mu": {"a": "x"}}', b'{"format": 1, "mu": {"a": true}}', b'{"format": 1, "mu": {"a": 0}}',
])))  # fmt: skip
def test_a_damaged_note_is_not_an_empty_one(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spent.json"
        path.write_bytes(data)
        with pytest.raises(FedsolveError):
            Budget(path, limit=1.0).spend("a", SMALL)
        assert path.read_bytes() == data


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_no_limit(limit: float, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="a limit of epsilon"):
        Budget(tmp_path / "spent.json", limit)


@pytest.mark.parametrize("mu", [0.0, -1.0, float("nan"), float("inf")])
def test_no_release(mu: float, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="mu of a release"):
        Budget(tmp_path / "spent.json", 1.0).spend("a", mu)
