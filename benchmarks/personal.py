"""Personal models on CIFAR-100 features: what is chosen without the test set, against the best fixed setting on it.

Mean accuracy over clients, each with its own 80:20 split. `auto` columns are whole runs of the library. The best fixed
settings were picked *on the test set*, by their mean over the seeds, among the ranges that the papers give. A grid of
whole runs would take days, so one decomposition serves a grid: `fedhip_grid` and `apfl_grid`, held to whole runs by
`tests/methods/test_grids.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsolve as fs
from fedsolve.features.maps import RandomProjection
from fedsolve.methods import _ridge
from fedsolve.rng import derive
from fedsolve.solver import RidgePath, solve, whiten

from .real import loaders

CLIENTS, SPREADS, SEEDS = (50, 100), (0.1, 0.5, 1.0), (0, 1, 2)
ALPHAS = tuple(float(alpha) for alpha in range(0, 65, 5))  # FedHiP, table II
LAMBDAS = (0.1, 0.3, 0.5, 0.7, 0.9)  # APFL, table 2
WIDTHS_PRIMARY = (1024, 2048, 4096, 8192)  # APFL: best from 2^11 to 2^13
WIDTHS_REFINE = (1024, 2048)  # APFL: best from 2^10 to 2^11
GAMMAS = (0.01, 1.0, 100.0)  # APFL: best at 0.01, insensitive
BETAS = (0.1, 1.0, 10.0, 100.0, 1000.0)  # APFL: best from 1 to 10, at a scale of the projection that it does not state
WIDTH = 2048  # of the shared stream of APFL with everything else auto
WIDE = 8192  # the widest of APFL's, for fedprior on random features too
# One line a figure, so that a stopped run goes on; remove the file to measure anew.
DONE = Path(__file__).parent / "results" / "personal.jsonl"

Floats = NDArray[np.float64]


def measure() -> list[dict[str, Any]]:
    """Mean accuracy over clients in percent: auto against the best fixed settings, CIFAR-100 features."""
    x, y, _, _ = loaders().cifar_features("cifar100")
    done = [json.loads(line) for line in DONE.read_text().splitlines()] if DONE.exists() else []
    for seed in SEEDS:
        for clients in CLIENTS:
            for spread in SPREADS:
                where = {"clients": clients, "spread": spread, "seed": seed}
                federation = fs.Table.make("cifar-100 features", x, y).split(
                    fs.dirichlet(spread), clients=clients, seed=seed
                )
                for name, method in autos().items():
                    if not known(done, where, name):
                        accuracy = fs.run(method, federation, seed=seed).accuracy.mean
                        keep(done, where, name, {"auto": accuracy})
                if not known(done, where, "fedprior wide"):
                    wide = federation.with_features(RandomProjection(WIDE, "relu", seed))
                    keep(done, where, "fedprior wide", {"auto": fs.run(fs.FedPrior(), wide, seed=seed).accuracy.mean})
                if not known(done, where, "fedhip grid"):
                    keep(done, where, "fedhip grid", fedhip_grid(federation))
        settings = [(clients, spread) for clients in CLIENTS for spread in SPREADS]
        wanted = [s for s in settings if not known(done, {"clients": s[0], "spread": s[1], "seed": seed}, "apfl grid")]
        for (clients, spread), grid in apfl_grids(x, y, wanted, seed):
            keep(done, {"clients": clients, "spread": spread, "seed": seed}, "apfl grid", grid)
    return [table_row(done, clients, spread) for clients in CLIENTS for spread in SPREADS]


def autos() -> dict[str, fs.Method]:
    """The methods that are run as they are."""
    return {
        "local": fs.Local(),
        "afl": fs.AFL(),
        "fedhip": fs.FedHiP(),
        "apfl": fs.APFL(d_primary=WIDTH),
        "fedprior": fs.FedPrior(),
    }


def table_row(done: list[dict[str, Any]], clients: int, spread: float) -> dict[str, Any]:
    """Means over the seeds, and the standard error of each."""

    def figures(name: str) -> dict[str, list[float]]:
        lines = [d for d in done if (d["clients"], d["spread"], d["name"]) == (clients, spread, name)]
        keys = [key for key in (lines[0]["figures"] if lines else ()) if all(key in line["figures"] for line in lines)]
        return {key: [100 * line["figures"][key] for line in lines] for key in keys}

    shared, same = figures("apfl grid"), f"d_primary={WIDTH} "
    columns = {
        "local": figures("local"),
        "afl": figures("afl"),
        "fedhip best fixed": figures("fedhip grid"),
        "fedhip": figures("fedhip"),
        "apfl best fixed": shared,
        f"apfl best fixed, width {WIDTH}": {key: value for key, value in shared.items() if key.startswith(same)},
        f"apfl, width {WIDTH}": figures("apfl"),
        "fedprior": figures("fedprior"),
        f"fedprior, random:{WIDE}": figures("fedprior wide"),
    }
    row: dict[str, Any] = {"clients": clients, "dirichlet": spread}
    for title, found in columns.items():
        if found:
            best = max(found, key=lambda key: float(np.mean(found[key])))
            row[title] = mean(found[best])
            row |= {f"{title} at": best} if "fixed" in title else {}
    return row


def mean(values: list[float]) -> str:
    """The mean, with its standard error where there are several."""
    error = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{error}"


def known(done: list[dict[str, Any]], where: dict[str, Any], name: str) -> bool:
    return any(all(line[key] == value for key, value in (where | {"name": name}).items()) for line in done)


def keep(done: list[dict[str, Any]], where: dict[str, Any], name: str, figures: dict[str, Any]) -> None:
    done.append(where | {"name": name, "figures": figures})
    with DONE.open("a") as file:
        file.write(json.dumps(done[-1]) + "\n")
    best = max(figures, key=lambda key: figures[key])
    print(*where.values(), name, best, f"{100 * figures[best]:.2f}", flush=True)


def fedhip_grid(federation: fs.Federation, beta: float = 1.0, alphas: tuple[float, ...] = ALPHAS) -> dict[str, float]:
    """Mean accuracy over clients for each alpha, from one decomposition a client.

    A personal model is ridge towards the global one in the metric of H = A + beta I: with Q the rows where H is the
    identity, its scores are those of the global one plus alpha Q_test (I + alpha Q'Q)^-1 Q' (Y - F G).
    """
    parts = [_ridge.moments(federation.task, client.train) for client in federation.clients.values()]
    total = fs.Moments.zero(parts[0].features, parts[0].targets, parts[0].space)
    for part in parts:
        total = total + part
    weights = solve(total, beta, solver="auto").weights
    right: dict[float, list[float]] = {alpha: [] for alpha in alphas}
    for client in federation.clients.values():
        if client.test is None or not len(client.test):
            continue
        train, test = (_ridge.design(samples, intercept=False) for samples in (client.train, client.test))
        both = whiten(total, beta, np.vstack([train, test]))
        own, other = both[: len(train)], both[len(train) :]
        path = RidgePath.of(own, _ridge.one_hot(client.train.labels, federation.task.classes) - train @ weights)
        along = other @ (own.T @ path.basis)
        for alpha in alphas:
            moved = along @ (alpha / (1.0 + alpha * path.squares)[:, None] * path.projected)
            right[alpha].append(float((np.argmax(test @ weights + moved, axis=1) == client.test.labels).mean()))
    return {f"alpha={alpha:g}": float(np.mean(values)) for alpha, values in right.items()}


def apfl_grids(
    x: NDArray[Any], y: NDArray[Any], settings: list[tuple[int, float]], seed: int
) -> Iterator[tuple[tuple[int, float], dict[str, float]]]:
    """Mean accuracy over clients for each point of APFL's grid, for each setting (clients, Dirichlet).

    The moments of the shared stream over all rows are computed once; each setting takes its test rows out of them.
    """
    if not settings:
        return
    rows = fs.Table.make("rows", np.arange(len(y), dtype=np.float64)[:, None], y)
    splits = {s: split_rows(rows.split(fs.dirichlet(s[1]), clients=s[0], seed=seed)) for s in settings}
    task_seeds = fs.APFL().init_server(None, derive(seed, "server"))["seeds"]  # type: ignore[arg-type]
    priors = {setting: {} for setting in settings}  # type: dict[tuple[int, float], dict[str, NDArray[Any]]]
    for width in WIDTHS_PRIMARY:
        phi = RandomProjection(width, "relu", int(task_seeds[0]))(x)
        every = fs.Moments.of(phi, y)
        for setting, split in splits.items():
            out = np.concatenate([test for _, test in split])
            total = every - fs.Moments.of(phi[out], y[out], classes=every.targets)
            for gamma in GAMMAS:
                scores = phi @ solve(total, gamma, solver="auto").weights
                priors[setting][f"d_primary={width} gamma={gamma:g}"] = scores.astype(np.float32)
        del phi
    refine = {width: RandomProjection(width, "relu", int(task_seeds[1]))(x) for width in WIDTHS_REFINE}
    for setting, split in splits.items():
        yield setting, apfl_grid(refine, y, split, priors.pop(setting))


def split_rows(federation: fs.Federation) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Training and test rows of each client, from a federation whose only feature is the row."""
    return [
        (client.train.inputs[:, 0].astype(int), client.test.inputs[:, 0].astype(int))
        for client in federation.clients.values()
        if client.test is not None and len(client.test)
    ]


def apfl_grid(
    refine: dict[int, Floats],
    y: NDArray[Any],
    split: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
    priors: dict[str, NDArray[Any]],
    betas: tuple[float, ...] = BETAS,
    lambdas: tuple[float, ...] = LAMBDAS,
) -> dict[str, float]:
    """Mean accuracy over clients of each shared stream with each refinement; `priors` are scores on all rows."""
    right: dict[str, list[float]] = {}
    for train, test in split:
        for width, psi in refine.items():
            path = RidgePath.of(psi[train], np.zeros((len(train), 1)))
            along = psi[test] @ (psi[train].T @ path.basis)
            for shared, scores in priors.items():
                known = scores[test].astype(np.float64)
                residuals = _ridge.one_hot(y[train], known.shape[1]) - scores[train]
                projected = path.basis.T @ residuals
                for beta in betas:
                    moved = along @ (projected / (path.squares + beta)[:, None])  # APFL (13)
                    for lam in lambdas:
                        hits = float((np.argmax(known + lam * moved, axis=1) == y[test]).mean())
                        right.setdefault(f"{shared} d_refine={width} beta={beta:g} lam={lam:g}", []).append(hits)
    return {key: float(np.mean(values)) for key, values in right.items()}
