"""Fixed settings of FedHiP, AFL and APFL on a federation: what each would have on the test samples.

One decomposition a client serves a grid; `tests/methods/test_fresh.py` holds all of them to whole runs. A figure is the
mean over clients: accuracy, or the root mean squared error over that of the best constant answers (`Judge`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsolve as fs
from fedsolve.arrays import Float
from fedsolve.families.ridge import linear
from fedsolve.features.maps import RandomProjection
from fedsolve.method import Server, Site
from fedsolve.rng import derive
from fedsolve.solver import RidgePath, solve, whiten

from .personal import apfl_grid as grid_of_streams

# FedHiP's table II has 0, 5, ..., 60; the others are beyond it, where clients differ more than in the paper.
ALPHAS = (0.0, 1.0, *map(float, range(5, 65, 5)), 100.0, 200.0, 1000.0)
RIDGES = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)  # of AFL: its table 3, and a decade on either side
GAMMAS, BETAS, LAMBDAS = (0.01, 1.0, 100.0), (0.1, 1.0, 10.0, 100.0, 1000.0), (0.1, 0.3, 0.5, 0.7, 0.9)

Figures = dict[str, float]


@dataclass(frozen=True)
class Judge:
    """The figure of predictions on everybody's test samples."""

    federation: fs.Federation

    @property
    def tested(self) -> list[str]:
        """The clients with test samples, in order."""
        return [name for name, client in sorted(self.federation.clients.items()) if len(client.test)]

    def __call__(self, scores: Iterable[NDArray[Any]]) -> float:
        """The mean over clients, whose scores come in order."""
        clients = [self.federation.clients[name] for name in self.tested]
        if self.federation.task.target.kind == "classes":
            right = [(s.argmax(1) == c.test.labels).mean() for s, c in zip(scores, clients, strict=True)]
            return float(np.mean(right))
        errors = [rmse(s, c.test.labels) for s, c in zip(scores, clients, strict=True)]
        constant = [rmse(c.train.labels.mean(0), c.test.labels) for c in clients]
        return float(np.mean(errors) / np.mean(constant))


def rmse(predicted: NDArray[Any], truth: NDArray[Any]) -> float:
    return float(np.sqrt(np.square(predicted - truth).mean()))


def linear_grids(federation: fs.Federation) -> dict[str, Figures]:
    """AFL's ridges and FedHiP's alphas; everything else of both as it comes.

    A personal model of FedHiP is ridge towards the global one in the metric of H = A + beta I: with Q the rows where H
    is the identity, its scores are those of the global one plus alpha Q_test (I + alpha Q'Q)^-1 Q' (Y - F G).
    """
    task, judge = federation.task, Judge(federation)
    here = Server(task, 1, derive(0, "server"))
    total = reduce(
        add,
        (linear.moments(Site(task, c.train, 1, derive(0)), intercept=True) for c in federation.clients.values()),
    )
    tests = [federation.clients[name].test for name in judge.tested]
    afl = {}
    for ridge in RIDGES:
        state = fs.AFL(ridge=ridge).aggregate({}, total.arrays(), here)
        afl[f"ridge={ridge:g}"] = judge(linear.scores(state, test.inputs) for test in tests)
    state = fs.FedHiP().aggregate({}, total.arrays(), here)
    scores: dict[float, list[Float]] = {alpha: [] for alpha in ALPHAS}
    for name in judge.tested:
        client = federation.clients[name]
        train, test = (linear.design(samples, intercept=True) for samples in (client.train, client.test))
        both = whiten(total, float(state["beta"]), np.vstack([train, test]), intercept=True)
        own, other = both[: len(train)], both[len(train) :]
        rest = task.target.rows(client.train.labels) - linear.scores(state, client.train.inputs)
        path, prior = RidgePath.of(own, rest), linear.scores(state, client.test.inputs)
        along = other @ (own.T @ path.basis)
        for alpha in ALPHAS:
            scores[alpha].append(prior + along @ (alpha / (1.0 + alpha * path.squares)[:, None] * path.projected))
    return {"afl": afl, "fedhip": {f"alpha={alpha:g}": judge(found) for alpha, found in scores.items()}}


def apfl_grid(federation: fs.Federation, seed: int) -> Figures:
    """APFL's gamma, beta and lam, all fixed, at its own widths; for classes alone, whose shared stream has no ones."""
    method, clients = fs.APFL(), [federation.clients[name] for name in sorted(federation.clients)]
    task = federation.task
    seeds = method.init_server(Server(task, 0, derive(seed, "server")))["seeds"]
    parts = [part for client in clients for part in (client.train, client.test)]
    x = np.concatenate([part.inputs.reshape(len(part), task.width) for part in parts if len(part)])
    y = np.concatenate([part.labels for part in parts])
    ends = np.cumsum([0, *map(len, parts)])
    places = [np.arange(start, end) for start, end in pairwise(ends)]
    phi, psi = (
        RandomProjection(width, act, int(each))(x)
        for width, act, each in (
            (method.d_primary, method.act_primary, seeds[0]),
            (method.d_refine, method.act_refine, seeds[1]),
        )
    )
    train = np.concatenate(places[::2])
    total = fs.Moments.of(phi[train], y[train], classes=task.classes)
    priors = {f"gamma={gamma:g}": phi @ solve(total, gamma, solver="auto").weights for gamma in GAMMAS}
    split = [(own, held) for own, held in zip(places[::2], places[1::2], strict=True) if len(held)]
    return grid_of_streams({method.d_refine: psi}, y, split, priors, BETAS, LAMBDAS)
