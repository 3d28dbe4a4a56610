"""Small federations on which gradient methods are held against FedAvg."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.checks import sample_federation

SMALL: dict[str, Any] = {"model": "mlp:8", "rounds": 3, "epochs": 2, "batch": 16, "lr": 0.05, "sgd_momentum": 0.5}


def shared(method: fs.Method, federation: fs.Federation | None = None) -> dict[str, np.ndarray]:
    """The global model of a run."""
    result = fs.run(method, federation or sample_federation(), workers=1, evaluate_every=100)
    assert result.shared is not None
    return dict(result.shared.arrays)


def distance(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> float:
    """The largest difference of two models in any number."""
    assert one.keys() == two.keys()
    return max(float(np.abs(one[name] - two[name]).max(initial=0.0)) for name in one)


def check_not_switched_off(kind: type, **settings: Any) -> None:
    """The method's own defaults must make a difference to FedAvg, beside the settings of training they share."""
    assert distance(shared(kind(**{**SMALL, **settings})), shared(fs.FedAvg(**{**SMALL, **settings}))) > 1e-4
