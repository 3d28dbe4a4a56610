"""Which method a user should get who names none: closed-form methods as they come, on clients as they come.

$FEDSOLVE_DATA is the folder of real data. Tables go in as owners have them (heart disease with all 13 columns and their
holes), columns are agreed from sums, and every method has its default settings. 20 % of each client's rows are held
out, five times (heart disease: twenty). Figures are means over clients: the area under the curve for two classes,
accuracy for more, the root mean squared error for numbers; then mean ranks over data sets, per split and averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsolve as fs
from fedsolve.data.table import Table

from .natural import spread
from .real import arrays
from .tables_accuracy import table

CLASSES: tuple[str, ...] = ("local", "afl", "fedhip", "apfl", "fedprior", "glm")
NUMBERS: tuple[str, ...] = ("local", "afl", "fedhip", "apfl", "fedprior", "glm", "mixed")
HOLED = "heart disease, 13 columns"


def heart(columns: int) -> fs.Table:
    """920 patients of four hospitals: all 13 columns, or those of the first ten that are complete."""
    data = arrays("federated/heart_disease")
    return _frame(data["x"][:, :columns], data["feature_names"][:columns].tolist(), data["y"], data["client"])


def _frame(x: NDArray[Any], names: list[str], y: NDArray[Any], client: NDArray[Any]) -> fs.Table:
    from fedsolve.features.cells import Cells

    cells = Cells(tuple(names), tuple(np.asarray(x[:, place], dtype=np.float64) for place in range(x.shape[1])))
    return Table.make("table", cells, y.astype(np.int64), client=client)


def landmine() -> fs.Table:
    """29 fields; six samples in a hundred are mines."""
    data = arrays("federated/landmine")
    return _frame(data["x"], [f"c{place}" for place in range(data["x"].shape[1])], data["y"], data["client"])


def numbers(file: str) -> Callable[[], fs.Table]:
    """A table whose target is one number."""

    def read() -> fs.Table:
        x, y, owner = table(file)
        return Table.make(file, x, y.reshape(len(y), 1), client=owner, target=fs.Numbers("y"))

    return read


TABLES: dict[str, tuple[Callable[[], fs.Table], str, int, str]] = {
    HOLED: (lambda: heart(13), "by-client", 20, "auc"),
    "heart disease, 10 columns": (lambda: heart(10), "by-client", 20, "auc"),
    "landmine": (landmine, "by-client", 5, "auc"),
    "digits, dirichlet 0.1": (lambda: fs.load("digits"), "dirichlet:0.1", 5, "accuracy"),
    "digits, iid": (lambda: fs.load("digits"), "iid", 5, "accuracy"),
    "parkinsons": (numbers("parkinsons_updrs"), "by-client", 5, "rmse"),
    "school maths": (numbers("school_math"), "by-client", 5, "rmse"),
    "school chemistry": (numbers("school_chem97"), "by-client", 5, "rmse"),
}


def measure() -> list[dict[str, Any]]:
    """Mean over clients, ± standard error over splits, of every method with its defaults; then mean ranks."""
    rows, ranks = [], dict[str, list[dict[str, float]]]()
    for name, (read, partition, splits, metric) in TABLES.items():
        whole = read()
        methods = NUMBERS if metric == "rmse" else CLASSES
        found: dict[str, list[float]] = {method: [] for method in methods}
        for seed in range(splits):
            federation = whole.split(partition, seed=seed)
            if metric == "rmse":  # others are tables, whose columns are standardised, or pictures
                federation = federation.fitted("standardise")
            for method in methods:
                result = fs.run(fs.create(method), federation, workers=1, evaluate_every=1000)
                found[method].append(result.metrics[metric].mean or np.nan)
        kind = "numbers" if metric == "rmse" else "classes"
        figures = np.array([found[method] for method in methods]) * (1 if metric == "rmse" else -1)
        order = np.argsort(np.argsort(figures, axis=0), axis=0)
        if name != "heart disease, 10 columns":  # the same patients as those with all columns
            ranks.setdefault(kind, []).append(dict(zip(methods, (1 + order.mean(1)).tolist(), strict=True)))
        row: dict[str, Any] = {"data": name, "metric": metric, "splits": splits}
        times = 1.0 if metric == "rmse" else 100.0
        row |= {method: spread(times * np.array(values)) for method, values in found.items()}
        rows.append(row)
        print(row, flush=True)
    for kind, tables in ranks.items():
        mean = {method: f"{np.mean([each[method] for each in tables]):.2f}" for method in tables[0]}
        rows.append({"data": f"mean rank, {kind}", "metric": "rank", "splits": len(tables), **mean})
        print(rows[-1], flush=True)
    return rows
