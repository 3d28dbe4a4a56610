"""Flower's apps: every method gives the models it gives in process; absence, faults and disagreement are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.checks import sample_federation
from fedsolve.methods import CATALOGUE, create
from tests.contract.test_catalogue import SMALL

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

from fedsolve.runtime.flower import simulate
from fedsolve.runtime.sites import Job
from tests.runtime.grid import engine


def close(found: fs.Result, wanted: fs.Result, bound: float) -> None:
    assert found.clients.keys() == wanted.clients.keys()
    pairs = [(found.models[name].arrays, wanted.models[name].arrays) for name in wanted.clients]
    pairs += [(found.state, wanted.state)]
    for mine, theirs in pairs:
        assert mine.keys() == theirs.keys()
        for name in theirs:
            scale = max(1.0, float(np.abs(theirs[name]).max(initial=0.0)))
            assert mine[name].dtype == theirs[name].dtype
            np.testing.assert_allclose(mine[name], theirs[name], rtol=0, atol=bound * scale)


def job_of(method: fs.Method, **settings: Any) -> Job:
    from fedsolve import parameters

    return Job(method.name, parameters.values(method), **settings)


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_method_gives_the_models_it_gives_in_process(name: str) -> None:
    federation = sample_federation(sizes=(40, 25, 60, 30))
    method = create(name, SMALL.get(name))
    wanted = fs.run(method, federation, seed=3)
    found = simulate(job_of(method, seed=3), lambda: federation, engine=engine)
    gradient = getattr(method, "processes", False)
    close(found, wanted, 1e-6 if gradient else 1e-12)
    assert [line.accuracy for line in found.history] == [line.accuracy for line in wanted.history]
    assert (found.bytes_up, found.bytes_down) == (wanted.bytes_up, wanted.bytes_down)
    assert found.data["fingerprint"] == wanted.data["fingerprint"]
