"""FedALA on LeNet-5 against a hand-written torch loop that does the same: blend, train, average, evaluate."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.methods.fedala import MOST_PASSES, SETTLED
from fedsolve.rng import derive

CLIENTS, SAMPLES, BATCH, EPOCHS, ROUNDS, LR = 10, 3000, 32, 2, 3, 0.01
TURNS = 3


def measure() -> list[dict[str, Any]]:
    """Three rounds of FedALA, in which the blend is learnt once until it settles and once in one pass; CPU seconds."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=SAMPLES)
    means = rng.integers(60, 200, size=(10, 28, 28))
    x = np.clip(means[y] + rng.normal(0, 60, size=(SAMPLES, 28, 28)), 0, 255).astype(np.uint8)
    federation = fs.Table.make("blobs", x, y).split("dirichlet:0.3", clients=CLIENTS, seed=0)
    method = fs.FedALA(model="lenet5", rounds=ROUNDS, epochs=EPOCHS, batch=BATCH, lr=LR, sgd_momentum=0.0)
    trained = ROUNDS * EPOCHS * sum(len(client.train) for client in federation.clients.values())

    def ours() -> object:
        return fs.run(method, federation, workers=1, evaluate_every=ROUNDS)

    bare(federation), ours()
    turns = []
    for _ in range(TURNS):
        started = time.process_time()
        bare(federation)
        between = time.process_time()
        ours()
        turns.append((between - started, time.process_time() - between))
    base, own = (statistics.median(each) for each in zip(*turns, strict=True))
    ratio = statistics.median(one / other for one, other in turns)
    return [
        {"what": "bare loop, samples a CPU second", "value": trained / base, "ratio": 1.0, "bar": ""},
        {"what": "FedALA, one worker, samples a CPU second", "value": trained / own, "ratio": ratio, "bar": 1.0},
    ]


def bare(federation: fs.Federation) -> float:
    """FedALA as one would write it by hand: one resident model, torch's optimiser, the blend of its last layer."""
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
    head = parameters[-2:]
    shared = [tensor.detach().clone() for tensor in parameters]
    own: dict[str, list[Any]] = {}
    blends: dict[str, list[Any]] = {}

    def images(samples: fs.Samples) -> tuple[Any, Any]:
        return torch.tensor(samples.inputs)[:, None].float() / 127.5 - 1, torch.tensor(samples.labels)

    def learn(name: str, x: Any, y: Any, rng: np.random.Generator) -> None:
        old, new = own[name][-2:], shared[-2:]
        passes = 1 if name in blends else MOST_PASSES
        weights = blends.setdefault(name, [torch.ones_like(tensor) for tensor in new])
        some = torch.from_numpy(np.sort(rng.choice(len(x), round(0.8 * len(x)), replace=False)))
        x, y, losses = x[some], y[some], list[float]()
        for _ in range(passes):
            total = 0.0
            for rows in torch.from_numpy(rng.permutation(len(x))).split(BATCH):
                with torch.no_grad():
                    for tensor, low, high, weight in zip(head, old, new, weights, strict=True):
                        tensor.copy_(low + (high - low) * weight)
                loss = functional.cross_entropy(model(x[rows]), y[rows])
                slopes = torch.autograd.grad(loss, head)
                with torch.no_grad():
                    for weight, slope, low, high in zip(weights, slopes, old, new, strict=True):
                        weight.sub_(slope * (high - low)).clamp_(0, 1)
                total += loss.item() * len(rows)
            losses.append(total / len(x))
            if len(losses) >= 10 and np.std(losses[-10:]) < SETTLED:
                break
        with torch.no_grad():
            for tensor, low, high, weight in zip(head, old, new, weights, strict=True):
                tensor.copy_(low + (high - low) * weight)

    for number in range(1, ROUNDS + 1):
        total, count = [torch.zeros_like(tensor) for tensor in parameters], 0
        for client in federation.clients.values():
            x, y = images(client.train)
            rng = derive(0, "update", client.name, number)
            with torch.no_grad():
                torch._foreach_copy_(parameters, shared)
            if client.name in own:
                for tensor in parameters[:-2]:
                    tensor.requires_grad_(False)
                learn(client.name, x, y, rng)
                for tensor in parameters:
                    tensor.requires_grad_(True)
            optimiser = torch.optim.SGD(parameters, lr=LR, foreach=True)
            for _ in range(EPOCHS):
                for rows in torch.from_numpy(rng.permutation(len(x))).split(BATCH):
                    optimiser.zero_grad()
                    functional.cross_entropy(model(x[rows]), y[rows]).backward()
                    optimiser.step()
            own[client.name] = [tensor.detach().clone() for tensor in parameters]
            torch._foreach_add_(total, own[client.name], alpha=len(x))
            count += len(x)
        shared = list(torch._foreach_div(total, count))
    right = tested = 0
    with torch.inference_mode():
        for client in federation.clients.values():
            x, y = images(client.test)
            for weights in (own[client.name], shared):  # its own model and the global one, as a run evaluates
                torch._foreach_copy_(parameters, weights)
                right += int((model(x).argmax(1) == y).sum())
                tested += len(y)
    torch.set_num_threads(before)
    return right / tested
