"""Convolutional features and networks without gradients, on real pictures: accuracy, CPU seconds, bytes.

$FEDSOLVE_DATA holds cifar10.npz (20,000 training images, or all of them), mnist.npz and fashion-mnist.npz. Every
setting was chosen on parts of the training images, never on the official test sets that are reported.
Parts are run by name, `python -m benchmarks.pictures afl widths images personal descent`, and append a line per run to
benchmarks/results/pictures.jsonl.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedsolve as fs
from fedsolve.result import Result
from fedsolve.study.experiment import Settings, execute, prepare

PATCHES = "patches:6x6x320"
COLOUR = f"{PATCHES},mirror=yes"
RIDGE = {"ridge": "auto", "intercept": "true"}
DEEP = {"gamma": "auto", "scale": "none"}
SEEDS = (0, 1, 2)
OUT = Path(__file__).parent / "results" / "pictures.jsonl"


def afl() -> Iterator[tuple[str, Settings]]:
    """AFL on patches: one model for all, official test set."""
    base = Settings(method="afl", test="global", partition="dirichlet:0.1", clients=20, set=RIDGE, alone=False)
    yield "CIFAR-10", replace(base, data="cifar10", features=COLOUR)
    yield "MNIST", replace(base, data="mnist", features=PATCHES)
    yield "Fashion-MNIST", replace(base, data="fashion-mnist", features=COLOUR)


def widths() -> Iterator[tuple[str, Settings]]:
    """FedACnnL's own formulation at growing width, with and without padding, and with other targets."""
    base = Settings(data="cifar10", method="fedacnnl", test="global", partition="iid", clients=20, alone=False)
    base = replace(base, eval_every=100)
    for width in ("0.0625", "0.125", "0.25"):
        yield f"dcnn:{width}", replace(base, set={**DEEP, "network": f"dcnn:{width}"})
    yield "dcnn:0.0625, padded", replace(base, set={**DEEP, "network": "dcnn:0.0625:pad=same"})
    for target in ("shared", "projection"):
        chosen = {**DEEP, "network": "dcnn:0.125", "target": target}
        yield f"dcnn:0.125, target={target}", replace(base, set=chosen)
    yield "dcnn:0.125, no constant", replace(base, set={**DEEP, "network": "dcnn:0.125", "constant": "false"})


def images() -> Iterator[tuple[str, Settings]]:
    """How accuracy grows with images."""
    deep, patches = next(run for name, run in widths() if name == "dcnn:0.125"), next(run for _, run in afl())
    for count in (2500, 5000, 10000):
        yield f"dcnn:0.125, {count} images", replace(deep, limit=count)
        yield f"patches, {count} images", replace(patches, limit=count)


def personal() -> Iterator[tuple[str, Settings]]:
    """Personal models: 20 clients, Dirichlet 0.1, the official test set dealt out, three seeds.

    A network of a layer of patches and one dense layer is `lr` on the features of the same name: the first runs are the
    former, the others the latter, since features are then computed once.
    """
    base = Settings(data="cifar10", test="official", partition="dirichlet:0.1", clients=20, alone=False, eval_every=100)
    network = {"network": f"{COLOUR.replace(',', ':')},dense", "gamma": "auto"}
    variants: tuple[tuple[str, dict[str, Any]], ...] = (
        ("pfedacnnl", {}),
        ("its groups", {"personal": "false"}),
        ("one group", {"groups": 1}),
    )
    for name, more in variants:
        yield f"{name}, as a network, seed 0", replace(base, method="pfedacnnl", set={**network, **more})
    for seed in SEEDS:
        ready = replace(base, features=COLOUR, seed=seed)
        for name, more in variants:
            chosen = {"network": "lr", "gamma": "auto", **more}
            yield f"{name}, seed {seed}", replace(ready, method="pfedacnnl", set=chosen)
        yield f"local, seed {seed}", replace(ready, method="local", set={"intercept": "true"})
        yield f"fedhip, seed {seed}", replace(ready, method="fedhip", set={"beta": "auto", "intercept": "true"})
        yield f"fedprior, seed {seed}", replace(ready, method="fedprior")


def descent() -> Iterator[tuple[str, Settings]]:
    """FedAvg on LeNet-5, for bytes, rounds and seconds to the same accuracy; its history has every fifth round."""
    yield (
        "fedavg, lenet5",
        Settings(
            data="cifar10",
            method="fedavg",
            test="global",
            partition="dirichlet:0.1",
            clients=20,
            alone=False,
            set={"model": "lenet5"},
            rounds=60,
            eval_every=5,
        ),
    )


PARTS = {"afl": afl, "widths": widths, "images": images, "personal": personal, "descent": descent}


def measured(name: str, settings: Settings) -> dict[str, Any]:
    """One run: accuracy of the last round, CPU seconds from reading the data on, bytes, peak memory of the process."""
    started = time.process_time()
    result: Result = execute(settings, prepared=prepare(settings))
    accuracy = result.accuracy
    return {
        "run": name,
        "mean": round(100 * (accuracy.mean or 0.0), 2),
        "pooled": round(100 * (accuracy.pooled or 0.0), 2),
        "cpu seconds": round(time.process_time() - started, 1),
        "rounds": result.rounds,
        "MB up a client": round(result.bytes_up / 1e6 / len(result.clients), 1),
        "MB down a client": round(result.bytes_down / 1e6 / len(result.clients), 1),
        "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "history": [round(100 * each.accuracy, 2) for each in result.history if each.accuracy is not None],
        "server": {key: value for key, value in result.server.items() if key in ("ridge", "groups")},
    }


def main(names: list[str]) -> None:
    """Parts by name, or some runs of one: `personal:seed 1` takes those with these words in their name."""
    for word in names or list(PARTS):
        part, _, some = word.partition(":")
        if part not in PARTS:
            sys.exit(f"unknown part {part!r}; known: {', '.join(PARTS)}")
        for name, settings in PARTS[part]():
            if some not in name:
                continue
            row = {"part": part, **measured(name, settings), "fedsolve": fs.__version__}
            print(json.dumps(row), flush=True)
            with OUT.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
