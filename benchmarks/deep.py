"""Depth against width: deepafl, one wide random layer at no fewer bytes, and the features as they are.

- CIFAR-100, frozen EfficientNet-Lite0 features, official test set, one draw of the random matrices: errors are those
  of 10,000 images;
- heart disease (4 hospitals) and landmine (29 fields), 80:20 within each client, as in `natural`;
- scikit-learn's digits, 10 clients, Dirichlet 0.1, 80:20 within each client.

The wide layer is `--features random:W` (behind `standardise` on tables) under `afl` with ridge=auto, W the narrowest
with which a client sends at least as many bytes as with deepafl. "less ridge" has a tenth of that ridge, "with ones" a
column of ones before it, so that its units have a constant as those of deepafl do. Everybody has an intercept. Nothing
is chosen on test samples: deepafl has its defaults but for the width and depth that the table shows, and all ridges
come from the sums. The verdict alone is about the better of the wide layers with either ridge, which is a favour to
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import reduce
from itertools import chain, count
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedsolve as fs
from fedsolve.arrays import Arrays, accumulate
from fedsolve.features.maps import Identity, RandomProjection
from fedsolve.method import Server, Site
from fedsolve.rng import derive

from .natural import area, federations, spread
from .real import arrays

SPLITS = {"heart disease": 20, "landmine": 5, "digits": 10}
DEPTHS = {"features": (2, 4, 8), "random": (8,)}  # blocks at which there is a row, by start; CIFAR-100
WIDTH = 1024  # of a block, CIFAR-100
ROWS = 5000
LESS = 0.1  # of the ridge of a wide layer, for the largest score to be the right one, as `apfl` has it
ONE_MODEL = ("afl", "wide", "wide, less ridge", "wide, with ones", "deepafl")
OWN_MODELS = ("fedhip", "fedhip, wide", "deepafl, own heads")
PARTS = 5  # clients of CIFAR-100: one model for all is the same for any split


def measure() -> list[dict[str, Any]]:
    """Percent right (area under the curve for landmine), ± standard error over splits, and which is better."""
    rows = []
    for row in chain(map(table_row, SPLITS), pictures()):
        rows.append(row)
        print(row, flush=True)
    return rows


def sends(width: int, classes: int) -> int:
    """How many numbers a client sends for a wide layer and a constant: one triangle, and F'Y."""
    return (width + 1) * (width + 2) // 2 + (width + 1) * classes


def wide_enough(numbers: float, classes: int) -> int:
    """The narrowest layer with which a client sends at least that many numbers."""
    return next(width for width in count(1) if sends(width, classes) >= numbers)


def verdict(deep: NDArray[np.float64], wide: NDArray[np.float64]) -> dict[str, str]:
    """The difference, split by split or image by image, and which is better; neither within two standard errors."""
    gap = deep - wide
    error = gap.std(ddof=1) / len(gap) ** 0.5
    better = "deepafl" if gap.mean() > 0 else "wide"
    clear = abs(gap.mean()) > 2 * error
    return {"deepafl less wide": spread(gap), "better": better if clear else f"{better}, within error"}


# --- tables ---


def table_row(name: str) -> dict[str, Any]:
    """Means over splits, each with its own draw of the random matrices."""
    found: dict[str, list[float]] = {}
    width, sent = 0, dict[str, float]()
    for seed, plain in enumerate(splits(name)):
        clients, scaled = len(plain.clients), plain.standardised()
        deep = fs.run(fs.DeepAFL(alpha=0.0), scaled, seed=seed, workers=1)
        width = wide_enough(deep.bytes_up / clients / 8, plain.task.classes)
        wide, ones = (plain.standardised(f"{first}random:{width},relu,{seed}") for first in ("", "ones+"))
        afl, fedhip = fs.AFL(ridge="auto", intercept=True), fs.FedHiP(beta="auto", intercept=True)
        runs: list[tuple[str, fs.Method, fs.Federation]] = [
            ("afl", afl, scaled),
            ("wide", afl, wide),
            ("wide, with ones", afl, ones),
            ("fedhip", fedhip, scaled),
            ("fedhip, wide", fedhip, wide),
            ("deepafl, own heads", fs.DeepAFL(), scaled),
        ]
        results = {title: fs.run(method, there, seed=seed, workers=1) for title, method, there in runs}
        ridge = LESS * float(results["wide"].state["ridge"])
        results["wide, less ridge"] = fs.run(fs.AFL(ridge=ridge, intercept=True), wide, seed=seed, workers=1)
        for title, result in {**results, "deepafl": deep}.items():
            value = area(result, plain) if name == "landmine" else 100 * (result.accuracy.mean or 0.0)
            found.setdefault(title, []).append(value)
            sent[title] = result.bytes_up / clients / 1e3
    values = {title: np.array(each) for title, each in found.items()}
    settings = {"wide is": f"random:{width}", "deepafl is": "its defaults"}
    figures = {title: spread(values[title]) for title in ONE_MODEL}
    kilobytes = {f"KB {title}": sent[title] for title in ("wide", "deepafl")}
    own = {title: spread(values[title]) for title in OWN_MODELS}
    row: dict[str, Any] = {"data": name, "splits": SPLITS[name]} | settings | figures
    better = max((values["wide"], values["wide, less ridge"]), key=np.mean)
    return row | verdict(values["deepafl"], better) | kilobytes | own


