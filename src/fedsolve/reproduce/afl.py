"""AFL: tables 1 to 4, figures 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedsolve.reproduce.cells import (
    IMAGES_HERE,
    cell_of,
    drawing_of,
    every_of,
    images,
    protocol_note,
    published,
    seeds_of,
    trained,
)
from fedsolve.reproduce.drawing import LABELS, Course, Places
from fedsolve.reproduce.recipe import Builder, Recipe, Scale
from fedsolve.study.experiment import Settings

HEAD_PAPER = {"model": "lr", "lr": 0.05, "batch": 64, "epochs": 3, "sgd_momentum": 0.0, "rounds": 500}
HEAD_HERE = {**HEAD_PAPER, "rounds": 10}
NOTE = {
    "paper": "ResNet-18 (ImageNet), all images; gradient methods train a head.",
    "here": f"EfficientNet-Lite0 features instead of ResNet-18, {IMAGES_HERE:,} of 50,000 training images of CIFAR-10, "
    "one seed, official test set; gradient methods train a head for 10 rounds instead of 500, and are not at their "
    "end.",
}
BACKBONES = {
    "ResNet-18": "microsoft/resnet-18",
    "VGG11": "timm/vgg11.tv_in1k",
    "ViT-B-16": "google/vit-base-patch16-224",
}


def _note(name: str, scale: Scale) -> str:
    return NOTE[scale] + (protocol_note("AFL", name) if scale == "paper" else "")


def _figure(scale: Scale) -> str:
    return "best round" if scale == "paper" else "mean"


def _base(dataset: str, scale: Scale, method: str, partition: str, clients: int = 100) -> Settings | str:
    base = images(dataset, scale, BACKBONES["ResNet-18"])
    if isinstance(base, str):
        return base
    base = replace(base, clients=clients, partition=partition, test="global")
    if method == "AFL":
        return base
    if scale == "paper":  # evaluated in every round: the paper's figure is that of the best
        return replace(trained(base, HEAD_PAPER), eval_every=1)
    return trained(base, HEAD_HERE, every_of(scale) if clients == 100 else None)  # what figure 3 shows round by round


def _partition(setting: str) -> str:
    kind, _, value = setting.partition(" = ")
    return {"alpha": f"dirichlet:{value}", "s": f"shards:{value}", "IID": "iid"}[kind]


def table_1(name: str, scale: Scale) -> Recipe:
    """Methods on three data sets and several splits."""
    cells = [
        cell_of(
            f"{row['dataset']}, {row['setting']}",
            method,
            value["mean"],
            _base(row["dataset"], scale, method, _partition(row["setting"])),
            method,
            seeds=seeds_of(scale),
            figure=_figure(scale),
        )
        for row in published()["AFL"]["table1"]["rows"]
        for method, value in row["values"].items()
    ]
    return Recipe(
        name, "AFL, table 1: accuracy on the official test set, 100 clients", _note(name, scale), tuple(cells)
    )


def table_2(name: str, scale: Scale) -> Recipe:
    """Methods on CIFAR-100 with clients more and more different."""
    cells = [
        cell_of(
            row["method"],
            setting,
            value,
            _base("CIFAR-100", scale, row["method"], _partition(setting)),
            row["method"],
            seeds=seeds_of(scale),
            figure=_figure(scale),
        )
        for row in published()["AFL"]["table2"]["rows"]
        for setting, value in row["values"].items()
    ]
    return Recipe(name, "AFL, table 2: CIFAR-100, how different the clients are", _note(name, scale), tuple(cells))


def table_3(name: str, scale: Scale) -> Recipe:
    """Clients that each add gamma to their diagonal give a ridge of K gamma; taking it out again leaves none."""
    cells = []
    for row in published()["AFL"]["table3"]["rows"]:
        base = _base("CIFAR-100", scale, "AFL", "dirichlet:0.1", row["K"])
        for setting, values in row["values"].items():
            gamma = float(setting.partition(" = ")[2])
            for way, ridge in (("without_RI", row["K"] * gamma), ("with_RI", 0.0)):
                column = f"{setting}, {way.replace('_', ' ')}"
                parameters = {"ridge": ridge}
                cells.append(cell_of(f"K = {row['K']}", column, values[way], base, "AFL", parameters=parameters))
    note = f"{_note(name, scale)} Without ridge, ours is the solution of minimum norm where the paper's is singular."
    return Recipe(name, "AFL, table 3: taking the ridge out again (RI)", note, tuple(cells))


def table_4(name: str, scale: Scale) -> Recipe:
    """AFL on the features of three backbones."""
    cells = []
    for row in published()["AFL"]["table4"]["rows"]:
        for dataset, value in row["values"].items():
            base = images(dataset, scale, BACKBONES[row["backbone"]])
            if isinstance(base, Settings):
                base = replace(base, clients=100, partition="dirichlet:0.1", test="global")
            cells.append(cell_of(row["backbone"], dataset, value, base, "AFL"))
    note = "EfficientNet-Lite0 in every row, whatever its name."
    if scale == "paper":
        note = f"Each backbone of the paper.{protocol_note('AFL', name)}"
    return Recipe(name, "AFL, table 4: backbones", note, tuple(cells))


def figure_2(name: str, scale: Scale) -> Recipe:
    """Accuracy against the number of clients."""
    entry, cells, places = published()["AFL"]["figure2"], [], dict[str, dict[str, float]]()
    for row in entry["rows"]:
        for clients, value in zip(entry["clients"], row["values"], strict=True):
            column = f"{row['dataset']}, K = {clients}"
            base = _base(row["dataset"], scale, row["method"], "dirichlet:0.1", clients)
            cells.append(cell_of(row["method"], column, value, base, row["method"], seeds=seeds_of(scale)))
            places.setdefault(row["dataset"], {})[column] = clients
    panels = [Places(dataset, "clients", LABELS["mean"], each) for dataset, each in places.items()]
    drawing = drawing_of("AFL", "figure2", panels, cells)
    return Recipe(name, "AFL, figure 2: the number of clients, alpha = 0.1", _note(name, scale), tuple(cells), drawing)


def figure_3(name: str, scale: Scale) -> Recipe:
    """Accuracy round by round, and how long training took."""
    entry, cells, setting = published()["AFL"]["figure3"], [], "alpha = 0.1"
    rows = [row for row in published()["AFL"]["table1"]["rows"] if row["setting"] == setting]
    datasets = tuple(entry["seconds"])
    for row in rows:
        if row["dataset"] in datasets:
            for method, value in row["values"].items():
                base = _base(row["dataset"], scale, method, _partition(setting))
                seconds = entry["seconds"][row["dataset"]].get(method)
                shown, timed = row["dataset"], f"{row['dataset']}, seconds"
                cells.append(cell_of(method, shown, value["mean"], base, method, seeds=seeds_of(scale)))
                cells.append(cell_of(method, timed, seconds, base, method, seeds=seeds_of(scale), figure="seconds"))
    told = "Hollow marks at the right: the paper's best round. Seconds: of whole runs, with evaluations."
    drawing = drawing_of("AFL", "figure3", [Course(dataset, dataset) for dataset in datasets], cells, timed=True)
    return Recipe(
        name,
        "AFL, figure 3: accuracy round by round, alpha = 0.1",
        f"{_note(name, scale)} {told}",
        tuple(cells),
        drawing,
    )


RECIPES: Mapping[str, Builder] = {
    "afl-1": table_1,
    "afl-2": table_2,
    "afl-3": table_3,
    "afl-4": table_4,
    "afl-figure-2": figure_2,
    "afl-figure-3": figure_3,
}
