"""Accuracy of gradient methods on real data: a line of JSON a run in benchmarks/results/gradient.jsonl, no run twice.

    FEDSOLVE_DATA=... python -m benchmarks.baselines PART[:WORDS] ...

takes the runs of a part with all WORDS in their name, as in `fashion:fedpac seed=1`. $FEDSOLVE_DATA holds
fashion-mnist.npz, mnist.npz, cifar10.npz (20,000 training images), cifar10-whole.npz (all 50,000) and
cifar100-features.npz. A run that is stopped goes on from its checkpoint;
the last round is what counts. `choices` is where constants without a known value were picked: on a fifth of the
*training* samples of each client, never on the official test sets that the other parts report.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsolve import methods
from fedsolve.errors import FedsolveError
from fedsolve.reproduce.fedapa import PRINTED
from fedsolve.result import CHECKPOINT, Round
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.study.experiment import Settings, execute

EVERY = 5  # rounds between two checkpoints
OUT = Path(__file__).parent / "results" / "gradient.jsonl"
SEEDS = (0, 1, 2)
DIRICHLETS = ("dirichlet:0.1", "dirichlet:0.5", "dirichlet:1.0")

Run = tuple[str, Settings]


def fashion() -> Iterator[Run]:
    """FedAPA's setting: LeNet-5, 20 clients, the official test set dealt out, 50 rounds of 2 epochs."""
    base = Settings(data="fashion-mnist", clients=20, test="official", rounds=50, eval_every=5, alone=False)
    personal = "fedpac feddbe pfedhn fedproto fedphp fedgh fedamp apple pfedla local"
    for seed in SEEDS:
        for split in ("dirichlet:0.1", "classes:2"):
            for method in ("fedapa fedala fedavg" + (f" {personal}" if split == "dirichlet:0.1" else "")).split():
                run = replace(base, method=method, seed=seed, partition=split, set={"model": "lenet5"})
                yield f"fashion-mnist {split} {method} seed={seed} rounds=50", run


def cifar10() -> Iterator[Run]:
    """The same on CIFAR-10, 60 rounds."""
    base = Settings(data="cifar10", clients=20, test="official", rounds=60, eval_every=5, alone=False)
    for method in ("fedapa", "fedala", "fedavg"):
        run = replace(base, method=method, partition="dirichlet:0.1", set={"model": "lenet5"})
        yield f"cifar10 dirichlet:0.1 {method} seed=0 rounds=60", run


def protocol() -> Iterator[Run]:
    """FedAPA's own protocol: 60 to 100 % of the clients in a round, uneven shares; as printed and with our defaults.

    Evaluated in every round, since the paper's figure is that of the best one.
    """
    base = Settings(
        clients=20, test="official", participation="0.6-1", rounds=50, eval_every=1, alone=False,
        set={"model": "lenet5"},
    )  # fmt: skip
    beside = ("local", "fedavg", "fedala")
    tried = [("fedapa", {}, "fedapa"), ("fedapa", PRINTED, "fedapa-printed"), *((name, {}, name) for name in beside)]
    places = [("fashion-mnist", "dirichlet:0.1"), ("fashion-mnist", "neighbours:2,uneven")]
    for data, split in [*places, ("cifar10-whole", "dirichlet:0.1")]:
        for seed in SEEDS:
            for method, some, word in tried if data == "cifar10-whole" else tried[:2]:
                run = replace(base, data=data, partition=split, method=method, seed=seed, set={**base.set, **some})
                yield f"protocol {data} {split} {word} seed={seed} rounds=50", run


def mnist() -> Iterator[Run]:
    """Personal and zeroth-order methods, 100 clients, the official test set dealt out."""
    base = Settings(
        data="mnist", clients=100, partition="dirichlet:0.1", test="official", rounds=200, eval_every=20, alone=False
    )
    for model in ("lr", "mlp:128,64"):
        for method in ("pfedme", "local", "fedavg", "ditto"):
            yield f"mnist {method} {model} rounds=200", replace(base, method=method, set={"model": model})
    yield "mnist pfedzo lr rounds=60", replace(base, method="pfedzo", set={"model": "lr"}, rounds=60)
    for method in ("fedavg", "fedzo", "baffle"):
        run = replace(base, method=method, set={"model": "lr"}, test="global", rounds=50, eval_every=10)
        yield f"mnist {method} lr global rounds=50", run
    closed = replace(base, method="fedacnnl", set={"network": "lr"}, test="global", rounds=None)
    yield "mnist fedacnnl lr global", closed


def features() -> Iterator[Run]:
    """Frozen features of CIFAR-100, a head of one hidden layer, 50 clients."""
    base = Settings(data="cifar100-features", clients=50, test="official", rounds=50, eval_every=10, alone=False)
    for split in DIRICHLETS:
        for method in ("feddbe", "fedavg", "fedselect", "fedala", "fedpcl", "local"):
            chosen = replace(base, method=method, partition=split, set={"model": "mlp:256"})
            yield f"cifar100-features {split} {method} mlp:256 rounds=50", chosen
        # Nothing is learnt: the nearest mean of an own class, of the features as they are.
        nearest = {"model": "lr", "rounds": 1, "epochs": 1, "lr": 0.0}
        run = replace(base, method="fedproto", partition=split, set=nearest, rounds=1)
        yield f"cifar100-features {split} nearest mean", run


def heads() -> Iterator[Run]:
    """Frozen features of CIFAR-100, 100 clients that have hardly a class in common, one global linear head."""
    base = Settings(data="cifar100-features", clients=100, test="global", rounds=50, eval_every=10, alone=False)
    for method in ("fedavg", "feddyn", "moon"):
        run = replace(base, method=method, partition="dirichlet:0.01", set={"model": "lr"})
        yield f"cifar100-features dirichlet:0.01 {method} lr rounds=50", run


