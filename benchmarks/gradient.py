"""Accuracy of gradient methods in the setting of FedAPA's paper: a line of JSON a run, and no run twice.

    FEDSOLVE_DATA=... python -m benchmarks.gradient [--data fashion-mnist] [--methods fedapa,fedala,fedavg]
        [--partitions dirichlet:0.1,classes:2] [--seeds 0,1,2] [--rounds 50] [--out benchmarks/results/gradient.jsonl]

LeNet-5, 20 clients, official test set in the clients' class shares, SGD 0.01 with momentum 0.9, batch 64, 2 epochs.
A run that is stopped goes on from its checkpoint, and the last round is what counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from fedsolve import methods
from fedsolve.result import CHECKPOINT, Round
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.study.experiment import Settings, execute

EVERY = 5  # rounds between two checkpoints


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--methods", default="fedapa,fedala,fedavg")
    parser.add_argument("--partitions", default="dirichlet:0.1,classes:2")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gradient.jsonl")
    given = parser.parse_args(arguments)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {json.loads(line)["run"] for line in lines}
    for seed in given.seeds.split(","):
        for partition in given.partitions.split(","):
            for method in given.methods.split(","):
                name = f"{given.data} {partition} {method} seed={seed} rounds={given.rounds}"
                if name not in done:
                    one(name, given.data, partition, method, int(seed), given.rounds, given.out)


def one(name: str, data: str, partition: str, method: str, seed: int, rounds: int, out: Path) -> None:
    folder = out.parent / name.replace(" ", "_").replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    resume = (folder / CHECKPOINT).exists()
    settings = Settings(
        method=method, set={"model": "lenet5"}, data=data, clients=20, partition=partition, test="official", seed=seed,
        rounds=rounds, eval_every=5, alone=False,
    )  # fmt: skip

    def report(line: Round, of: int) -> None:
        if line.accuracy is not None:
            print(f"{name}: round {line.round} of {of}, {line.accuracy:.4f}, {line.seconds:.1f} s", flush=True)

    started = time.time()
    result = execute(settings, report=report, checkpoint=Checkpoint(folder, EVERY, resume))
    record = {
        "run": name,
        "mean": round(100 * (result.accuracy.mean or 0), 2),
        "pooled": round(100 * (result.accuracy.pooled or 0), 2),
        "clients": {name: round(100 * (client.accuracy or 0), 2) for name, client in result.clients.items()},
        "history": [round(100 * line.accuracy, 2) for line in result.history if line.accuracy is not None],
        "settings": methods.create(method, result.settings["set"]).__repr__(),
        "hours": round((time.time() - started) / 3600, 2),
    }
    with out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    shutil.rmtree(folder)
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
