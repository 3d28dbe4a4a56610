"""The papers' results tables as experiments, with the papers' figures beside ours.

Each recipe has two scales: `paper`, the settings of the paper, for those who have its data, weights and time; and
`here`, what two cores can do in a quarter of an hour: other backbones, fewer rounds, fewer samples, one seed. What
differs is in the output.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedsolve.codec import write_bytes
from fedsolve.data import archives, catalog
from fedsolve.errors import FedsolveError, unknown
from fedsolve.features import maps
from fedsolve.methods import CATALOGUE
from fedsolve.progress import Progress
from fedsolve.study.compare import compare, data_of
from fedsolve.study.experiment import Settings, method_of

Scale: TypeAlias = Literal["paper", "here"]
SCALES = ("here", "paper")
ALL = "all"  # stands for every recipe
LEFT_OUT = "left out at this scale"
IMAGES_HERE = 20_000  # at most, where networks are trained or features are extracted at the scale `here`
ONNX = "effnetlite0_224.onnx"  # in the folder of data: EfficientNet-Lite0 without torch
Told: TypeAlias = Callable[[str, int, Mapping[str, Any] | str, int, int, float], None]
"""As of a comparison, and last the seconds that the rest of the recipe will take, about."""

FIGURES: dict[str, Callable[[Mapping[str, Any]], float | None]] = {  # of a result.json
    "mean": lambda found: _points(found["accuracy"]["mean"]),
    "pooled": lambda found: _points(found["accuracy"]["pooled"]),
    "minutes": lambda found: found["seconds"]["total"] / 60,
    "seconds a round": lambda found: found["seconds"]["total"] / found["rounds"],
    "KB a round and client": lambda found: (
        (found["bytes"]["up"] + found["bytes"]["down"]) / 1000 / found["rounds"] / len(found["clients"])
    ),
}
NAMES = {"FedAvg+FT": "fedavg-ft", "FedProx+FT": "fedprox-ft", "DBE": "feddbe"}  # others: in small letters


@dataclass(frozen=True)
class Cell:
    """A figure of the paper, and the runs that give ours; none where we cannot run it, and why."""

    row: str
    column: str
    paper: float | None
    settings: Settings | None = None
    seeds: tuple[int, ...] = (0,)
    figure: str = "mean"
    why: str = ""

    def runs(self) -> list[Settings]:
        """One a seed."""
        return [replace(self.settings, seed=seed) for seed in self.seeds] if self.settings else []


@dataclass(frozen=True)
class Recipe:
    """A table."""

    name: str
    title: str
    note: str  # what differs from the paper
    cells: tuple[Cell, ...]

    @property
    def rows(self) -> list[str]:
        """In the paper's order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """In the paper's order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))


