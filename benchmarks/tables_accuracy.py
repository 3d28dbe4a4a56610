"""Numbers of clients as they come: schools and patients. A mixed model against pooling, training alone, and fedhip.

- Parkinson's: motor UPDRS of 42 patients, 18 voice measures and columns of the patient, and the time of the recording;
- school maths: 160 schools; chemistry: A-level points in 2,410 schools.

Rows are split 80:20 within each client, five times; root mean squared error over all test rows. Columns are brought to
mean 0 and deviation 1 by sums over all training rows. Everybody has an intercept and chooses on its own training data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsolve as fs
from fedsolve.rng import derive

from .natural import spread
from .real import arrays

SPLITS = 5
METHODS: dict[str, fs.Method] = {
    "pooled": fs.AFL(ridge=0.0, intercept=True),
    "alone": fs.Local(intercept=True),
    "fedhip": fs.FedHiP(intercept=True),
    "glm": fs.GLM(),
    "mixed": fs.Mixed(),
    "mixed, intercept": fs.Mixed(slopes="none"),
}
TABLES = {"parkinsons": "parkinsons_updrs", "school maths": "school_math", "school chemistry": "school_chem97"}


def measure() -> list[dict[str, Any]]:
    """Root mean squared error, ± standard error over splits, and the rounds that mixed took."""
    rows = []
    for name, file in TABLES.items():
        x, y, owner = table(file)
        found: dict[str, list[float]] = {method: [] for method in METHODS}
        rounds: list[int] = []
        for seed in range(SPLITS):
            federation = split(x, y, owner, seed)
            for method, values in found.items():
                result = fs.run(METHODS[method], federation, workers=1, evaluate_every=1000)
                values.append(result.metrics["rmse"].pooled or np.nan)
                rounds += [result.rounds] if method == "mixed" else []
        row: dict[str, Any] = {"data": name, "clients": len(np.unique(owner)), "splits": SPLITS}
        row |= {method: spread(np.array(values)) for method, values in found.items()}
        row["rounds of mixed"] = f"{min(rounds)} to {max(rounds)}"
        rows.append(row)
        print(row, flush=True)
    return rows


def table(file: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
    """Columns, target and owner of each row."""
    data = arrays(f"federated/{file}")
    x = data["x"].astype(np.float64)
    if file == "parkinsons_updrs":
        return np.column_stack([x, data["test_time"]]), data["motor_updrs"].astype(np.float64), data["client"]
    return x, data["y"].astype(np.float64), data["client"]


def split(x: NDArray[np.float64], y: NDArray[np.float64], owner: NDArray[Any], seed: int) -> fs.Federation:
    """A fifth of each client's rows held out; one row at least stays."""
    rng, train = derive(seed, "tables"), np.ones(len(y), dtype=bool)
    places = {client: np.flatnonzero(owner == client) for client in np.unique(owner)}
    for rows in places.values():
        train[rng.permutation(rows)[: min(round(0.2 * len(rows)), len(rows) - 1)]] = False
    mean, deviation = x[train].mean(0), x[train].std(0)
    z = (x - mean) / np.where(deviation > 0, deviation, 1.0)
    clients = {
        f"c{client:04d}": {
            part: (z[rows[train[rows] == kept]], y[rows[train[rows] == kept]])
            for part, kept in (("train", True), ("test", False))
        }
        for client, rows in places.items()
    }
    return fs.Federation.from_arrays(clients, target=fs.Numbers("y"))
