"""Sites that predict numbers agree on rough units, and tell no more than those."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.data.target import Numbers
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.features.maps import Identity
from fedsolve.privacy.policy import Policy
from fedsolve.runtime.agreement import agreement


def told(labels: np.ndarray) -> Task:
    return Task(Policy().told(Numbers("pressure"), labels), (3,))


def test_units_are_those_of_all_samples_up_to_a_digit() -> None:
    rng = np.random.default_rng(0)
    parts = {"a": rng.normal(120, 15, size=(80, 1)), "b": rng.normal(150, 20, size=(200, 1))}
    agreed = agreement(
        {name: told(part) for name, part in parts.items()}, {n: len(p) for n, p in parts.items()}, Identity()
    )
    every = np.concatenate(list(parts.values()))
    target = agreed.task.target
    assert isinstance(target, Numbers)
    assert abs(target.origin[0] - every.mean()) < 0.5 * every.std()
    assert 0.6 < target.scale[0] / every.std() < 1.6


def test_a_site_tells_one_digit_and_nothing_of_few_samples() -> None:
    labels = np.array([[121.3], [147.9], [133.2], [110.1], [128.7]] * 4)
    target = told(labels).target
    assert isinstance(target, Numbers)
    assert (target.origin, target.scale) == ((130.0,), (10.0,))
    few = Policy(min_samples=30).told(Numbers("pressure"), labels)
    assert few == Numbers("pressure")


def test_sites_with_other_targets_are_named() -> None:
    tasks = {"a": told(np.ones((9, 1))), "b": Task(fs.Classes(2), (3,))}
    with pytest.raises(DataError, match="labels of site"):
        agreement(tasks, {"a": 9, "b": 9}, Identity())
