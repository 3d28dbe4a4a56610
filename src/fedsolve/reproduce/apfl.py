"""APFL: tables 1 and 2, figures 3 to 6."""

from __future__ import annotations

from collections.abc import Mapping

from fedsolve.reproduce.cells import cell_of, published, seeds_of
from fedsolve.reproduce.personal import base_of, efficiency, methods_by_split, note_of, overheads
from fedsolve.reproduce.recipe import Builder, Recipe, Scale

WIDTHS = {"d_primary": 2048, "d_refine": 1024}


def table_1(name: str, scale: Scale) -> Recipe:
    """Methods by split."""
    return methods_by_split("APFL", name, "APFL, table 1 (ours: gamma, beta and lam auto)", scale, WIDTHS)


def table_2(name: str, scale: Scale) -> Recipe:
    """The primary stream alone (lambda 0) and both, for each weight of the second."""
    table, cells = published()["APFL"]["table2"], []
    for row in table["rows"]:
        for dataset in ("CIFAR-100", "ImageNet-R"):
            base = base_of(scale, "APFL", 50, row["dirichlet"], dataset)
            for lam, figure in zip(table["grid"]["lambda"], row[dataset], strict=True):
                cells.append(
                    cell_of(
                        f"Dirichlet {row['dirichlet']}, {row['stream'].lower()}",
                        f"{dataset}, lambda = {lam}",
                        figure,
                        base,
                        "APFL",
                        seeds=seeds_of(scale),
                        parameters={"gamma": 1.0, "beta": 1.0, "lam": lam if row["stream"] == "Dual" else 0.0},
                    )
                )
    title = "APFL, table 2: primary stream alone and both, 50 clients"
    return Recipe(name, title, note_of("APFL", name, scale), tuple(cells))


def figure_3(name: str, scale: Scale) -> Recipe:
    """Accuracy against rounds, and against the seconds and bytes of whole runs, on CIFAR-100."""
    return efficiency("APFL", name, "figure3", scale, "CIFAR-100", ends=True, **WIDTHS)


def figure_4(name: str, scale: Scale) -> Recipe:
    """The same on ImageNet-R."""
    return efficiency("APFL", name, "figure4", scale, "ImageNet-R", ends=True, **WIDTHS)


def figure_5(name: str, scale: Scale) -> Recipe:
    """Seconds and bytes after each round on CIFAR-100."""
    return overheads("APFL", name, "figure5", scale, "CIFAR-100", **WIDTHS)


def figure_6(name: str, scale: Scale) -> Recipe:
    """The same on ImageNet-R."""
    return overheads("APFL", name, "figure6", scale, "ImageNet-R", **WIDTHS)


RECIPES: Mapping[str, Builder] = {
    "apfl-1": table_1,
    "apfl-2": table_2,
    "apfl-figure-3": figure_3,
    "apfl-figure-4": figure_4,
    "apfl-figure-5": figure_5,
    "apfl-figure-6": figure_6,
}
