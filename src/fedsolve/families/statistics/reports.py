"""Summaries and warnings of statistical models, from a server's state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsolve import blas, inference
from fedsolve.arrays import Arrays, Float
from fedsolve.data.task import Task
from fedsolve.errors import SingularError
from fedsolve.families.statistics import newton, plain
from fedsolve.families.statistics.distributions import Distribution
from fedsolve.families.statistics.mixing import Mixing
from fedsolve.families.statistics.units import Roles
from fedsolve.summary import Coefficient, Summary, bare, coefficients

INTERCEPT = "intercept"
SHOWN = 5  # columns that a sentence names


def glm_warnings(state: Arrays, roles: Roles, rounds: int) -> tuple[str, ...]:
    """What a user should know before trusting the coefficients."""
    if "basis" not in state:
        return ()
    found, status, names = [], int(state["status"]), (*roles.names, INTERCEPT)
    culprit = names[int(state["culprit"])]
    if status == newton.SEPARATED and culprit == INTERCEPT:
        found.append(
            "a class has all the samples, or none: no finite coefficients are likeliest; leave empty classes out"
        )
    elif status == newton.SEPARATED:
        found.append(
            f"samples are told apart without error, most of all by {culprit!r}: no finite coefficients are likeliest, "
            "and these are only where it stopped; leave that column out, or set ridge=1"
        )
    elif status in (newton.OPENING, newton.RUNNING):
        found.append(f"glm had not converged after {rounds} rounds; allow more: --rounds {2 * rounds}")
    return tuple(found)


def _dropped(state: Arrays, roles: Roles) -> tuple[str, ...]:
    """A sentence on the columns that have no coefficient of their own."""
    names = [name for name, row in zip(roles.names, state["basis"], strict=True) if not row.any()]
    if not names:
        return ()
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (f"constant, or repeated by columns before them: {', '.join(map(repr, names[:SHOWN]))}{more}",)


def glm_summary(
    state: Arrays, task: Task, family: Distribution, roles: Roles, *, ridge: float, errors: str
) -> Summary | None:
    """Coefficients in the units of the table, errors, figures of the fit, and whether sites differ."""
    if "deviance" not in state:
        return plain.model_summary(state, task, f"glm, {family.words}", ("a model has no errors; its run has",))
    size, outputs = state["coefficients"].shape
    count, rank = int(state["count"]), size * outputs
    deviance, null_deviance = float(state["deviance"]), float(state["null_deviance"])
    dispersion = 1.0 if family.fixed else deviance / (count - rank) if count > rank else math.nan
    notes = list(glm_warnings(state, roles, 0)) if int(state["status"]) == newton.SEPARATED else []
    covariance, words = _covariance(state, dispersion, ridge, errors)
    rows: list[Coefficient] = []
    several = task.target.kind == "classes" and outputs > 1
    labels = task.class_names or tuple(map(str, range(task.classes)))
    names = (*roles.names, INTERCEPT)
    matrix, there = _to_table(state, roles)
    freedom = math.inf if family.fixed or errors != "classical" else count - rank
    for output in range(outputs):
        values = matrix @ state["coefficients"][:, output]
        values = np.where(there, values, np.nan)
        of = str(labels[output + 1]) if several else ""
        if covariance is None:
            rows += bare(names, values, of)
            continue
        part = slice(output * size, (output + 1) * size)
        moved = matrix @ covariance[part, part] @ matrix.T
        moved[~there] = moved[:, ~there] = np.nan
        rows += coefficients(names, inference.Estimates(values, moved, freedom), of)
    best, logs = float(state["best"]), float(state["logs"])
    if family.fixed:
        likelihood, null = best - 0.5 * deviance, best - 0.5 * null_deviance
        explained = {"pseudo R2": 1.0 - likelihood / null} if null else {}
    else:
        likelihood = inference.gaussian_log_likelihood(deviance, count) + 0.5 * logs if deviance > 0 else math.inf
        r2 = 1.0 - deviance / null_deviance if null_deviance > 0 else 0.0
        adjusted = 1.0 - (count - 1) / (count - rank) * (1.0 - r2) if count > rank else math.nan
        explained = {"R2": r2, "adjusted R2": adjusted}
    criteria = {"AIC": 2 * rank - 2 * likelihood, "BIC": math.log(count) * rank - 2 * likelihood}
    fit = {"deviance": deviance, "null deviance": null_deviance, "log-likelihood": likelihood}
    figures = {"samples": count, "sites": int(state["sites"]), **explained, **fit, **criteria}
    figures |= {} if family.fixed else {"error deviation": math.sqrt(dispersion)}
    tests = _tests(state, family, count, rank, deviance, null_deviance, outputs, ridge)
    if several:
        notes.append(f"log-odds against {labels[0]!r}")
    elif task.target.kind == "classes":
        notes.append(f"log-odds of {labels[1]!r} against {labels[0]!r}")
    target = "" if task.target.kind == "classes" else task.target.names[0]
    dropped = _dropped(state, roles)
    shown = {name: value for name, value in figures.items() if math.isfinite(value)}
    statistic = "z" if math.isinf(freedom) else "t"
    kind = "multinomial " * several
    return Summary(
        f"glm, {kind}{family.words}", target, tuple(rows), shown, tests, {}, (*words, *notes, *dropped), statistic
    )


def mixed_summary(state: Arrays, model: Mixing) -> Summary | None:
    """Coefficients of all in the units of the table, variances of the effects, and the likelihood."""
    if "value" not in state:
        words = ("errors are those of the coefficients given the data of whoever the model is of",)
        return plain.model_summary(state, model.task, "linear mixed model", words)
    task, roles, kept = model.task, model.roles, np.flatnonzero(state["spread"])
    structure = model.structure(kept)
    units, variance = roles.units, float(state["variance"])
    raw = inference.in_raw_units(units.origin, units.scale)
    count, size = int(state["count"]), len(kept) + 1
    values, covariance = np.append(state["weight"][:, 0], state["intercept"]), np.array(state["covariance"])
    there = np.append(np.isin(np.arange(task.width), roles.columns[kept]), True)
    moved = raw @ covariance @ raw.T
    moved[~there] = moved[:, ~there] = np.nan
    found = inference.Estimates(np.where(there, raw @ values, np.nan), moved)
    names = (*units.names, INTERCEPT)
    lower = structure.factor(state["free"])
    place = np.zeros((task.width + 1, len(lower)))
    place[:, :] = (raw @ model.in_features(state))[:, structure.columns]
    spread = variance * (place @ lower @ lower.T @ place.T)
    used = np.append(roles.columns[kept[structure.columns[:-1]]], task.width)
    components = {f"var {names[i]}": float(spread[i, i]) for i in used}
    if not model.full:
        components[f"var {INTERCEPT}"] = variance * float(lower[-1, -1]) ** 2
    if model.full:
        components |= {f"cov {names[i]}, {names[j]}": float(spread[i, j]) for n, i in enumerate(used) for j in used[:n]}
    freedom = count - size if model.reml else count
    # The restricted likelihood depends on the units of the columns: as statsmodels has it, of those in the table.
    scale = 2.0 * float(np.log(state["spread"][kept] * units.scale[roles.columns[kept]]).sum()) if model.reml else 0.0
    constant = freedom * (math.log(2.0 * math.pi) + 1.0 - math.log(freedom))
    likelihood = -0.5 * (float(state["value"]) + scale + constant)
    figures = {"samples": count, "sites": int(state["sites"]), "log-likelihood": likelihood}
    if not model.reml:
        parameters = size + len(state["free"]) + 1
        figures |= {"AIC": 2 * parameters - 2 * likelihood, "BIC": math.log(count) * parameters - 2 * likelihood}
    notes = ["by restricted likelihood" if model.reml else "by likelihood"]
    if not model.full and len(used) > 1:
        notes.append("random effects are independent of each other, and that of the intercept is at the columns' means")
    named = coefficients(names, found)
    title, target = "linear mixed model", task.target.names[0]
    return Summary(title, target, named, figures, (), {**components, "var error": variance}, tuple(notes), "z")


def _covariance(state: Arrays, dispersion: float, ridge: float, errors: str) -> tuple[Float | None, tuple[str, ...]]:
    """The covariance of the coefficients, classes first, and words on where it is from, or why there is none."""
    if ridge > 0:
        return None, ("no standard errors: a ridge draws the coefficients towards zero, by how much nobody knows",)
    # Where samples overlap all the same, the errors of columns that do not run away are as good as any.
    if (int(state["status"]) == newton.SEPARATED and not state["misfits"]) or not dispersion > 0:
        return None, ()
    curvature = _square(state["triangle"], state["coefficients"].size)
    try:
        inverse = inference.inverse_of(curvature)
    except SingularError as error:
        return None, (str(error),)
    if "meat" not in state:
        return dispersion * inverse, ()
    count, sites, rank = int(state["count"]), int(state["sites"]), len(curvature)
    if errors == "sites" and sites < 2:
        return None, ("no standard errors: those clustered by site need two sites",)
    by_site = errors == "sites"
    factor = inference.few_groups(sites, count, rank) if by_site else inference.small_sample(count, rank)
    words = f"clustered by site ({sites} sites)" if by_site else "robust (HC1)"
    return factor * inference.sandwich(inverse, _square(state["meat"], rank)), (f"standard errors: {words}",)


def _tests(
    state: Arrays,
    family: Distribution,
    count: int,
    rank: int,
    deviance: float,
    null_deviance: float,
    outputs: int,
    ridge: float,
) -> tuple[inference.Verdict, ...]:
    """Whether the columns matter at all, and whether sites differ."""
    tests = []
    more, ranks, departure = rank - outputs, int(state["ranks"]), float(state["departure"])
    if ridge > 0 or int(state["status"]) == newton.SEPARATED:
        return ()
    if more and family.fixed:
        tests.append(inference.Verdict.chi_square("all coefficients zero", null_deviance - deviance, more))
    elif more and count > rank and deviance > 0:
        statistic = (null_deviance - deviance) / more / (deviance / (count - rank))
        tests.append(inference.Verdict.f("all coefficients zero", statistic, more, count - rank))
    if ranks > rank and family.fixed:
        tests.append(inference.score_test(departure, rank, ranks))
    elif count > ranks > rank and deviance > departure:
        tests.append(inference.differ(departure, deviance, count, rank, ranks))
    return tuple(tests)


def _to_table(state: Arrays, roles: Roles) -> tuple[Float, NDArray[np.bool_]]:
    """The matrix from coefficients of z to those of the table's columns and the intercept, and which are there."""
    basis, origin = state["basis"], state["origin"]
    inner = np.zeros((len(basis) + 1, basis.shape[1] + 1))
    inner[:-1, :-1], inner[-1, :-1], inner[-1, -1] = basis, -origin @ basis, 1.0
    units = roles.units
    raw = inference.in_raw_units(units.origin[roles.columns], units.scale[roles.columns])
    return raw @ inner, np.append(basis.any(1), True)


def _square(triangle: Float, size: int) -> Float:
    lower = blas.unpack(triangle, size)
    return lower + np.tril(lower, -1).T
