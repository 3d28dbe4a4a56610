"""The contexts that the round loop gives to methods, for tests that call a method's functions themselves."""

from __future__ import annotations

import numpy as np

import fedsolve as fs
from fedsolve.method import Server, Site
from fedsolve.rng import derive


def server(task: fs.Task, rng: np.random.Generator | None = None, number: int = 0) -> Server:
    return Server(task, number, rng or derive(0, "server"))


def site(
    task: fs.Task,
    train: fs.Samples,
    rng: np.random.Generator | None = None,
    *,
    counted: bool = False,
    number: int = 1,
    pace: float = 1.0,
) -> Site:
    return Site(task, train, number, rng or derive(0), counted, pace)
