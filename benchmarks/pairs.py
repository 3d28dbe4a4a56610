"""What two classes a client allow: a LeNet-5 for each pair of classes of Fashion-MNIST, trained on all of both.

`classes:2` deals pairs by chance, and some are hard to tell apart for any model. `neighbours:2` has the same five easy
pairs whatever the seed. The mean over a split's clients is what a federation of such clients can hardly surpass.
"""

from __future__ import annotations

from itertools import combinations
from statistics import mean
from typing import Any

import numpy as np

import fedsolve as fs

SPLITS = (*(("classes:2", seed) for seed in range(3)), ("neighbours:2", 0))
CLIENTS, ROUNDS, EPOCHS = 20, 5, 2


def measure() -> list[dict[str, Any]]:
    """The mean accuracy over a split's clients, if each had all pictures of its two classes."""
    table = fs.load("fashion-mnist")
    if table.test is None:
        raise fs.DataError("fashion-mnist needs its test set")
    train, test = (table.inputs, table.labels), (table.test.inputs, table.test.labels)
    pairs = list(combinations(range(10), 2))
    everything = {_name(pair): {"train": _only(pair, *train), "test": _only(pair, *test)} for pair in pairs}
    federation = fs.Federation.from_arrays(everything, classes=10)
    alone = fs.Local(model="lenet5", rounds=ROUNDS, epochs=EPOCHS)
    result = fs.run(alone, federation, evaluate_every=ROUNDS)
    reached = {name: client.accuracy or 0.0 for name, client in result.clients.items()}
    rows = [{"what": f"pair {name}", "value": value, "ratio": "", "bar": ""} for name, value in reached.items()]
    for partition, seed in SPLITS:
        clients = table.split(partition, clients=CLIENTS, seed=seed, test="official").clients.values()
        best = mean(reached[_name(tuple(np.unique(client.train.labels).tolist()))] for client in clients)
        rows.append({"what": f"{partition}, seed {seed}: mean over clients", "value": best, "ratio": "", "bar": ""})
    return rows


def _name(pair: tuple[int, ...]) -> str:
    return "-".join(map(str, pair))


def _only(pair: tuple[int, int], inputs: Any, labels: Any) -> tuple[Any, Any]:
    rows = np.isin(labels, pair)
    return inputs[rows], labels[rows]
