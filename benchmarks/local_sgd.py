"""FedAvg on LeNet-5 against a hand-written torch loop over the same batches; FedAPA's server; memory."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.rng import derive

CLIENTS, BATCH, EPOCHS, LR, MOMENTUM = 20, 64, 2, 0.01, 0.9
SAMPLES = 60_000
TURNS = 3
GROUPS = 20  # of clients, taken in turn by both sides, since the machine's own speed drifts within seconds


def measure() -> list[dict[str, Any]]:
    """LeNet-5, 20 clients, batch 64, 2 epochs: trained samples a CPU second, whole round with evaluation."""
    federation = _federation()
    method = fs.FedAvg(model="lenet5", rounds=1, epochs=EPOCHS, batch=BATCH, lr=LR, sgd_momentum=MOMENTUM)
    trained = EPOCHS * sum(len(client.train) for client in federation.clients.values())
    groups = [_group(federation, first) for first in range(GROUPS)]
    bare(groups[0]), fs.run(method, groups[0], workers=1)
    turns = [_cpu_of_a_round(method, groups) for _ in range(TURNS)]
    rows: list[dict[str, Any]] = [
        {"what": "bare loop (NCHW, autograd, foreach SGD), samples a CPU second",
         "value": trained / statistics.median(base for base, _ in turns), "ratio": 1.0, "bar": ""},
        {"what": "FedAvg, one worker, samples a CPU second",
         "value": trained / statistics.median(ours for _, ours in turns),
         "ratio": statistics.median(base / ours for base, ours in turns), "bar": 1.15},
    ]  # fmt: skip
    walls = [[_wall(lambda n=n: fs.run(method, federation, workers=n)) for n in (1, 2)] for _ in range(TURNS)]
    sides = [(_wall(lambda: bare(federation)), _wall(lambda: _side_by_side(federation))) for _ in range(TURNS)]
    rows.append(
        {"what": "a round with two workers, seconds; times faster than one",
         "value": statistics.median(two for _, two in walls),
         "ratio": statistics.median(one / two for one, two in walls), "bar": 1.7}
    )  # fmt: skip
    rows.append(
        {"what": "two bare loops side by side, seconds; times faster than one after the other (the ceiling here)",
         "value": statistics.median(two for _, two in sides),
         "ratio": statistics.median(2 * one / two for one, two in sides), "bar": ""}
    )  # fmt: skip
    rows += _server()
    rows += [_memory(clients) for clients in (100, 1000)]
    return rows


def _federation() -> fs.Federation:
    try:
        table = fs.load("fashion-mnist")
        x, y, test = table.inputs[:SAMPLES], table.labels[:SAMPLES], table.test
        if test is None:
            raise fs.DataError("no test set")
        official = (test.inputs[: SAMPLES // 6], test.labels[: SAMPLES // 6])
    except fs.DataError:  # speed does not depend on what the pixels show
        rng = np.random.default_rng(0)
        x, y = rng.integers(256, size=(SAMPLES, 28, 28), dtype=np.uint8), rng.integers(10, size=SAMPLES)
        official = (x[: SAMPLES // 6], y[: SAMPLES // 6])
    made = fs.Table.make("fashion-mnist", x, y, test=official)
    return made.split("dirichlet:0.1", clients=CLIENTS, seed=0, test="official")


def _group(federation: fs.Federation, first: int) -> fs.Federation:
    clients = dict(list(federation.clients.items())[first::GROUPS])
    return dataclasses.replace(federation, clients=clients)


def _cpu_of_a_round(method: fs.FedAvg, groups: list[fs.Federation]) -> tuple[float, float]:
    """CPU seconds of the bare loop and of ours, group by group."""
    pairs = [(_cpu(lambda g=g: bare(g)), _cpu(lambda g=g: fs.run(method, g, workers=1))) for g in groups]
    base, ours = zip(*pairs, strict=True)
    return sum(base), sum(ours)


def bare(federation: fs.Federation) -> float:
    """One FedAvg round as one would write it by hand: tensors in memory, one resident model, torch's optimiser."""
    import torch
    from torch import nn
    from torch.nn import functional

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    parameters = list(model.parameters())
    start = [tensor.detach().clone() for tensor in parameters]
    total = [torch.zeros_like(tensor) for tensor in parameters]

    def images(samples: fs.Samples) -> tuple[Any, Any]:
        return torch.tensor(samples.inputs)[:, None].float() / 127.5 - 1, torch.tensor(samples.labels)

    count = 0
    for client in federation.clients.values():
        x, y = images(client.train)
        with torch.no_grad():
            torch._foreach_copy_(parameters, start)
        optimiser = torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, foreach=True)
        rng = derive(0, "update", client.name, 1)
        for _ in range(EPOCHS):
            order = torch.from_numpy(rng.permutation(len(x)))
            for rows in order.split(BATCH):
                optimiser.zero_grad()
                functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
        with torch.no_grad():
            torch._foreach_add_(total, parameters, alpha=len(x))
        count += len(x)
    right = tested = 0
    with torch.inference_mode():
        torch._foreach_copy_(parameters, torch._foreach_div(total, count))
        for client in federation.clients.values():
            if len(client.test):
                x, y = images(client.test)
                right += sum(
                    int((model(part).argmax(1) == label).sum())
                    for part, label in zip(x.split(512), y.split(512), strict=True)
                )
                tested += len(y)
    torch.set_num_threads(before)
    return right / tested


def _side_by_side(federation: fs.Federation) -> None:
    """The bare loop in two processes at once."""
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=bare, args=(federation,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a bare loop ended with {process.exitcode}")


def _server(clients: int = 50) -> list[dict[str, Any]]:
    """FedAPA's own work in a round with 50 clients, over the whole round."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(clients * 240, 28, 28), dtype=np.uint8), rng.integers(10, size=clients * 240)
    federation = fs.Table.make("noise", x, y).split("iid", clients=clients, test=0.1)
    result = fs.run(fs.FedAPA(model="lenet5", rounds=3), federation, workers=1)
    return [
        {"what": f"FedAPA's server, {clients} clients of 216 samples, seconds a round; share of the round",
         "value": result.seconds.server / 3, "ratio": result.seconds.server / result.seconds.total, "bar": 0.03}
    ]  # fmt: skip


SCRIPT = """
import json, sys
import numpy as np
import fedsolve as fs
clients = int(sys.argv[1])
rng = np.random.default_rng(0)
x, y = rng.integers(256, size=(clients * 12, 28, 28), dtype=np.uint8), rng.integers(10, size=clients * 12)
federation = fs.Table.make("noise", x, y).split("iid", clients=clients)
peaks = {}
for name in ("FedAvg", "FedAPA"):
    fs.run(getattr(fs, name)(model="lenet5", rounds=2, epochs=1), federation)
    status = open("/proc/self/status").read().split()
    peaks[name] = int(status[status.index("VmHWM:") + 1]) * 1024
print(json.dumps(peaks))
"""


def _memory(clients: int) -> dict[str, Any]:
    command = [sys.executable, "-c", SCRIPT, str(clients)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout)
    return {"what": f"peak GB, {clients} clients, LeNet-5: FedAvg; then FedAPA in the same process",
            "value": found["FedAvg"] / 1e9, "ratio": found["FedAPA"] / 1e9, "bar": ""}  # fmt: skip


def _cpu(call: Any) -> float:
    def used() -> float:
        own, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime

    started = used()
    call()
    return used() - started


def _wall(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
