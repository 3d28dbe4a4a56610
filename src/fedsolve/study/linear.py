"""The part of a model that other programs can take over: one linear map."""

from __future__ import annotations

import numpy as np

from fedsolve.arrays import Array
from fedsolve.errors import DataError
from fedsolve.model import Model


def linear_map(model: Model) -> tuple[Array, Array]:
    """Weights (features x classes) and intercept of a model that is nothing else; others are refused."""
    arrays = {name: array for name, array in model.arrays.items() if array.ndim > 0}
    weights = arrays.get("weight")
    if weights is None or not arrays.keys() <= {"weight", "intercept"} or weights.ndim != 2:
        raise DataError(
            f"the model of {model.owner!r} ({model.method.name}) is not one linear map; export takes those of local, "
            "afl, fedhip and fedprior"
        )
    return weights, arrays.get("intercept", np.zeros(weights.shape[1]))
