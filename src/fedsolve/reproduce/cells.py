"""What recipes are put together from: the published figures, the experiment of a data set, a cell for a method."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedsolve.data import archives
from fedsolve.methods import CATALOGUE
from fedsolve.reproduce.drawing import Claim, Drawing, Panel
from fedsolve.reproduce.recipe import LEFT_OUT, Cell, Scale
from fedsolve.study.experiment import Settings

IMAGES_HERE = 20_000  # at most, where networks are trained or features are extracted at the scale `here`
ONNX = "effnetlite0_224.onnx"  # in the folder of data: EfficientNet-Lite0 without torch
NAMES = {"FedAvg+FT": "fedavg-ft", "FedProx+FT": "fedprox-ft", "DBE": "feddbe"}  # others: in small letters
NOTHING: Mapping[str, Any] = MappingProxyType({})
PAPERS: Mapping[str, Mapping[str, Any]] = {  # where the papers' settings are not the defaults, which serve users
    "afl": {"ridge": 0.0, "intercept": False},
    "fedhip": {"beta": 1.0, "intercept": False},
}


@cache
def published() -> dict[str, Any]:
    """The papers' own figures, by paper and table."""
    text = resources.files("fedsolve.reproduce").joinpath("papers.json").read_text(encoding="utf-8")
    papers: dict[str, Any] = json.loads(text)
    return papers


def protocol_note(paper: str, recipe: str) -> str:
    """What a recipe at the paper's scale does otherwise than the paper, and what the paper leaves open.

    >>> protocol_note("AFL", "afl-3").partition(". ")[0]
    ' Otherwise than in the paper: one seed, since the figures are the same for every split'
    """
    protocol = published()[paper]["protocol"]
    told = (entry.get("differs", {}).get(recipe) for entry in protocol["stated"])
    differs = list(dict.fromkeys(sentence for sentence in told if sentence))  # several settings may share one
    otherwise = f" Otherwise than in the paper: {'; '.join(differs)}." if differs else ""
    return f"{otherwise} Not stated there: {'; '.join(protocol['unstated'])}."


def method_name(words: str) -> str | None:
    """The name here of a method of a paper; None where it is not in the catalogue."""
    name = NAMES.get(words, words.lower())
    return name if name in CATALOGUE else None


def cell_of(
    row: str,
    column: str,
    paper: float | None,
    base: Settings | str,
    method: str,
    *,
    parameters: Mapping[str, Any] = NOTHING,
    seeds: tuple[int, ...] = (0,),
    figure: str = "mean",
) -> Cell:
    """A cell for a method of the paper; `base` is its experiment, or why there is none."""
    name = method_name(method)
    if name is None:
        return Cell(row, column, paper, why=f"{method} is not in the catalogue")
    if isinstance(base, str):
        return Cell(row, column, paper, why=base)
    settings = replace(base, method=name, alone=False, set={**PAPERS.get(name, {}), **base.set, **parameters})
    return Cell(row, column, paper, settings, seeds=seeds, figure=figure)


def trained(base: Settings, parameters: Mapping[str, Any], every: int | None = None) -> Settings:
    """A gradient method on these data, evaluated once, after its last round; or every so many rounds, for a figure."""
    return replace(base, set=parameters, eval_every=every or parameters["rounds"])


def every_of(scale: Scale) -> int:
    """The rounds between two points of a course: each is one here, where there are few, and the fifth in the papers."""
    return 5 if scale == "paper" else 1


def drawing_of(
    paper: str, figure: str, panels: Sequence[Panel], cells: Sequence[Cell], *, timed: bool = False
) -> Drawing:
    """The panels with what the paper's text says of them; rivals by name, "all" others, or those that descend."""
    entry, found = published()[paper][figure], []
    rows = list(dict.fromkeys(cell.row for cell in cells))
    for claim in entry.get("claims", ()):
        others = [row for row in rows if row != claim["saver"]]
        if claim["rivals"] == "descent":
            others = [row for row in others if row != "AFL"]
        rivals = others if isinstance(claim["rivals"], str) else claim["rivals"]
        found.append(Claim(**{**claim, "rivals": tuple(rivals)}))
    return Drawing(tuple(panels), entry["where"], tuple(found), timed)


def seeds_of(scale: Scale) -> tuple[int, ...]:
    """Three seeds in the papers, one here."""
    return (0, 1, 2) if scale == "paper" else (0,)


def images(dataset: str, scale: Scale, backbone: str) -> Settings | str:
    """A data set of the papers with its features, or why there is none at this scale."""
    name = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}.get(dataset, dataset.lower())
    if scale == "paper":
        return Settings(data=name, features=f"hf:{backbone}")
    if dataset not in ("CIFAR-10", "CIFAR-100"):
        return f"{dataset}: {LEFT_OUT}"
    home, limit = archives.folder(), IMAGES_HERE if dataset == "CIFAR-10" else None
    if home is not None and (home / f"{name}-features.npz").is_file():
        return Settings(data=f"{name}-features", limit=limit)  # extracted before
    return Settings(data=name, features=_lite0(home), limit=limit)


def _lite0(home: Path | None) -> str:
    """EfficientNet-Lite0: as an ONNX file where there is one, which is several times faster than with torch."""
    return f"onnx:{home / ONNX}" if home is not None and (home / ONNX).is_file() else "efficientnet-lite0"