def splits(name: str) -> Iterator[fs.Federation]:
    """One federation a split."""
    if name != "digits":
        yield from federations(name, SPLITS[name])
        return
    for seed in range(SPLITS[name]):
        yield fs.load("digits").split(fs.dirichlet(0.1), clients=10, seed=seed)


# --- CIFAR-100 ---


def pictures() -> Iterator[dict[str, Any]]:
    """A row for each depth, on the official test set."""
    data = arrays("cifar100-features")
    x, y = data["x"], data["y"]
    test = data["x_test"], data["y_test"]
    parts = np.array_split(derive(0, "deep").permutation(len(y)), PARTS)
    federation = fs.Federation.from_arrays({f"c{i}": {"train": (x[r], y[r])} for i, r in enumerate(parts)})
    classes = federation.task.classes
    linear = right(one_layer(x, y, None)[0], *test)
    for start, depths in DEPTHS.items():
        method = fs.DeepAFL(width=WIDTH, blocks=max(depths), start=start, alpha=0.0)
        for blocks, numbers, model in heads(method, federation, depths):
            width = wide_enough(numbers, classes)
            deep, (wide, less) = right(model, *test), (right(each, *test) for each in one_layer(x, y, width))
            row: dict[str, Any] = {"data": "cifar-100", "splits": 1}
            row |= {"wide is": f"random:{width}", "deepafl is": f"{blocks} blocks of {WIDTH} from {start}"}
            figures = {"afl": linear, "wide": wide, "wide, less ridge": less, "deepafl": deep}
            row |= {title: f"{figures[title].mean():.2f}" if title in figures else "" for title in ONE_MODEL}
            row |= verdict(deep, max((wide, less), key=np.mean))
            row |= {"KB wide": sends(width, classes) / 125, "KB deepafl": numbers / 125}
            yield row | dict.fromkeys(OWN_MODELS, "")


def heads(
    method: fs.DeepAFL, federation: fs.Federation, depths: tuple[int, ...]
) -> Iterator[tuple[int, float, fs.Model]]:
    """The models behind some numbers of blocks, from one training, and how many numbers a client had sent by then."""
    task, numbers = federation.task, 0.0
    state = method.init_server(Server(task, 0, derive(0, "server")))
    private: dict[str, Arrays] = {name: {} for name in federation.clients}
    for number in range(1, method.rounds + 1):
        total: dict[str, NDArray[Any]] | None = None
        for name, client in federation.clients.items():
            site = Site(task, client.train, number, derive(0, "update", name, number))
            private[name], reply = method.update(private[name], method.message(state, name, "update"), site)
            total = accumulate(total, reply)
        numbers += sum(array.size for array in (total or {}).values())
        state = method.aggregate(state, total or {}, Server(task, number, derive(0, "aggregate", number)))
        blocks, inside = divmod(number - 1, 2)
        if not inside and blocks in depths:
            # A model of fewer blocks has fewer seeds.
            arrays = {**method.message(state, "", "personalize"), "seeds": state["seeds"][: blocks + 1]}
            yield blocks, numbers, fs.Model(dataclasses.replace(method, blocks=blocks), task, arrays, "global")


def one_layer(x: NDArray[Any], y: NDArray[Any], width: int | None) -> tuple[fs.Model, fs.Model]:
    """`afl` with ridge=auto on random features, or on the features as they are, and with `LESS` of that ridge.

    Rows come in blocks, for less memory.
    """
    features = Identity() if width is None else RandomProjection(width, "relu", 0)
    classes = int(y.max()) + 1
    blocks = (slice(start, start + ROWS) for start in range(0, len(y), ROWS))
    parts = (fs.Moments.of(features(x[rows]), y[rows], classes=classes, intercept=True) for rows in blocks)
    total = reduce(add, parts).arrays()
    task = fs.Task(fs.Classes(classes), x.shape[1:], features)
    here = Server(task, 1, derive(0))
    auto = fs.AFL(ridge="auto", intercept=True)
    state = auto.aggregate({}, total, here)
    less = fs.AFL(ridge=LESS * float(state["ridge"]), intercept=True)
    states = ((auto, state), (less, less.aggregate({}, total, here)))
    one, two = (fs.Model(afl, task, afl.message(each, "", "personalize"), "global") for afl, each in states)
    return one, two


def right(model: fs.Model, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """100 for each sample that a model is right about, else 0."""
    hits = [model.predict(x[start : start + ROWS]) == y[start : start + ROWS] for start in range(0, len(y), ROWS)]
    return 100.0 * np.concatenate(hits)
