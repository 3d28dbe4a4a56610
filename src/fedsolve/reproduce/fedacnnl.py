"""FedACnnL: table 2, the one with accuracies; figures 4 to 6, and what the text states of the last as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedsolve.reproduce.cells import IMAGES_HERE, cell_of, drawing_of, protocol_note, published, trained
from fedsolve.reproduce.drawing import Costs, Course, Panel
from fedsolve.reproduce.recipe import Builder, Cell, Recipe, Scale
from fedsolve.study.experiment import Settings

DEEP, PATCHES = "deep CNN", "layer of patches"
SOLVERS = ("FedACnnL", "pFedACnnL")
SOLVED: dict[str, Any] = {"gamma": 100.0, "scale": "none", "constant": False}  # the paper's own
PERSONAL: dict[str, Any] = {"epsilon": 2500.0, "groups": 10, "pull": 0.0}
NETWORK = "patches:6x6x320:mirror=yes,dense"
DEVICES = "slow:4,16"  # of figures 4 and 5, whose nodes have one to four cores in the paper
IMAGES_FAST = 2_000  # of MNIST here, since gradients without backpropagation take long
ROUNDS = {"paper": {"MNIST": 20, "Synthetic": 600}, "here": {"MNIST": 5, "Synthetic": 5}}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # method and parameters
    "FedACnnL": ("FedACnnL", {}),
    "FedACnnL-WA": ("FedACnnL", {"adaptive": False}),
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
            descent = {"model": network, "rounds": 1000 if paper else 10}
            cells.append(
                cell_of(
                    row["dataset_model"],
                    variant,
                    value["mean"],
                    base if layered else trained(base, descent, 1 if paper else None),
                    method,
                    seeds=tuple(range(5)) if paper else (0,),
                    figure="best round" if paper and not layered else "pooled",
                    parameters={**parameters, "network": network} if layered else {},
                )
            )
    note = "100 clients, share of all test samples, " + (
        "five seeds; gradient methods in the best of 1000 rounds, which is picked on the test samples, others at their "
        f"end.{protocol_note('FedACnnL', name)}"
        if paper
        else "one seed, a fifth of each client's images to test on; gradient methods train for 10 rounds instead of "
        "1000, and are not at their end. Ours with the defaults of fedsolve, gamma = 10, epsilon=auto."
    )
    return Recipe(name, "FedACnnL, table 2", note, tuple(cells))


def _papers(method: str) -> dict[str, Any]:
    """The paper's own settings of a method."""
    return {**(SOLVED if method in SOLVERS else {}), **(PERSONAL if method == "pFedACnnL" else {})}


