"""FedACnnL: table 2, the one with accuracies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsolve.reproduce.cells import cell_of, published, trained
from fedsolve.reproduce.recipe import Builder, Recipe, Scale
from fedsolve.study.experiment import Settings

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # method and parameters
    "FedACnnL": ("FedACnnL", {}),
    "pFedACnnL-WC": ("pFedACnnL", {"groups": 1}),
    "pFedACnnL-WP": ("pFedACnnL", {"personal": False}),
    "pFedACnnL": ("pFedACnnL", {}),
}


def table_2(name: str, scale: Scale) -> Recipe:
    """Methods and variants on MNIST and synthetic data."""
    cells = []
    for row in published()["FedACnnL"]["table2"]["rows"]:
        data, _, model = row["dataset_model"].partition("-")
        base = Settings(data="mnist", clients=100, partition="dirichlet:0.1")
        if data == "Synthetic":
            base = Settings(data="synthetic:0.5,0.5", clients=100, partition="by-client")
        network = "lr" if model == "LR" else "mlp:128,64"
        for variant, value in row["values"].items():
            method, parameters = VARIANTS.get(variant, (variant, {}))
            layered = variant in VARIANTS  # the others descend
            descent = {"model": network, "rounds": 1000 if scale == "paper" else 10}
            cells.append(
                cell_of(
                    row["dataset_model"],
                    variant,
                    value["mean"],
                    base if layered else trained(base, descent),
                    method,
                    seeds=tuple(range(5)) if scale == "paper" else (0,),
                    figure="pooled",
                    parameters={**parameters, "network": network} if layered else {},
                )
            )
    note = "100 clients, share of all test samples, " + (
        "five seeds; gradient methods after round 1000 (the paper: best round)."
        if scale == "paper"
        else "one seed; gradient methods train for 10 rounds instead of 1000, and are not at their end."
    )
    return Recipe(name, "FedACnnL, table 2", f"{note} Ours with the defaults of fedsolve, epsilon=auto.", tuple(cells))


RECIPES: Mapping[str, Builder] = {"fedacnnl-2": table_2}
