"""The benchmark of costs measures the rounds that a run takes, and of every method that trains a network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks import costs, crowd

import fedsolve as fs
from fedsolve import methods

pytest.importorskip("torch", reason="torch is not installed: pip install 'fedsolve[torch]'")


def test_rounds_one_at_a_time_are_those_of_a_run() -> None:
    federation = costs.pictures(3, 12)
    method = fs.MOON(model="mlp:4", rounds=3, epochs=1)
    course = costs.Course(replace(method, rounds=4), federation)  # behind the last round nothing is kept
    assert all(course.round() > 0 for _ in range(3))
    whole = fs.run(method, federation, workers=1)
    kept = course._kept
    assert kept is not None
    assert kept.round == 3
    assert kept.state.keys() == whole.state.keys()
    for name, array in whole.state.items():
        assert np.asarray(kept.state[name]).tobytes() == np.asarray(array).tobytes()


def test_every_method_that_trains_a_network_is_measured() -> None:
    trained = {name for name in methods.CATALOGUE for cls in methods.classes(name) if hasattr(cls, "sgd_momentum")}
    assert set(costs.names()) == trained
    assert {*costs.BARS, *costs.PASS_BARS, *costs.FEWER} <= trained
    assert set(crowd.names()) <= trained - {"local", "apple", "fedamp"}  # which keep something of every client
