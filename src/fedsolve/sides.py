"""Ridge on the smaller side of a design: a system as large as its rows are many, or as its columns are."""

from __future__ import annotations

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Float


def smaller_gram(design: Float) -> Float:
    """The products of all rows with each other, or of all columns where these are fewer."""
    return design @ design.T if len(design) <= design.shape[1] else design.T @ design


def ridge_weights(
    design: Float, gram: Float, targets: Float, strength: float, inner: Float | None = None
) -> Float | None:
    """The weights of ridge at a strength, on the smaller side, which `gram` is of; None where that is singular.

    With `inner`, what `RidgePath.inner` has of it, they take one product where rows are no more than columns.
    """
    if inner is not None and len(design) <= design.shape[1]:
        return np.asarray(design.T @ inner)
    factor = _factor(gram, strength)
    if factor is None:
        return None
    if len(design) <= design.shape[1]:
        return np.asarray(design.T @ blas.cholesky_solve(factor, targets))
    return np.ascontiguousarray(blas.cholesky_solve(factor, design.T @ targets))


def dual(design: Float, gram: Float, targets: Float, strength: float) -> Float | None:
    """(D D' + strength)^-1 Y, of which D' times it is the weights of ridge; None where the system is singular.

    Where columns are fewer, the weights W come first, and then what they leave over: (Y - D W) / strength.
    """
    if len(design) <= design.shape[1]:
        factor = _factor(gram, strength)
        return None if factor is None else blas.cholesky_solve(factor, targets)
    weights = ridge_weights(design, gram, targets, strength)
    return None if weights is None else np.asarray((targets - design @ weights) / strength)


def _factor(gram: Float, strength: float) -> Float | None:
    system = np.array(gram, order="F")
    system[np.diag_indices_from(system)] += strength
    return system if blas.factorise(system) else None
