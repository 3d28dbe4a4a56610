"""FedACnnL: table 2, the one with accuracies, and what the text states of figure 6, the deep network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedsolve.reproduce.cells import IMAGES_HERE, cell_of, published, trained
from fedsolve.reproduce.recipe import Builder, Recipe, Scale
from fedsolve.study.experiment import Settings

DEEP, PATCHES = "deep CNN", "layer of patches"
SOLVERS = ("FedACnnL", "pFedACnnL")
SOLVED: dict[str, Any] = {"gamma": 100.0, "scale": "none", "constant": False}  # the paper's own
PERSONAL: dict[str, Any] = {"epsilon": 2500.0, "groups": 10, "pull": 0.0}
NETWORK = "patches:6x6x320:mirror=yes,dense"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # method and parameters
    "FedACnnL": ("FedACnnL", {}),
    "pFedACnnL-WC": ("pFedACnnL", {"groups": 1}),
    "pFedACnnL-WP": ("pFedACnnL", {"personal": False}),
    "pFedACnnL": ("pFedACnnL", {}),
}


def table_2(name: str, scale: Scale) -> Recipe:
    """Methods and variants on MNIST and synthetic data."""
    cells, paper = [], scale == "paper"
    test: float | str = "official" if paper else Settings().test
    for row in published()["FedACnnL"]["table2"]["rows"]:
        data, _, model = row["dataset_model"].partition("-")
        base = Settings(data="mnist", clients=100, partition="dirichlet:0.1", test=test)
        if data == "Synthetic":
            base = Settings(data="synthetic:0.5,0.5", clients=100, partition="by-client")
        network = "lr" if model == "LR" else "mlp:128,64"
        for variant, value in row["values"].items():
            method, parameters = VARIANTS.get(variant, (variant, {}))
            if paper:
                parameters = {**_papers(method), **parameters}
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
        "five seeds, MNIST's official test set dealt out (synthetic data have none: a fifth of each client's); gamma = "
        "100, epsilon = 2500, K = 10, no constant feature; gradient methods after round 1000 (the paper: best round)."
        if paper
        else "one seed, a fifth of each client's images to test on; gradient methods train for 10 rounds instead of "
        "1000, and are not at their end. Ours with the defaults of fedsolve, gamma = 10, epsilon=auto."
    )
    return Recipe(name, "FedACnnL, table 2", note, tuple(cells))


def _papers(method: str) -> dict[str, Any]:
    """The paper's own settings of a method."""
    return {**(SOLVED if method in SOLVERS else {}), **(PERSONAL if method == "pFedACnnL" else {})}


def figure_6(name: str, scale: Scale) -> Recipe:
    """The deep convolutional network, layer by layer and by descent; and a layer of patches in its place."""
    paper = scale == "paper"
    base = Settings(data="cifar10", clients=100, partition="dirichlet:0.1", test="official", eval_every=1000)
    base = base if paper else replace(base, limit=IMAGES_HERE)
    solved: dict[str, Any] = {"network": "dcnn:0.125", "gamma": "auto", "scale": "none"}
    rounds = 1000 if paper else 10
    descent: dict[str, Any] = {"model": "dcnn:64,128,256,256", "rounds": rounds}
    own: dict[str, Any] = {}
    if paper:
        solved = {"network": "dcnn", **SOLVED}
        descent["model"] = "dcnn:512,1024,2048,2048"
        own = PERSONAL
    cells = []
    for variant, figure in published()["FedACnnL"]["figure6"]["values"].items():
        method, parameters = VARIANTS.get(variant, (variant, {}))
        personal = {**own, **parameters} if method == "pFedACnnL" else parameters
        for row, network in ((DEEP, solved), (PATCHES, {"network": NETWORK, "gamma": "auto"})):
            deep = row == DEEP
            if variant == "FedAvg" and not deep:
                continue
            settings = descent if variant == "FedAvg" else {**network, **personal}
            cell = cell_of(row, variant, figure if deep else None, base, method, figure="pooled", parameters=settings)
            cells.append(cell)
    note = (
        "100 clients, the official test set dealt out, share of all test samples, one seed; convolutions with a code "
        "at each place (target=place); a layer of patches stands in the second row, which the paper has not. "
    )
    if paper:
        note += (
            "gamma = 100, epsilon = 2500, K = 10, no constant feature; FedAvg: the last of 1000 rounds, not the best."
        )
    else:
        note += f"Widths times 0.125, {IMAGES_HERE} images, ridges chosen on the sums; FedAvg for {rounds} rounds."
    return Recipe(name, "FedACnnL, figure 6: the deep network on CIFAR-10", note, tuple(cells))


RECIPES: Mapping[str, Builder] = {"fedacnnl-2": table_2, "fedacnnl-6": figure_6}
