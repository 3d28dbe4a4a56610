"""APFL: tables 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping

from fedsolve.reproduce.cells import cell_of, published, seeds_of
from fedsolve.reproduce.personal import base_of, methods_by_split, note_of
from fedsolve.reproduce.recipe import Builder, Recipe, Scale


def table_1(name: str, scale: Scale) -> Recipe:
    """Methods by split."""
    widths = {"d_primary": 2048, "d_refine": 1024}
    return methods_by_split("APFL", name, "APFL, table 1 (ours: gamma, beta and lam auto)", scale, widths)


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


RECIPES: Mapping[str, Builder] = {"apfl-1": table_1, "apfl-2": table_2}
