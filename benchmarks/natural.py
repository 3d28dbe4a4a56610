"""Clients as they come: hospitals, minefields, kinds of pictures. The federation against training alone and pooling.

- heart disease: 4 hospitals, the first ten columns, complete rows; mean accuracy over hospitals, 20 random splits;
- landmine: 29 fields; mean area under the curve over fields, 5 random splits;
- PACS, frozen EfficientNet-Lite0 features: 4 domains; mean accuracy over domains, on the split that comes with the data
  and on 5 random ones.

Splits are 80:20 within each client. Heart and landmine columns are brought to mean 0 and deviation 1 by the sums and
sums of squares over all training rows, which a federation can add up. Everybody has an intercept and chooses on its own
training data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

import fedsolve as fs
from fedsolve.rng import derive

from .real import arrays

FILES = {
    "heart disease": "heart-disease",
    "landmine": "landmine",
    "pacs": "pacs-features",
    "pacs, split anew": "pacs-features",
}
SPLITS = {"heart disease": 20, "landmine": 5, "pacs": 1, "pacs, split anew": 5}
METHODS: dict[str, fs.Method] = {
    "alone": fs.Local(intercept=True),
    "pooled": fs.AFL(intercept=True, ridge=0.0),
    "pooled, auto": fs.AFL(ridge="auto", intercept=True),
    "fedhip": fs.FedHiP(intercept=True, beta=1.0),
    "fedprior": fs.FedPrior(),
}


def measure() -> list[dict[str, Any]]:
    """Mean over clients in percent (accuracy; area under the curve for landmine), ± standard error over splits."""
    rows = []
    for name, splits in SPLITS.items():
        found: dict[str, list[float]] = {method: [] for method in METHODS}
        for federation in federations(name, splits):
            for method, values in found.items():
                result = fs.run(METHODS[method], federation, workers=1)
                values.append(area(result, federation) if name == "landmine" else 100 * (result.accuracy.mean or 0.0))
        row: dict[str, Any] = {"data": name, "splits": splits}
        row |= {method: spread(np.array(values)) for method, values in found.items()}
        better = np.maximum(found["alone"], np.maximum(found["pooled"], found["pooled, auto"]))
        best = max(("alone", "pooled", "pooled, auto"), key=lambda method: float(np.mean(found[method])))
        row["fedprior less the better"] = spread(np.array(found["fedprior"]) - np.array(found[best]))
        row["fedprior best in"] = f"{int((np.array(found['fedprior']) >= better).sum())} of {splits}"
        rows.append(row)
        print(row, flush=True)
    return rows


def spread(values: NDArray[np.float64]) -> str:
    """Mean, and its standard error where there are several."""
    error = f" ± {values.std(ddof=1) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{error}"


def area(result: fs.Result, federation: fs.Federation) -> float:
    """Mean area under the curve over the clients whose test samples are of both classes, in percent."""
    areas = []
    for name, client in federation.clients.items():
        if client.test is not None and len(np.unique(client.test.labels)) == 2:
            scores = result.models[name].scores(client.test.inputs)
            areas.append(100 * roc_auc_score(client.test.labels, scores[:, 1] - scores[:, 0]))
    return float(np.mean(areas))


def federations(name: str, splits: int) -> Iterator[fs.Federation]:
    """One federation a split."""
    data = arrays(FILES[name])
    x, y, client = data["x"], data["y"], data["client"]
    if name == "pacs":
        yield federation(x, y, client, data["is_test"].astype(bool))
        return
    for split in range(splits):
        rng = derive(split, "natural clients", name)
        test = np.zeros(len(y), dtype=bool)
        for each in np.unique(client):
            own = rng.permutation(np.flatnonzero(client == each))
            test[own[: max(1, round(0.2 * len(own)))]] = True
        centre, scale = (0.0, 1.0) if name.startswith("pacs") else (x[~test].mean(0), x[~test].std(0))
        yield federation((x - centre) / scale, y, client, test)


def federation(x: NDArray[Any], y: NDArray[Any], client: NDArray[Any], test: NDArray[np.bool_]) -> fs.Federation:
    """Clients by their number, with the rows of the mask for testing."""

    def rows(mask: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
        return x[mask], y[mask].astype(np.int64)

    named = {
        f"client-{each}": {"train": rows((client == each) & ~test), "test": rows((client == each) & test)}
        for each in np.unique(client)
    }
    return fs.Federation.from_arrays(named, classes=int(y.max()) + 1)
