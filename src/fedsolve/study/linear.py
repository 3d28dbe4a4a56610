"""The part of a model that other programs can take over: one linear map."""

from __future__ import annotations

import numpy as np

from fedsolve.arrays import Array
from fedsolve.errors import DataError
from fedsolve.model import Model
from fedsolve.rng import derive


def linear_map(model: Model) -> tuple[Array, Array]:
    """Weights (features x classes) and intercept of a model that is nothing else; others are refused."""
    arrays = {name: array for name, array in model.arrays.items() if array.ndim > 0}
    weights = arrays.get("weight")
    if (
        weights is None
        or not arrays.keys() <= {"weight", "intercept", "covariance"}
        or weights.ndim != 2
        or not _linear(model)
    ):
        raise DataError(
            f"the model of {model.owner!r} ({model.method.name}) is not one linear map; export takes those of local, "
            "afl, fedhip and fedprior"
        )
    return weights, arrays.get("intercept", np.zeros(weights.shape[1]))


def _linear(model: Model) -> bool:
    """Whether predictions are the linear map and nothing else: no link, and no column that is added as it is."""
    weight = model.arrays["weight"]
    rows = derive(0, "linear").normal(size=(3, len(weight)))
    wanted = rows @ weight + model.arrays.get("intercept", np.zeros(weight.shape[1]))
    found = model.method.predict(model.arrays, rows.reshape(3, *model.task.shape), model.task)
    return found.shape == wanted.shape and bool(np.allclose(found, wanted, rtol=1e-6, atol=1e-9))