@dataclass(frozen=True)
class Outcome:
    """A table with our figures."""

    recipe: Recipe
    ours: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by row and column
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def markdown(self) -> str:
        """Paper's figure / ours in each cell."""
        columns = self.recipe.columns
        lines = [f"| paper / ours | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        known = {(cell.row, cell.column): cell for cell in self.recipe.cells}
        for row in self.recipe.rows:
            cells = [self.text(known.get((row, column))) for column in columns]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        reasons = sorted({cell.why for cell in self.recipe.cells if cell.why} | set(self.failures.values()))
        missing = [f"- not run: {reason}" for reason in reasons]
        return "\n".join([f"### {self.recipe.title}", "", self.recipe.note, "", *lines, "", *missing]).rstrip() + "\n"

    def text(self, cell: Cell | None) -> str:
        """A cell in words."""
        if cell is None:
            return ""
        ours = self.ours.get((cell.row, cell.column))
        paper = "-" if cell.paper is None else f"{cell.paper:.2f}"
        return f"{paper} / {'-' if ours is None else f'{ours:.2f}'}"


def create(name: str, scale: str = "here") -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return RECIPES[name](name, "paper" if scale == "paper" else "here")


def chosen(name: str, scale: str = "here") -> list[Recipe]:
    """The recipe of a name, or every one for "all"."""
    return [create(each, scale) for each in (RECIPES if name == ALL else (name,))]


def lacking(recipe: Recipe) -> dict[str, int]:
    """What is missing on this machine, a sentence each, and how many of the runs need it. Nothing is read or run."""
    return dict(Counter(reason for run in distinct(recipe) if (reason := _lacks(run))))


def reproduce(
    recipe: Recipe, out: Path, told: Told, progress: Progress | None = None, runs: Path | None = None
) -> Outcome:
    """Run what is not yet in `runs`, and leave the table in `out` as table.md and table.json.

    Recipes may share `runs` (default: a folder of that name in `out`): what several of them need is then run once.
    Runs for which something is lacking are not tried.
    """
    out.mkdir(parents=True, exist_ok=True)
    wanted = distinct(recipe)
    done: dict[str, Mapping[str, Any] | str] = {_place(run): why for run in wanted if (why := _lacks(run))}
    missing = frozenset(done)
    able = [run for run in wanted if _place(run) not in missing]
    times: dict[str, list[float]] = {}

    def tell(method: str, seed: int, found: Mapping[str, Any] | str, number: int, total: int) -> None:
        done[_place(able[number - 1])] = found
        if not isinstance(found, str):
            times.setdefault(method, []).append(found["seconds"]["total"])
        told(method, seed, found, number, total, _left(able[number:], times))

    compare(able, runs or out / "runs", tell, progress, _place, one_data_set=False)
    ours, failures = {}, {}
    for cell in recipe.cells:
        numbers = []
        for place in map(_place, cell.runs()):
            found = done[place]
            if not isinstance(found, str):
                numbers.append(FIGURES[cell.figure](found))
            else:  # what is lacking is said once for all cells; any other failure is that of its cell
                words = found if place in missing else f"{cell.row}, {cell.column}: {found}"
                failures[cell.row, cell.column] = words
        known = [number for number in numbers if number is not None]
        if known:
            ours[cell.row, cell.column] = statistics.fmean(known)
    outcome = Outcome(recipe, ours, failures)
    write_bytes(out / "table.md", outcome.markdown().encode())
    write_bytes(out / "table.json", json.dumps(_json(outcome), indent=1).encode() + b"\n")
    return outcome


def distinct(recipe: Recipe) -> list[Settings]:
    """Each run once, those with the same data side by side."""
    unique = {_place(run): run for cell in recipe.cells for run in cell.runs()}
    return sorted(unique.values(), key=lambda run: str(data_of(run)))


def _lacks(run: Settings) -> str:
    """What is missing for a run on this machine, or nothing."""
    try:
        method_of(run)
    except FedsolveError as error:
        return str(error)  # gradient methods without torch
    return catalog.absent(run.data) or maps.absent(run.features)


def _left(runs: Sequence[Settings], times: Mapping[str, Sequence[float]]) -> float:
    """The seconds that runs will take if each takes as long as those of its method, or of all methods, did."""
    usual = statistics.fmean([each for own in times.values() for each in own]) if times else 0.0
    return sum(statistics.fmean(times[run.method]) if run.method in times else usual for run in runs)


def _json(outcome: Outcome) -> dict[str, Any]:
    cells = [
        {
            "row": cell.row,
            "column": cell.column,
            "figure": cell.figure,
            "paper": cell.paper,
            "ours": outcome.ours.get((cell.row, cell.column)),
            "seeds": list(cell.seeds),
            "not run": cell.why or outcome.failures.get((cell.row, cell.column), ""),
        }
        for cell in outcome.recipe.cells
    ]
    return {"recipe": outcome.recipe.name, "title": outcome.recipe.title, "note": outcome.recipe.note, "cells": cells}


def _place(run: Settings) -> str:
    """A folder name that tells runs apart: in words what they are, and a digest of all settings."""
    words = [run.method, str(run.seed), Path(run.data).name, run.partition, str(run.clients)]
    words += [Path(run.features).name] if run.features != "identity" else []
    words += [f"{name}={value}" for name, value in sorted(run.set.items())]
    text = "_".join("".join(c if c.isalnum() or c in ".=-" else "-" for c in word) for word in words if word)
    content = json.dumps(asdict(run), sort_keys=True)
    return f"{text[:150]}_{hashlib.blake2b(content.encode(), digest_size=4).hexdigest()}"


def _points(share: float | None) -> float | None:
    return None if share is None else 100 * share


@cache
def _papers() -> dict[str, Any]:
    """The published figures."""
    text = resources.files("fedsolve.reproduce").joinpath("papers.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _method(name: str) -> str | None:
    known = NAMES.get(name, name.lower())
    return known if known in CATALOGUE else None


def _cell(row: str, column: str, paper: float | None, base: Settings | str, method: str, **more: Any) -> Cell:
    """A cell for a method of the paper; `base` is its experiment, or why there is none."""
    known = _method(method)
    if known is None:
        return Cell(row, column, paper, why=f"{method} is not in the catalogue")
    if isinstance(base, str):
        return Cell(row, column, paper, why=base)
    own, settings = more.pop("set", {}), replace(base, method=known, alone=False)
    return Cell(row, column, paper, replace(settings, set={**settings.set, **own}), **more)


def _trained(base: Settings, parameters: Mapping[str, Any]) -> Settings:
    """A gradient method on these data, evaluated once, after its last round."""
    return replace(base, set=parameters, eval_every=parameters["rounds"])


# --- AFL ---

HEAD_PAPER = {"model": "lr", "lr": 0.05, "batch": 64, "epochs": 3, "sgd_momentum": 0.0, "rounds": 500}
HEAD_HERE = {**HEAD_PAPER, "rounds": 10}
AFL_NOTE = {
    "paper": "ResNet-18 (ImageNet), all images, three seeds, official test set; gradient methods train a head.",
    "here": f"EfficientNet-Lite0 features instead of ResNet-18, {IMAGES_HERE:,} of 50,000 training images of CIFAR-10, "
    "one seed, official test set; gradient methods train a head for 10 rounds instead of 500, and are not at their "
    "end.",
}


def _images(dataset: str, scale: Scale, backbone: str) -> Settings | str:
    """A data set of the papers with its features, where it can be had."""
    name = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}.get(dataset, dataset.lower())
    if scale == "paper":
        return Settings(data=name, features=f"hf:{backbone}")
    if dataset not in ("CIFAR-10", "CIFAR-100"):
        return f"{dataset}: {LEFT_OUT}"
    home, limit = archives.folder(), IMAGES_HERE if dataset == "CIFAR-10" else None
    if home is not None and (home / f"{name}-features.npz").is_file():
        return Settings(data=f"{name}-features", limit=limit)  # made before
    return Settings(data=name, features=_lite0(home), limit=limit)


def _lite0(home: Path | None) -> str:
    """EfficientNet-Lite0: as an ONNX file where there is one, which is several times faster than with torch."""
    return f"onnx:{home / ONNX}" if home is not None and (home / ONNX).is_file() else "efficientnet-lite0"


def _afl_base(dataset: str, scale: Scale, method: str, partition: str, clients: int = 100) -> Settings | str:
    base = _images(dataset, scale, "microsoft/resnet-18")
    if isinstance(base, str):
        return base
    base = replace(base, clients=clients, partition=partition, test="global")
    return base if method == "AFL" else _trained(base, HEAD_PAPER if scale == "paper" else HEAD_HERE)


def _seeds(scale: Scale) -> tuple[int, ...]:
    return (0, 1, 2) if scale == "paper" else (0,)


def _afl_partition(setting: str) -> str:
    kind, _, value = setting.partition(" = ")
    return {"alpha": f"dirichlet:{value}", "s": f"shards:{value}", "IID": "iid"}[kind]


def _afl_1(name: str, scale: Scale) -> Recipe:
    cells = [
        _cell(
            f"{row['dataset']}, {row['setting']}",
            method,
            value["mean"],
            _afl_base(row["dataset"], scale, method, _afl_partition(row["setting"])),
            method,
            seeds=_seeds(scale),
        )
        for row in _papers()["AFL"]["table1"]["rows"]
        for method, value in row["values"].items()
    ]
    return Recipe(name, "AFL, table 1: accuracy on the official test set, 100 clients", AFL_NOTE[scale], tuple(cells))


def _afl_2(name: str, scale: Scale) -> Recipe:
    cells = [
        _cell(
            row["method"],
            setting,
            value,
            _afl_base("CIFAR-100", scale, row["method"], _afl_partition(setting)),
            row["method"],
            seeds=_seeds(scale),
        )
        for row in _papers()["AFL"]["table2"]["rows"]
        for setting, value in row["values"].items()
    ]
    return Recipe(name, "AFL, table 2: CIFAR-100, how different the clients are", AFL_NOTE[scale], tuple(cells))


def _afl_3(name: str, scale: Scale) -> Recipe:
    """Clients that each add gamma to their diagonal give a ridge of K gamma; taking it out again leaves none."""
    cells = []
    for row in _papers()["AFL"]["table3"]["rows"]:
        base = _afl_base("CIFAR-100", scale, "AFL", "dirichlet:0.1", row["K"])
        for setting, values in row["values"].items():
            gamma = float(setting.partition(" = ")[2])
            for way, ridge in (("without_RI", row["K"] * gamma), ("with_RI", 0.0)):
                column = f"{setting}, {way.replace('_', ' ')}"
                cells.append(_cell(f"K = {row['K']}", column, values[way], base, "AFL", set={"ridge": ridge}))
    note = f"{AFL_NOTE[scale]} Without ridge, ours is the solution of minimum norm where the paper's is singular."
    return Recipe(name, "AFL, table 3: taking the ridge out again (RI)", note, tuple(cells))


def _afl_4(name: str, scale: Scale) -> Recipe:
    backbones = {
        "ResNet-18": "microsoft/resnet-18",
        "VGG11": "timm/vgg11.tv_in1k",
        "ViT-B-16": "google/vit-base-patch16-224",
    }
    cells = []
    for row in _papers()["AFL"]["table4"]["rows"]:
        for dataset, value in row["values"].items():
            base = _images(dataset, scale, backbones[row["backbone"]])
            if isinstance(base, Settings):
                base = replace(base, clients=100, partition="dirichlet:0.1", test="global")
            cells.append(_cell(row["backbone"], dataset, value, base, "AFL"))
    note = "Each backbone of the paper." if scale == "paper" else "EfficientNet-Lite0 in every row, whatever its name."
    return Recipe(name, "AFL, table 4: backbones", note, tuple(cells))


# --- FedHiP and APFL ---

SGD_PAPER = {"model": "lr", "lr": 0.005, "batch": 32, "epochs": 3, "sgd_momentum": 0.0, "rounds": 200}
SGD_HERE = {**SGD_PAPER, "rounds": 10}
PERSONAL_NOTE = {
    "paper": "ViT-MAE-Base, mean accuracy over clients on their own test data, three seeds.",
    "here": "EfficientNet-Lite0 features instead of ViT-MAE-Base, one seed; mean accuracy over clients on their own "
    "test data.",
}
SGD_NOTE = {
    "paper": "",
    "here": " Gradient methods train a head for 10 rounds instead of 200, and are not at their end; with 100 clients "
    "they are left out.",
}


def _personal_base(
    scale: Scale, method: str, clients: int, dirichlet: float, dataset: str = "CIFAR-100"
) -> Settings | str:
    base = _images(dataset, scale, "facebook/vit-mae-base")
    if isinstance(base, str):
        return base
    base = replace(base, clients=clients, partition=f"dirichlet:{dirichlet}", test=0.2)
    if _method(method) in ("afl", "fedhip", "apfl"):
        return base
    if scale == "here" and clients != 50:
        return f"gradient methods with {clients} clients: {LEFT_OUT}"
    return _trained(base, SGD_PAPER if scale == "paper" else SGD_HERE)


def _grid_of_methods(paper: str, name: str, title: str, scale: Scale, own: Mapping[str, Any]) -> Recipe:
    table, cells = _papers()[paper]["table1"], []
    for row in table["rows"]:
        if row["method"] in ("Improvement", "Advance"):
            continue
        for column, value in zip(table["columns"], row["values"], strict=True):
            base = _personal_base(scale, row["method"], column["clients"], column["dirichlet"], column["dataset"])
            words = f"{column['dataset']}, {column['clients']} clients, {column['dirichlet']}"
            chosen = own if row["method"] == paper else {}
            cells.append(_cell(row["method"], words, value, base, row["method"], seeds=_seeds(scale), set=chosen))
    return Recipe(name, title, PERSONAL_NOTE[scale] + SGD_NOTE[scale], tuple(cells))


def _fedhip_1(name: str, scale: Scale) -> Recipe:
    """With alpha chosen by each client; the paper's is the best on the test set."""
    return _grid_of_methods("FedHiP", name, "FedHiP, table I (ours: alpha=auto)", scale, {})


def _apfl_1(name: str, scale: Scale) -> Recipe:
    own = {"d_primary": 2048, "d_refine": 1024}
    return _grid_of_methods("APFL", name, "APFL, table 1 (ours: gamma, beta and lam auto)", scale, own)


def _sweep(name: str, title: str, scale: Scale, table: str, fixed: Mapping[str, float]) -> Recipe:
    found = _papers()["FedHiP"][table]
    ((parameter, values),) = found["grid"].items()
    cells = [
        _cell(
            f"Dirichlet {row['dirichlet']}",
            f"{parameter} = {value:g}",
            figure,
            _personal_base(scale, "FedHiP", 50, row["dirichlet"]),
            "FedHiP",
            seeds=_seeds(scale),
            set={**fixed, parameter: value},
        )
        for row in found["rows"]
        for value, figure in zip(values, row["values"], strict=True)
    ]
    return Recipe(name, title, PERSONAL_NOTE[scale], tuple(cells))


def _fedhip_2(name: str, scale: Scale) -> Recipe:
    return _sweep(name, "FedHiP, table II: alpha, beta = 0, 50 clients", scale, "table2", {"beta": 0.0})


def _fedhip_3(name: str, scale: Scale) -> Recipe:
    return _sweep(name, "FedHiP, table III: beta, alpha = 20, 50 clients", scale, "table3", {"alpha": 20.0})


def _apfl_2(name: str, scale: Scale) -> Recipe:
    found, cells = _papers()["APFL"]["table2"], []
    for row in found["rows"]:
        base = _personal_base(scale, "APFL", 50, row["dirichlet"])
        for lam, figure in zip(found["grid"]["lambda"], row["CIFAR-100"], strict=True):
            own = {"gamma": 1.0, "beta": 1.0, "lam": lam if row["stream"] == "Dual" else 0.0}
            words = f"Dirichlet {row['dirichlet']}, {row['stream'].lower()}"
            cells.append(_cell(words, f"lambda = {lam}", figure, base, "APFL", seeds=_seeds(scale), set=own))
    return Recipe(
        name, "APFL, table 2: CIFAR-100, primary stream alone and both, 50 clients", PERSONAL_NOTE[scale], tuple(cells)
    )


# --- FedAPA ---

LENET = {"model": "lenet5", "lr": 0.01, "batch": 64, "epochs": 2, "sgd_momentum": 0.9, "rounds": 50}
FEDAPA_NOTE = {
    "paper": "LeNet-5, 50 rounds, three seeds, share of all test samples, last round (the paper: best round).",
    "here": f"LeNet-5, 10 rounds instead of 50, {IMAGES_HERE:,} training images of each data set, one seed, share of "
    "all test samples, last round (the paper: best round).",
}


def _lenet(dataset: str, scale: Scale, partition: str, clients: int = 20) -> Settings | str:
    names = {"FMNIST": "fashion-mnist", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
    base = Settings(data=names[dataset], clients=clients, partition=partition)
    if scale == "paper":
        return _trained(base, LENET)
    if dataset == "CIFAR-100":
        return f"CIFAR-100: {LEFT_OUT}"
    return _trained(replace(base, limit=IMAGES_HERE), {**LENET, "rounds": 10})


def _fedapa_1(name: str, scale: Scale) -> Recipe:
    found, cells = _papers()["FedAPA"]["table1"], []
    for row in found["rows"]:
        for (kind, dataset, setting), value in zip(found["columns"], row["values"], strict=True):
            number = setting.partition("=")[2]
            # Its data come from PFLlib's scripts, whose pathological split deals classes in a row.
            partition = f"neighbours:{number}" if kind == "pathological" else f"dirichlet:{number}"
            base = _lenet(dataset, scale, partition, row["clients"])
            if scale == "here" and kind == "pathological" and row["clients"] == 50:
                base = f"{setting} with 50 clients: {LEFT_OUT}"
            words = f"{row['method']}, {row['clients']} clients"
            more = {"seeds": _seeds(scale), "figure": "pooled"}
            cells.append(_cell(words, f"{dataset} {setting}", value, base, row["method"], **more))
    return Recipe(name, "FedAPA, table 1", FEDAPA_NOTE[scale], tuple(cells))


def _fedapa_2(name: str, scale: Scale) -> Recipe:
    figures = {"acc": "pooled", "total_min": "minutes", "sec_per_iter": "seconds a round"}
    figures["KB_per_iter_per_client"] = "KB a round and client"
    found, cells = _papers()["FedAPA"]["table2"], []
    for row in found["rows"]:
        base = _lenet("CIFAR-10", scale, "dirichlet:0.1")
        for column, value in zip(found["columns"], row["values"], strict=True):
            cells.append(_cell(row["method"], figures[column], value, base, row["method"], figure=figures[column]))
    return Recipe(name, "FedAPA, table 2: CIFAR-10, what it costs", FEDAPA_NOTE[scale], tuple(cells))


ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "Baseline (FedAvg)": ("FedAvg", {}),
    "Baseline + APA": ("FedAPA", {"share": "all"}),
    "Baseline + APA + PMS (FedAPA)": ("FedAPA", {}),
    "FedAPA": ("FedAPA", {}),
    "w/o Clipping": ("FedAPA", {"clip": False}),
    "w/o Self-weight": ("FedAPA", {"own": False}),
    "w/o Normalization": ("FedAPA", {"normalise": "none"}),
    "w/o All": ("FedAPA", {"clip": False, "own": False, "normalise": "none"}),
}


def _fedapa_3(name: str, scale: Scale) -> Recipe:
    cells = []
    for row in _papers()["FedAPA"]["table3"]["rows"]:
        method, own = ABLATIONS[row["variant"]]
        base = _lenet("CIFAR-10", scale, "dirichlet:0.1")
        more = {"seeds": _seeds(scale), "figure": "pooled", "set": own}
        cells.append(_cell(row["variant"], "accuracy", row["acc"], base, method, **more))
    return Recipe(name, "FedAPA, table 3: CIFAR-10, ablation", FEDAPA_NOTE[scale], tuple(cells))


def _fedapa_4(name: str, scale: Scale) -> Recipe:
    found = _papers()["FedAPA"]["table4"]
    base = _lenet("CIFAR-10", scale, "dirichlet:0.1")
    more = {"seeds": _seeds(scale), "figure": "pooled"}
    cells = [
        _cell("FedAPA", f"mu = {mu}", value, base, "FedAPA", set={"mu": mu}, **more)
        for mu, value in zip(found["mu"], found["acc"], strict=True)
    ]
    return Recipe(name, "FedAPA, table 4: CIFAR-10, weight of one's own model", FEDAPA_NOTE[scale], tuple(cells))


# --- FedACnnL ---

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedACnnL": ("FedACnnL", {}),
    "pFedACnnL-WC": ("pFedACnnL", {"groups": 1}),
    "pFedACnnL-WP": ("pFedACnnL", {"personal": False}),
    "pFedACnnL": ("pFedACnnL", {}),
}


