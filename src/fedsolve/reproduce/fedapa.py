"""FedAPA: tables 1 to 4, figure 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedsolve.reproduce.cells import IMAGES_HERE, cell_of, drawing_of, protocol_note, published, seeds_of, trained
from fedsolve.reproduce.drawing import Course
from fedsolve.reproduce.recipe import LEFT_OUT, Builder, Recipe, Scale
from fedsolve.study.experiment import Settings

LENET = {"model": "lenet5", "lr": 0.01, "batch": 64, "epochs": 2, "sgd_momentum": 0.9, "rounds": 50}
NOTE = {
    "paper": "LeNet-5, 50 rounds, three seeds, the official test set dealt out, 60 to 100 % of the clients in a round; "
    "share of all test samples. FedAPA as printed has equation (7) with the right sign. The authors' code differs from "
    "the paper: momentum 0.9 and a self-weight of 1 at the server, clients one after the other.",
    "here": f"LeNet-5, 10 rounds instead of 50, {IMAGES_HERE:,} training images of each data set, one seed, a fifth of "
    "each client's images to test on instead of the official test set, all clients in every round, even shares of "
    "classes; share of all test samples, last round (the paper: best round). FedAPA as printed has equation (7) with "
    "the right sign.",
}
PRINTED = {"start": "self", "centred": False, "scaled": False, "normalise": "paper"}  # with the right sign of (7)
OURS = "FedAPA, defaults of fedsolve"
COSTS = {  # the paper's columns in table 2, and the figures that they are here
    "acc": "pooled",
    "total_min": "minutes",
    "sec_per_iter": "seconds a round",
    "KB_per_iter_per_client": "KB a round and client",
}
ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {  # method and parameters
    "Baseline (FedAvg)": ("FedAvg", {}),
    "Baseline + APA": ("FedAPA", {"share": "all"}),
    "Baseline + APA + PMS (FedAPA)": ("FedAPA", {}),
    "FedAPA": ("FedAPA", {}),
    "w/o Clipping": ("FedAPA", {"clip": False}),
    "w/o Self-weight": ("FedAPA", {"mu": 0.0}),  # 84.41 as in table 4
    "w/o Normalization": ("FedAPA", {"normalise": "none"}),
    "w/o All": ("FedAPA", {"clip": False, "mu": 0.0, "normalise": "none"}),
}


def _note(name: str, scale: Scale) -> str:
    return NOTE[scale] + (protocol_note("FedAPA", name) if scale == "paper" else "")


def _base(dataset: str, scale: Scale, partition: str = "dirichlet:0.1", clients: int = 20) -> Settings | str:
    names = {"FMNIST": "fashion-mnist", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
    base = Settings(data=names[dataset], clients=clients, partition=partition)
    if scale == "paper":  # evaluated in every round: the paper's figure is that of the best
        return replace(trained(base, LENET), test="official", participation="0.6-1", eval_every=1)
    if dataset == "CIFAR-100":
        return f"CIFAR-100: {LEFT_OUT}"
    drawn = (dataset, partition, clients) == ("CIFAR-10", "dirichlet:0.1", 20)  # what figure 2 shows round by round
    return trained(replace(base, limit=IMAGES_HERE), {**LENET, "rounds": 10}, 1 if drawn else None)


def table_1(name: str, scale: Scale) -> Recipe:
    """Methods on three data sets, with few classes per client and with Dirichlet splits."""
    table, cells = published()["FedAPA"]["table1"], []
    for row in _with_ours(table["rows"]):
        for (kind, dataset, setting), value in zip(table["columns"], row["values"], strict=True):
            number = setting.partition("=")[2]
            # Its data come from PFLlib's scripts, whose pathological split deals classes in a row, in uneven shares.
            uneven = ",uneven" if scale == "paper" else ""
            partition = f"neighbours:{number}{uneven}" if kind == "pathological" else f"dirichlet:{number}"
            base = _base(dataset, scale, partition, row["clients"])
            if scale == "here" and kind == "pathological" and row["clients"] == 50:
                base = f"{setting} with 50 clients: {LEFT_OUT}"
            cells.append(
                cell_of(
                    f"{row['method']}, {row['clients']} clients",
                    f"{dataset} {setting}",
                    value,
                    base,
                    _method(row["method"]),
                    seeds=seeds_of(scale),
                    figure=_figure(scale),
                    parameters=_settings(row["method"]),
                )
            )
    return Recipe(name, "FedAPA, table 1", _note(name, scale), tuple(cells))


def _with_ours(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The paper's rows and, behind FedAPA as printed, the same method with our defaults."""
    for row in rows:
        yield row
        if row["method"] == "FedAPA":
            yield {**row, "method": OURS, "values": [None] * len(row["values"])}


