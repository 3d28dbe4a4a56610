"""What the tables of FedHiP and APFL share: the same data, splits and rivals, and accuracy at each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedsolve.reproduce.cells import NOTHING, cell_of, images, method_name, protocol_note, published, seeds_of, trained
from fedsolve.reproduce.recipe import LEFT_OUT, Recipe, Scale
from fedsolve.study.experiment import Settings

SGD_PAPER = {"model": "lr", "lr": 0.005, "batch": 32, "epochs": 3, "sgd_momentum": 0.0, "rounds": 200}
SGD_HERE = {**SGD_PAPER, "rounds": 10}
NOTE = {
    "paper": "ViT-MAE-Base, mean accuracy over clients on their own test data.",
    "here": "EfficientNet-Lite0 features instead of ViT-MAE-Base, one seed; mean accuracy over clients on their own "
    "test data.",
}
SGD_NOTE = {
    "paper": "",
    "here": " Gradient methods train a head for 10 rounds instead of 200, and are not at their end; with 100 clients "
    "they are left out. FedPCL trains a projection of 256.",
}


def note_of(paper: str, name: str, scale: Scale) -> str:
    """What differs from the paper in a table of one of the two."""
    return NOTE[scale] + (protocol_note(paper, name) if scale == "paper" else "")


def base_of(scale: Scale, method: str, clients: int, dirichlet: float, dataset: str = "CIFAR-100") -> Settings | str:
    """The experiment of a method on one of the splits, or why there is none at this scale."""
    base = images(dataset, scale, "facebook/vit-mae-base")
    if isinstance(base, str):
        return base
    base = replace(base, clients=clients, partition=f"dirichlet:{dirichlet}", test=0.2)
    if method_name(method) in ("afl", "fedhip", "apfl"):
        return base
    if scale == "here" and clients != 50:
        return f"gradient methods with {clients} clients: {LEFT_OUT}"
    settings = SGD_PAPER if scale == "paper" else SGD_HERE
    if method_name(method) == "fedpcl":  # a projection of frozen features is what it trains
        settings = {**settings, "model": "mlp:256"}
    return trained(base, settings)


def methods_by_split(
    paper: str, name: str, title: str, scale: Scale, parameters: Mapping[str, Any] = NOTHING
) -> Recipe:
    """Table 1 of a paper: one row per method, one column per split; `parameters` are those of the paper's method."""
    table, cells = published()[paper]["table1"], []
    for row in table["rows"]:
        if row["method"] in ("Improvement", "Advance"):
            continue
        for split, value in zip(table["columns"], row["values"], strict=True):
            cells.append(
                cell_of(
                    row["method"],
                    f"{split['dataset']}, {split['clients']} clients, {split['dirichlet']}",
                    value,
                    base_of(scale, row["method"], split["clients"], split["dirichlet"], split["dataset"]),
                    row["method"],
                    seeds=seeds_of(scale),
                    parameters=parameters if row["method"] == paper else NOTHING,
                )
            )
    return Recipe(name, title, note_of(paper, name, scale) + SGD_NOTE[scale], tuple(cells))
