"""Newton's method on the server, from sums over sites: where to begin, the next step, when to stop.

A step that makes things worse is halved. It has converged when Newton's decrement, the length of the next step in
standard errors, is below a tolerance; the step is still taken, so that what is left is about its square. Where a
combination of columns tells the classes apart without error, the likelihood has no maximum; that is noticed and said.
"""

from __future__ import annotations

import numpy as np

from fedsolve import blas
from fedsolve.arrays import Array, Arrays, Float
from fedsolve.inference import independent

OPENING, RUNNING, CONVERGED, SEPARATED, ERRORS, COMPLETE = range(6)  # where a fit stands
OFFSET = 1e-6  # share of its squares that a column keeps about its mean, below which the sums are taken again
EPS = float(np.finfo(np.float64).eps)
SLACK = 1e-11  # relative; a deviance that rises by less has not risen
# Newton's method squares a small decrement. One that only falls by about e^-1/2 a step is that of a coefficient which
# runs away while its curvature vanishes.
SMALL, SLOWLY = 1e-2, 0.3


def opened(sums: Arrays, before: Arrays, ridge: float, family_link: Float) -> dict[str, Array]:
    """Origin, basis and first coefficients from the sums of a first round.

    Where a column's spread is small beside its mean, they are taken once more, about that mean.
    """
    width = len(sums["cross"])
    lower = blas.unpack(sums["gram"], width)
    gram: Float = lower + np.tril(lower, -1).T
    about, total = before["origin"], gram[-1, -1]
    means = gram[-1, :-1] / total
    raw = np.diagonal(gram)[:-1]
    centred = gram[:-1, :-1] - np.outer(gram[-1, :-1], means)
    spread = np.diagonal(centred)
    origin = about + means
    known = {name: sums[name] for name in ("count", "weight", "sites")}
    again = bool((spread < OFFSET * raw).any()) and not about.any()
    # A column that is constant is its own mean up to rounding.
    there = spread > np.maximum((8 * EPS * origin) ** 2 * total, 16 * EPS * max(width, np.sqrt(total)) * raw)
    places = np.flatnonzero(there)
    inner = centred[np.ix_(places, places)] + ridge * np.eye(len(places))
    kept = places[list(independent(inner))] if len(places) else places
    inner = centred[np.ix_(kept, kept)] + ridge * np.eye(len(kept))
    basis = np.zeros((width - 1, len(kept)))
    if len(kept):
        scale = 1.0 / np.sqrt(np.diagonal(inner))
        factor = np.linalg.cholesky(inner * scale * scale[:, None])
        basis[kept] = np.linalg.solve(factor, np.diag(scale)).T * np.sqrt(total)
    right = sums["cross"][:-1] - np.outer(means, sums["cross"][-1])
    coefficients = np.vstack([basis.T @ right / total, sums["cross"][-1:] / total])
    return {
        **known,
        "status": np.array(OPENING if again else RUNNING),
        "origin": origin,
        "spread": np.sqrt(np.maximum(spread, 0.0) / total),
        "basis": basis,
        "coefficients": coefficients,
        "null": family_link,
        "culprit": np.array(-1),
    }


def penalty(state: Arrays, ridge: float) -> Float:
    """The matrix of ridge |w|^2 in the coordinates of the coefficients; of classes, about their mean.

    One class has coefficients of zero; which one it is does not matter to the penalty.
    """
    size, outputs = state["coefficients"].shape
    columns = np.zeros((size, size))
    columns[:-1, :-1] = ridge * state["basis"].T @ state["basis"]
    classes = np.eye(outputs) - (np.full((outputs, outputs), 1.0 / (outputs + 1)) if outputs > 1 else 0.0)
    return np.asarray(np.kron(classes, columns), dtype=np.float64)


