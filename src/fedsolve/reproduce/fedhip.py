"""FedHiP: tables I to III, figures 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping

from fedsolve.reproduce.cells import NOTHING, cell_of, published, seeds_of
from fedsolve.reproduce.personal import base_of, efficiency, methods_by_split, note_of
from fedsolve.reproduce.recipe import Builder, Recipe, Scale


def table_1(name: str, scale: Scale) -> Recipe:
    """Methods by split, with alpha chosen by each client; the paper's is the best on the test set."""
    parameters = {"beta": 0.0} if scale == "paper" else NOTHING
    return methods_by_split("FedHiP", name, "FedHiP, table I (ours: alpha=auto)", scale, parameters)


def table_2(name: str, scale: Scale) -> Recipe:
    """The accuracy for each alpha, without beta."""
    return _sweep(name, "FedHiP, table II: alpha, beta = 0, 50 clients", scale, "table2", {"beta": 0.0})


def table_3(name: str, scale: Scale) -> Recipe:
    """The accuracy for each beta, with the alpha of the paper."""
    return _sweep(name, "FedHiP, table III: beta, alpha = 20, 50 clients", scale, "table3", {"alpha": 20.0})


def _sweep(name: str, title: str, scale: Scale, table: str, fixed: Mapping[str, float]) -> Recipe:
    """One row per split, one column per value of the parameter that varies."""
    sweep = published()["FedHiP"][table]
    ((parameter, values),) = sweep["grid"].items()
    cells = [
        cell_of(
            f"Dirichlet {row['dirichlet']}",
            f"{parameter} = {value:g}",
            figure,
            base_of(scale, "FedHiP", 50, row["dirichlet"]),
            "FedHiP",
            seeds=seeds_of(scale),
            parameters={**fixed, parameter: value},
        )
        for row in sweep["rows"]
        for value, figure in zip(values, row["values"], strict=True)
    ]
    return Recipe(name, title, note_of("FedHiP", name, scale), tuple(cells))


def figure_4(name: str, scale: Scale) -> Recipe:
    """Accuracy against rounds, seconds and bytes on CIFAR-100."""
    return efficiency("FedHiP", name, "figure4", scale, "CIFAR-100", ends=False)


def figure_5(name: str, scale: Scale) -> Recipe:
    """The same on ImageNet-R."""
    return efficiency("FedHiP", name, "figure5", scale, "ImageNet-R", ends=False)


RECIPES: Mapping[str, Builder] = {
    "fedhip-1": table_1,
    "fedhip-2": table_2,
    "fedhip-3": table_3,
    "fedhip-figure-4": figure_4,
    "fedhip-figure-5": figure_5,
}