def _method(row: str) -> str:
    return "FedAPA" if row == OURS else row


def _settings(row: str) -> Mapping[str, Any]:
    """Of FedAPA, the algorithm as printed."""
    return PRINTED if row == "FedAPA" else {}


def _figure(scale: Scale) -> str:
    return "best round" if scale == "paper" else "pooled"


def table_2(name: str, scale: Scale) -> Recipe:
    """What methods cost in time and bytes beside their accuracy."""
    table, base = published()["FedAPA"]["table2"], _base("CIFAR-10", scale)
    cells = []
    for row in _with_ours(table["rows"]):
        for column, value in zip(table["columns"], row["values"], strict=True):
            figure = _figure(scale) if column == "acc" else COSTS[column]
            some = _settings(row["method"])
            cell = cell_of(
                row["method"],
                COSTS[column],
                value,
                base,
                _method(row["method"]),
                seeds=seeds_of(scale),
                figure=figure,
                parameters=some,
            )
            cells.append(cell)
    note = (
        f"{_note(name, scale)} KB are 1,024 bytes, without the last download. Minutes are of one run, the mean over "
        "seeds; the paper's are of some 150 rounds, as many as three runs have."
    )
    return Recipe(name, "FedAPA, table 2: CIFAR-10, what it costs", note, tuple(cells))


def table_3(name: str, scale: Scale) -> Recipe:
    """FedAPA without each of its parts."""
    cells, base = [], _base("CIFAR-10", scale)
    for row in published()["FedAPA"]["table3"]["rows"]:
        method, parameters = ABLATIONS[row["variant"]]
        parameters = {**_settings(method), **parameters}
        cells.append(
            cell_of(
                row["variant"],
                "accuracy",
                row["acc"],
                base,
                method,
                seeds=seeds_of(scale),
                figure=_figure(scale),
                parameters=parameters,
            )
        )
    return Recipe(name, "FedAPA, table 3: CIFAR-10, ablation", _note(name, scale), tuple(cells))


def table_4(name: str, scale: Scale) -> Recipe:
    """The accuracy for each weight of a client's own model."""
    table, base = published()["FedAPA"]["table4"], _base("CIFAR-10", scale)
    cells = [
        cell_of(
            "FedAPA",
            f"mu = {mu}",
            value,
            base,
            "FedAPA",
            seeds=seeds_of(scale),
            figure=_figure(scale),
            parameters={**_settings("FedAPA"), "mu": mu},
        )
        for mu, value in zip(table["mu"], table["acc"], strict=True)
    ]
    return Recipe(name, "FedAPA, table 4: CIFAR-10, weight of one's own model", _note(name, scale), tuple(cells))


def figure_2(name: str, scale: Scale) -> Recipe:
    """Accuracy round by round."""
    cells, base = [], _base("CIFAR-10", scale)
    for row in _with_ours(published()["FedAPA"]["table2"]["rows"]):
        some = _settings(row["method"])
        method, value = _method(row["method"]), row["values"][0]
        cells.append(
            cell_of(
                row["method"],
                "CIFAR-10",
                value,
                base,
                method,
                seeds=seeds_of(scale),
                figure=_figure(scale),
                parameters=some,
            )
        )
    drawing = drawing_of("FedAPA", "figure2", [Course("CIFAR-10", "CIFAR-10", y="pooled")], cells)
    note = f"{_note(name, scale)} Hollow marks at the right: the paper's table 2."
    return Recipe(name, "FedAPA, figure 2: CIFAR-10, 20 clients, round by round", note, tuple(cells), drawing)


RECIPES: Mapping[str, Builder] = {
    "fedapa-1": table_1,
    "fedapa-2": table_2,
    "fedapa-3": table_3,
    "fedapa-4": table_4,
    "fedapa-figure-2": figure_2,
}