def advanced(
    state: Arrays, sums: Arrays, *, ridge: float, tolerance: float, fixed: bool, errors: bool
) -> dict[str, Array]:
    """The next state, from the sums at the coefficients that sites were sent."""
    at, size = state["coefficients"], state["coefficients"].size
    lower = blas.unpack(sums["triangle"], size)
    punished = penalty(state, ridge)
    flat = at.T.ravel()
    objective = float(sums["deviance"] + flat @ punished @ flat)
    if "objective" in state and not objective <= float(state["objective"]) + SLACK * (abs(state["objective"]) + 1.0):
        half = 0.5 * state["step"]
        return {**state, "step": half, "coefficients": state["before"] + half}
    told = ("misfits", "triangle", "deviance", "best", "logs", "null_deviance", "departure", "ranks")
    now = {**state, **{name: sums[name] for name in told}, "objective": np.array(objective), "before": at}
    moved = _null_step(sums)
    now["null"] = state["null"] + moved
    now["null_deviance"] = np.array(sums["null_deviance"] - sums["null_score"] @ moved)  # where that step leads to
    if int(sums["misfits"]) == 0 and ridge == 0:
        return {**now, "status": np.array(SEPARATED), "culprit": np.array(_largest(state, at))}
    gradient = sums["score"].T.ravel() - punished @ flat
    step = _solve(lower + np.tril(lower, -1).T + punished, gradient)
    if step is None:
        return {**now, "status": np.array(SEPARATED), "culprit": np.array(_largest(state, at))}
    taken = step.reshape(at.shape[::-1]).T
    squared = float(step @ gradient)
    dispersion = 1.0 if fixed else float(sums["deviance"]) / max(1, int(state["count"]) - size)
    now |= {"step": taken, "coefficients": at + taken, "decrement": np.array(squared)}
    if squared <= tolerance**2 * dispersion + 1e-24 * float(sums["null_deviance"]):
        over = ("step", "before", "objective", "decrement")  # for halving a step, and of the size of rounding now
        now = {name: array for name, array in now.items() if name not in over}
        return {**now, "status": np.array(ERRORS if errors else CONVERGED)}
    creeping = SLOWLY**2 * float(state.get("decrement", np.inf)) < squared <= SMALL**2 * dispersion
    if fixed and creeping:
        return {**now, "status": np.array(SEPARATED), "culprit": np.array(_largest(state, taken))}
    return now


def _null_step(sums: Arrays) -> Float:
    step = _solve(sums["null_curvature"], sums["null_score"])
    return np.zeros(len(sums["null_score"])) if step is None else np.clip(step, -5.0, 5.0)


def _solve(matrix: Float, right: Float) -> Float | None:
    """The solution of a positive definite system, at unit diagonal; None where it is none."""
    diagonal = np.diagonal(matrix)
    if not (diagonal > 0).all():
        return None
    scale = 1.0 / np.sqrt(diagonal)
    factor = blas.cholesky(np.asfortranarray(np.tril(matrix * scale * scale[:, None])))
    if factor is None:
        return None
    solution: Float = blas.cholesky_solve(factor, (right * scale)[:, None])[:, 0] * scale
    return solution if np.isfinite(solution).all() else None


def _largest(state: Arrays, coefficients: Float) -> int:
    """The column with the largest coefficients, in units of its spread; the number of columns for the intercept."""
    sizes = np.abs(state["basis"] @ coefficients[:-1]).max(1, initial=0.0) * state["spread"]
    return int(np.argmax(sizes)) if sizes.any() else len(sizes)


def weights(state: Arrays, columns: Array, width: int, *, classes: bool) -> dict[str, Array]:
    """The linear model of all features: no weight for offset and weights, and for the first class."""
    inner = state["basis"] @ state["coefficients"][:-1]
    weight = np.zeros((width, inner.shape[1]))
    weight[columns] = inner
    intercept = state["coefficients"][-1] - state["origin"] @ inner
    if classes:
        weight, intercept = np.column_stack([np.zeros(width), weight]), np.append(0.0, intercept)
    return {"weight": weight, "intercept": intercept}