def _timed(scale: Scale, figure: str) -> list[Cell]:
    """The runs of figures 4 and 5: a small network, layer by layer and by descent of several kinds."""
    paper, entry, cells = scale == "paper", published()["FedACnnL"]["figure4"], []
    shown = entry["seconds_per_round"] if figure != "pooled" else published()["FedACnnL"]["figure5"]["values"]
    for dataset, rounds in ROUNDS[scale].items():
        base = Settings(data="synthetic:0.5,0.5", clients=100, partition="by-client", devices=DEVICES)
        if dataset == "MNIST":
            limit = None if paper else IMAGES_FAST
            base = replace(base, data="mnist", partition="dirichlet:0.1", test="official", limit=limit)
        for row in entry["methods"]:
            method, parameters = VARIANTS.get(row, (row, {}))
            if method in SOLVERS:  # the paper's FedACnnL has adaptive blocks, and its variant WA has not
                settings, own = base, {"network": "mlp:128,64", "adaptive": True, **(_papers(method) if paper else {})}
                parameters = {**own, **parameters}
            else:
                settings = trained(base, {"model": "mlp:128,64", "rounds": rounds}, max(1, rounds // 100))
            value = shown[dataset].get(row)
            cells.append(cell_of(row, dataset, value, settings, method, figure=figure, parameters=parameters))
    return cells


def _timed_note(name: str, scale: Scale) -> str:
    rounds = ROUNDS[scale]
    note = (
        "100 clients, networks of 128 and 64 hidden units, one seed; gradient methods for "
        f"{rounds['MNIST']} rounds on MNIST and {rounds['Synthetic']} on synthetic data. "
    )
    if scale == "paper":
        return note.rstrip() + protocol_note("FedACnnL", name)
    few = f"{IMAGES_FAST:,} of 60,000 training images of MNIST, and ours with gamma = 10 and a constant feature"
    return note + f"The paper: 20 and 600 rounds, so that descent is not at its end; here {few}."


def figure_4(name: str, scale: Scale) -> Recipe:
    """The seconds of a client: computing, waiting for the slowest, and transfer."""
    cells = _timed(scale, "seconds a round and client")
    drawing = drawing_of("FedACnnL", "figure4", [Costs("MNIST", "MNIST"), Costs("Synthetic", "Synthetic")], cells)
    note = (
        f"{_timed_note(name, scale)} Bars: seconds of a client in all rounds, on emulated devices ({DEVICES}: a third "
        "each as fast as this machine, 4 and 16 times slower; the paper's nodes have one to four cores). Table: "
        "seconds a round."
    )
    return Recipe(name, "FedACnnL, figure 4: the time of a client", note, tuple(cells), drawing)


def figure_5(name: str, scale: Scale) -> Recipe:
    """Accuracy round by round."""
    cells = _timed(scale, "pooled")
    panels = [Course(dataset, dataset, y="pooled") for dataset in ROUNDS[scale]]
    drawing = drawing_of("FedACnnL", "figure5", panels, cells)
    return Recipe(name, "FedACnnL, figure 5: accuracy round by round", _timed_note(name, scale), tuple(cells), drawing)


def _deep(scale: Scale) -> tuple[Settings, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Of figure 6: the data, the deep network layer by layer and by descent, and the paper's personal settings."""
    paper = scale == "paper"
    every = 10 if paper else 1  # of FedAvg's rounds; layers are few
    base = Settings(data="cifar10", clients=100, partition="dirichlet:0.1", test="official", eval_every=every)
    if paper:
        descent: dict[str, Any] = {"model": "dcnn:512,1024,2048,2048", "rounds": 1000}
        return base, {"network": "dcnn", **SOLVED}, descent, PERSONAL
    descent = {"model": "dcnn:64,128,256,256", "rounds": 10}
    solved: dict[str, Any] = {"network": "dcnn:0.125", "gamma": "auto", "scale": "none"}
    return replace(base, limit=IMAGES_HERE), solved, descent, {}


def _deep_cell(
    row: str, column: str, variant: str, value: float | None, scale: Scale, figure: str, network: Any = None
) -> Cell:
    """A variant on the deep network, or on another in its place."""
    base, solved, descent, own = _deep(scale)
    method, parameters = VARIANTS.get(variant, (variant, {}))
    if method in SOLVERS:
        base = replace(base, eval_every=1)
        parameters = {**(network or solved), **(own if method == "pFedACnnL" else {}), **parameters}
    else:
        parameters = descent
    return cell_of(row, column, value, base, method, figure=figure, parameters=parameters)


def _deep_note(name: str, scale: Scale) -> str:
    if scale == "paper":
        return f"FedAvg: the last of 1000 rounds.{protocol_note('FedACnnL', name)}"
    return f"Widths times 0.125, {IMAGES_HERE} images, ridges chosen on the sums; FedAvg for 10 rounds."


def table_6(name: str, scale: Scale) -> Recipe:
    """What the text states of figure 6; and a layer of patches in the place of the deep network."""
    cells = []
    for variant, figure in published()["FedACnnL"]["figure6"]["values"].items():
        cells.append(_deep_cell(DEEP, variant, variant, figure, scale, "pooled"))
        if variant != "FedAvg":
            patches = {"network": NETWORK, "gamma": "auto"}
            cells.append(_deep_cell(PATCHES, variant, variant, None, scale, "pooled", patches))
    note = (
        "100 clients, the official test set dealt out, share of all test samples, one seed; convolutions with a code "
        "at each place (target=place); a layer of patches stands in the second row, which the paper has not. "
    )
    title = "FedACnnL, figure 6: the deep network on CIFAR-10"
    return Recipe(name, title, note + _deep_note(name, scale), tuple(cells))


def figure_6(name: str, scale: Scale) -> Recipe:
    """The deep network round by round, and the time of training it."""
    cells, values = [], published()["FedACnnL"]["figure6"]["values"]
    for variant in ("FedACnnL", "FedACnnL-WA", "pFedACnnL-WC", "pFedACnnL-WP", "pFedACnnL", "FedAvg"):
        cells.append(_deep_cell(variant, "accuracy", variant, values.get(variant), scale, "pooled"))
        cells.append(_deep_cell(variant, "minutes", variant, None, scale, "minutes"))
    panels: list[Panel] = [Course("CIFAR-10, deep CNN", "accuracy", y="pooled"), Costs("time", "minutes")]
    drawing = drawing_of("FedACnnL", "figure6", panels, cells)
    note = (
        "100 clients, the official test set dealt out, share of all test samples, one seed. The paper's clients make "
        "one layer their own in each of rounds 5 to 9; ours all of them at once after the last round, and evaluations "
        "in between are of the layers so far. Groups take a round more. Level lines: nothing comes after. "
    )
    title = "FedACnnL, figure 6: the deep network on CIFAR-10, round by round"
    return Recipe(name, title, note + _deep_note(name, scale), tuple(cells), drawing)


RECIPES: Mapping[str, Builder] = {
    "fedacnnl-2": table_2,
    "fedacnnl-6": table_6,
    "fedacnnl-figure-4": figure_4,
    "fedacnnl-figure-5": figure_5,
    "fedacnnl-figure-6": figure_6,
}