def _fedacnnl_2(name: str, scale: Scale) -> Recipe:
    cells = []
    for row in _papers()["FedACnnL"]["table2"]["rows"]:
        data, _, model = row["dataset_model"].partition("-")
        base = Settings(data="mnist", clients=100, partition="dirichlet:0.1")
        if data == "Synthetic":
            base = Settings(data="synthetic:0.5,0.5", clients=100, partition="by-client")
        for variant, value in row["values"].items():
            method, own = VARIANTS.get(variant, (variant, {}))
            own = {**own, "network": "lr" if model == "LR" else "mlp:128,64"} if variant in VARIANTS else own
            more = {"seeds": tuple(range(5)) if scale == "paper" else (0,), "figure": "pooled", "set": own}
            cells.append(_cell(row["dataset_model"], variant, value["mean"], base, method, **more))
    note = "100 clients, share of all test samples, " + ("five seeds." if scale == "paper" else "one seed.")
    return Recipe(name, "FedACnnL, table 2", f"{note} Ours with the defaults of fedsolve, epsilon=auto.", tuple(cells))


RECIPES: dict[str, Callable[[str, Scale], Recipe]] = {
    "afl-1": _afl_1,
    "afl-2": _afl_2,
    "afl-3": _afl_3,
    "afl-4": _afl_4,
    "fedhip-1": _fedhip_1,
    "fedhip-2": _fedhip_2,
    "fedhip-3": _fedhip_3,
    "apfl-1": _apfl_1,
    "apfl-2": _apfl_2,
    "fedapa-1": _fedapa_1,
    "fedapa-2": _fedapa_2,
    "fedapa-3": _fedapa_3,
    "fedapa-4": _fedapa_4,
    "fedacnnl-2": _fedacnnl_2,
}


def summaries() -> Iterator[tuple[str, str]]:
    """Names and titles."""
    for name in RECIPES:
        yield name, create(name).title
