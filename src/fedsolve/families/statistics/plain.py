"""Summaries of linear models that are no statistical ones: least squares from moments, and coefficients alone."""

from __future__ import annotations

import numpy as np

from fedsolve import inference
from fedsolve.arrays import Arrays, Float
from fedsolve.data.task import Task
from fedsolve.errors import SingularError
from fedsolve.families.statistics.units import Units
from fedsolve.moments import Moments
from fedsolve.summary import Coefficient, Summary, bare, coefficients

INTERCEPT = "intercept"


def least_squares_summary(state: Arrays, task: Task, ridge: float, title: str) -> Summary | None:
    """Least squares of numbers from a server's sums, with errors where there is no ridge; else coefficients alone."""
    if task.target.kind == "classes" or "squares" not in state:
        return model_summary(state, task, title)
    if ridge > 0:
        why = f"no standard errors: a ridge of {ridge:.4g} draws the coefficients towards zero; set ridge=0 for some"
        return model_summary(state, task, title, (why,))
    total, intercept = Moments.from_arrays(state), "intercept" in state
    units, several = Units.of(task), task.target.width > 1
    matrix = inference.in_raw_units(units.origin, units.scale) if intercept else np.diag(1.0 / units.scale)
    rows: list[Coefficient] = []
    figures: dict[str, float] = {"samples": total.count}
    tests = []
    squares = np.asarray(total.squares)
    try:
        for place, name in enumerate(task.target.names):
            cross, square = total.cross[:, place], float(squares[place])
            fit = inference.least_squares(total.gram, cross, square, total.count, intercept=intercept)
            named = (*units.names, INTERCEPT) if intercept else units.names
            rows += coefficients(named, fit.estimates.through(matrix), name if several else "")
            of = f" of {name}" if several else ""
            figures |= {
                f"R2{of}": fit.r2,
                f"adjusted R2{of}": fit.adjusted_r2,
                f"AIC{of}": fit.aic,
                f"BIC{of}": fit.bic,
            }
            figures |= {f"log-likelihood{of}": fit.log_likelihood, f"error deviation{of}": fit.variance**0.5}
            tests.append(fit.test)
    except SingularError as error:
        return model_summary(state, task, title, (str(error),))
    return Summary(title, ", ".join(task.target.names), tuple(rows), figures, tuple(tests))


def model_summary(model: Arrays, task: Task, title: str, notes: tuple[str, ...] = ()) -> Summary | None:
    """The coefficients of a linear model in the units of the table; with errors where it has a covariance."""
    weight = model.get("weight")
    if weight is None or weight.ndim != 2 or weight.shape != (task.width, task.outputs):
        return None
    units, rows = Units.of(task), list[Coefficient]()
    beside = model.get("intercept")
    names = (*units.names, INTERCEPT)
    matrix = inference.in_raw_units(units.origin, units.scale)
    if beside is None and not units.origin.any():  # moved columns have an intercept, even if it stands nowhere
        names, matrix = units.names, np.diag(1.0 / units.scale)
    for place, label in enumerate(_labels(task)):
        values: Float = weight[:, place]
        if len(names) > len(values):
            values = np.append(values, 0.0 if beside is None else beside[place])
        of = label if task.outputs > 1 else ""
        if "covariance" in model and model["covariance"].shape == (len(values), len(values)):
            rows += coefficients(names, inference.Estimates(values, model["covariance"]).through(matrix), of)
        else:
            rows += bare(names, matrix @ values, of)
    if task.target.kind == "classes" and not notes:
        notes = ("no standard errors: scores of classes are fitted as if they were numbers; glm has errors",)
    target = "" if task.target.kind == "classes" else ", ".join(task.target.names)
    return Summary(title, target, tuple(rows), {}, (), {}, notes, "z")


def _labels(task: Task) -> tuple[str, ...]:
    return tuple(task.target.names) or tuple(map(str, range(task.outputs)))
