"""What the tables of FedHiP and APFL share: the same data, splits and rivals, and accuracy at each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedsolve.reproduce.cells import (
    IMAGES_HERE,
    NOTHING,
    cell_of,
    drawing_of,
    every_of,
    images,
    method_name,
    protocol_note,
    published,
    seeds_of,
    trained,
)
from fedsolve.reproduce.drawing import Course
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
    drawn = (clients, dirichlet) == (50, 0.1)  # what the figures show round by round
    return trained(base, settings, every_of(scale) if drawn else None)


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


STAND_IN = "CIFAR-10"  # where ImageNet-R is too large
COURSE_NOTE = (
    " 50 clients, Dirichlet 0.1. Hollow marks at the right: the paper's figures at the end. Seconds are those of this "
    "machine for all clients together, evaluations included; bytes are those of all clients, up and down."
)


def efficiency(
    paper: str, name: str, figure: str, scale: Scale, dataset: str, *, ends: bool, **parameters: Any
) -> Recipe:
    """Accuracy against rounds, seconds and bytes; `parameters` are those of the paper's method.

    With `ends`, seconds and bytes are those of whole runs.
    """
    cells, table = [], published()[paper]["table1"]
    place = table["columns"].index({"dataset": dataset, "clients": 50, "dirichlet": 0.1})
    for row in table["rows"]:
        if row["method"] not in ("Improvement", "Advance"):
            own = parameters if row["method"] == paper else NOTHING
            base = _on(scale, row["method"], dataset)
            value, method = row["values"][place], row["method"]
            cells.append(cell_of(method, dataset, value, base, method, seeds=seeds_of(scale), parameters=own))
    shown = dataset if scale == "paper" or dataset == "CIFAR-100" else f"{STAND_IN} for {dataset}"
    panels = [
        Course(shown, dataset),
        Course("", dataset, "seconds", ends=ends),
        Course("", dataset, "bytes", ends=ends),
    ]
    title = f"{paper}, figure {figure[-1]}: accuracy against rounds, seconds and bytes on {dataset}"
    note = _told(paper, name, scale, dataset)
    return Recipe(name, title, note, tuple(cells), drawing_of(paper, figure, panels, cells))


def overheads(paper: str, name: str, figure: str, scale: Scale, dataset: str, **parameters: Any) -> Recipe:
    """What methods had taken after each round: seconds and bytes."""
    cells = []
    for method in published()[paper][figure]["methods"]:
        own, base = parameters if method == paper else NOTHING, _on(scale, method, dataset)
        for what in ("seconds", "MB"):
            column = f"{dataset}, {what}"
            cells.append(
                cell_of(method, column, None, base, method, seeds=seeds_of(scale), figure=what, parameters=own)
            )
    shown = dataset if scale == "paper" or dataset == "CIFAR-100" else f"{STAND_IN} for {dataset}"
    panels = [Course(shown, f"{dataset}, seconds", y="seconds"), Course("", f"{dataset}, MB", y="bytes")]
    title = f"{paper}, figure {figure[-1]}: what rounds cost on {dataset}"
    note = (
        f"{_told(paper, name, scale, dataset)} The figure is in an appendix that the text lacks: that it is of "
        f"{dataset} is a guess."
    )
    return Recipe(name, title, note, tuple(cells), drawing_of(paper, figure, panels, cells))


def _on(scale: Scale, method: str, dataset: str) -> Settings | str:
    return base_of(scale, method, 50, 0.1, STAND_IN if scale == "here" and dataset != "CIFAR-100" else dataset)


def _told(paper: str, name: str, scale: Scale, dataset: str) -> str:
    other = f" {STAND_IN} ({IMAGES_HERE:,} images) in place of {dataset}." if dataset != "CIFAR-100" else ""
    return note_of(paper, name, scale) + SGD_NOTE[scale] + (other if scale == "here" else "") + COURSE_NOTE