def choices() -> Iterator[Run]:
    """Constants that no source gives for such data, on a fifth of each client's training samples."""
    pictures = Settings(
        data="fashion-mnist", limit=12_000, clients=20, partition="dirichlet:0.1", test=0.2, seed=10, rounds=20,
        eval_every=5, alone=False,
    )  # fmt: skip
    tried: list[tuple[str, dict[str, Any]]] = [("local", {}), ("fedavg", {})]
    tried += [("feddbe", {"kappa": kappa}) for kappa in (0.0, 0.1, 1.0, 5.0, 50.0)]
    tried += [("fedamp", {"alpha": alpha, "sigma": sigma}) for alpha in (0.01, 0.1, 0.5) for sigma in (0.5, 1.0)]
    tried += [("fedamp", {"lam": lam}) for lam in (0.0, 0.001, 0.01, 0.03, 0.1)]
    tried += [("fedamp", {"alpha": 0.001, "lam": lam}) for lam in (0.0, 0.001, 0.01)]
    tried += [("pfedla", {"server_lr": rate, "own": own}) for rate in (0.05, 0.5) for own in (0.0, 0.5, 0.8)]
    tried += [("pfedhn", {"server_lr": rate}) for rate in (0.01, 0.003, 0.001)]
    tried += [("fedgh", {"server_passes": passes}) for passes in (1, 10)]
    for method, some in tried:
        words = " ".join(f"{key}={value}" for key, value in some.items())
        yield f"choice fashion {method} {words}", replace(pictures, method=method, set={"model": "lenet5", **some})
    whole = replace(pictures, limit=None, rounds=50)  # five times the steps in a round: a pull weighs more
    tried = [("local", {}), *(("fedamp", {"lam": lam}) for lam in (0.0001, 0.0003))]
    for method, some in tried + [("feddbe", {"kappa": kappa}) for kappa in (5.0, 20.0, 50.0)]:
        words = " ".join(f"{key}={value}" for key, value in some.items())
        yield f"choice whole fashion {method} {words}", replace(whole, method=method, set={"model": "lenet5", **some})
    digits = replace(pictures, data="mnist", limit=None, clients=100, rounds=60, eval_every=20)
    for lam, rate in ((15.0, 0.01), (15.0, 0.03), (15.0, 0.05), (5.0, 0.03)):
        run = replace(digits, method="pfedme", set={"model": "mlp:128,64", "lam": lam, "lr": rate})
        yield f"choice mnist pfedme mlp:128,64 lam={lam} lr={rate}", run
    vectors = replace(pictures, data="cifar100-features", limit=None, clients=50)
    for split in DIRICHLETS:
        for method, some in [("fedavg", {}), *(("feddbe", {"kappa": kappa}) for kappa in (0.0, 0.1, 1.0, 5.0, 50.0))]:
            words = " ".join(f"{key}={value}" for key, value in some.items())
            run = replace(vectors, method=method, partition=split, set={"model": "mlp:256", **some})
            yield f"choice features {split} {method} {words}", run


PARTS = {
    "fashion": fashion, "cifar10": cifar10, "protocol": protocol, "mnist": mnist, "features": features, "heads": heads,
    "choices": choices,
}  # fmt: skip


def main(words: list[str]) -> None:
    OUT.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    for word in words or list(PARTS):
        part, _, some = word.partition(":")
        if part not in PARTS:
            sys.exit(f"unknown part {part!r}; known: {', '.join(PARTS)}")
        for name, settings in PARTS[part]():
            if all(each in name.split() or each in name for each in some.split()) and name not in done():
                try:
                    one(name, settings)
                except FedsolveError as error:  # the others can still be run
                    failed.append(f"{name}: {error}")
                    print(failed[-1], flush=True)
    if failed:
        sys.exit("failed:\n" + "\n".join(failed))


def done() -> set[str]:
    """The names of runs that have a line."""
    return {json.loads(line)["run"] for line in OUT.read_text().splitlines()} if OUT.exists() else set()


def one(name: str, settings: Settings) -> None:
    """A run from its checkpoint, or from the start, and its line."""
    folder = OUT.parent / name.replace(" ", "_").replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    resume = (folder / CHECKPOINT).exists()

    def report(line: Round, of: int) -> None:
        if line.accuracy is not None:
            print(f"{name}: round {line.round} of {of}, {line.accuracy:.4f}, {line.seconds:.1f} s", flush=True)

    started = time.time()
    result = execute(settings, on_round=report, checkpoint=Checkpoint(folder, EVERY, resume))
    record = {
        "run": name,
        "mean": round(100 * (result.accuracy.mean or 0), 2),
        "pooled": round(100 * (result.accuracy.pooled or 0), 2),
        "clients": {name: round(100 * (client.accuracy or 0), 2) for name, client in result.clients.items()},
        "history": [round(100 * line.accuracy, 2) for line in result.history if line.accuracy is not None],
        "pooled history": [round(100 * value, 2) for line in result.history if (value := _pooled(line)) is not None],
        "settings": repr(methods.create(settings.method, result.settings["set"])),
        "hours": round((time.time() - started) / 3600, 2),
        "MB up": round(result.bytes_up / 1e6, 3),
        "MB down": round(result.bytes_down / 1e6, 3),
    }
    with OUT.open("a") as file:
        file.write(json.dumps(record) + "\n")
    shutil.rmtree(folder)
    print(json.dumps(record), flush=True)


def _pooled(line: Round) -> float | None:
    """The share of all test samples that were right after a round; None where nobody was evaluated."""
    return line.metrics.get("accuracy", {}).get("pooled")


if __name__ == "__main__":
    main(sys.argv[1:])
