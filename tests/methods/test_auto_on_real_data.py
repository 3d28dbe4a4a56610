"""alpha=auto on real data: without a look at the test set, close to the alpha that does best on it."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.rng import derive

ALPHAS = (0.0, 1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 100.0, 200.0)


def fashion(data: ModuleType, rows: int | None = None, features: int = 512) -> fs.Table:
    """Fashion-MNIST through random ReLU features."""
    x, y, _, _ = data.mnist("fashion_mnist")
    x = x[:rows].reshape(-1, 784).astype(np.float64) / 255.0
    rng = derive(0, "random features")
    hidden = x @ rng.normal(scale=2 / 28, size=(784, features)) + rng.normal(scale=0.3, size=features)
    return fs.Table.make("fashion-mnist, random features", np.maximum(hidden, 0.0), y[:rows])


def cifar100(data: ModuleType, rows: int | None = None, columns: int | None = None) -> fs.Table:
    """CIFAR-100 through a frozen EfficientNet-Lite0."""
    x, y, _, _ = data.cifar_features("cifar100")
    x = x[:rows] if columns is None else data.project(x[:rows], columns)
    return fs.Table.make("cifar-100 features", x, y[:rows])


def points_below_best(table: fs.Table, spread: float, clients: int, seed: int) -> tuple[float, float, float]:
    """Mean accuracy with alpha=auto, the best fixed alpha on the test set, and its mean accuracy; in points."""
    federation = table.split(fs.dirichlet(spread), clients=clients, seed=seed)
    auto = fs.run(fs.FedHiP(beta=1.0, intercept=False), federation).accuracy.mean
    fixed = {
        alpha: fs.run(fs.FedHiP(alpha=alpha, beta=1.0, intercept=False), federation).accuracy.mean for alpha in ALPHAS
    }
    best = max(fixed, key=lambda alpha: fixed[alpha] or 0.0)
    print(f"{table.name}, dirichlet:{spread:g}, seed {seed}: auto {auto:.4f}, best {fixed[best]:.4f} at {best:g}")
    return 100 * (auto or 0.0), best, 100 * (fixed[best] or 0.0)


@pytest.mark.parametrize("spread", [0.1, pytest.param(1.0, marks=pytest.mark.long)])
def test_small(real_data: ModuleType, spread: float) -> None:
    """A part of both sets, in seconds; the whole is below."""
    for table in (fashion(real_data, 12_000, 128), cifar100(real_data, 12_000, 128)):
        auto, _, best = points_below_best(table, spread, clients=30, seed=0)
        assert auto > best - 1.0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("spread", [0.1, 1.0])
@pytest.mark.parametrize("name", ["fashion", "cifar100"])
def test_within_half_a_point_of_the_best_fixed_alpha(real_data: ModuleType, name: str, spread: float) -> None:
    table = {"fashion": fashion, "cifar100": cifar100}[name](real_data)
    auto, _, best = points_below_best(table, spread, clients=50, seed=0)
    assert auto > best - 0.5
