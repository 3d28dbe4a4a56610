"""What a round of each gradient method costs, over FedAvg's: CPU time, in turns, without evaluation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve import methods, parameters
from fedsolve.method import Method
from fedsolve.runtime.drive import Snapshot, drive
from fedsolve.runtime.inprocess import InProcess

TURNS = 5
WARM = 2  # rounds that are not counted: only from the second on do clients have a last model, class means or a bias
BARS = {"moon": 1.5, "fedproto": 1.3, "apple": 1.6}
PASS_BARS = {"fedpac": 1.2}  # of a pass over the data: FedPAC makes one more, for the head
FEWER: Mapping[str, Mapping[str, object]] = {  # directions, since each is a pass or two: the cost of one step is said
    name: {"directions": 2} for name in ("fedzo", "baffle", "pfedzo")
}


def measure(clients: int = 10, samples: int = 300, turns: int = TURNS) -> list[dict[str, Any]]:
    """CPU seconds of a round over those of FedAvg's beside it, medians over turns; per pass where there is one more."""
    rows = []
    for network, federation in (("lenet5", pictures(clients, samples)), ("mlp:64", digits(clients))):
        for name in names():
            rows.append({"network": network, **_row(name, network, federation, turns)})
    return rows


def names() -> list[str]:
    """The methods that train a network by descent; `local` among them, with a network."""
    return [name for name in methods.CATALOGUE if any(not cls.closed_form for cls in methods.classes(name))]


def pictures(clients: int, samples: int) -> fs.Federation:
    """Noise of the size of Fashion-MNIST: a round takes as long whatever the pixels show."""
    rng = np.random.default_rng(0)
    parts = {
        f"client-{number:02d}": {
            "train": (rng.integers(256, size=(samples, 28, 28), dtype=np.uint8), rng.integers(10, size=samples))
        }
        for number in range(clients)
    }
    return fs.Federation.from_arrays(parts, classes=10)


def digits(clients: int) -> fs.Federation:
    return fs.load("digits").split("dirichlet:0.5", clients=clients, seed=0)


class _Enough(Exception):
    """One round is over."""


class Course:
    """A run that takes one round at a time, and evaluates nobody."""

    def __init__(self, method: Method, federation: fs.Federation) -> None:
        self._method, self._task = method, federation.task
        self._transport = InProcess(method, federation, workers=1)
        self._kept: Snapshot | None = None

    def round(self) -> float:
        """CPU seconds of the next round."""

        def keep(snapshot: Snapshot) -> None:
            self._kept = snapshot
            raise _Enough

        started = time.process_time()
        try:
            with self._transport:
                drive(self._method, self._task, self._transport, resume=self._kept, keep=keep, evaluate=False)
        except _Enough:
            pass
        return time.process_time() - started


def _row(name: str, network: str, federation: fs.Federation, turns: int) -> dict[str, Any]:
    given = dict(FEWER.get(name, {}))
    method = methods.create(name, {"model": network, "rounds": 50, **given})
    base, course = Course(fs.FedAvg(model=network, rounds=50), federation), Course(method, federation)
    for _ in range(WARM):
        base.round(), course.round()
    pairs = [(base.round(), course.round()) for _ in range(turns)]
    ratio = statistics.median(taken / floor for floor, taken in pairs)
    values = parameters.values(method)
    further = int(values.get("head_epochs", 0))
    return {
        "method": name + "".join(f" {key}={value}" for key, value in given.items()),
        "seconds a round": statistics.median(taken for _, taken in pairs),
        "over fedavg": ratio,
        "per pass": ratio * values["epochs"] / (values["epochs"] + further) if further else "",
        "bar": BARS.get(name, ""),
        "bar per pass": PASS_BARS.get(name, ""),
    }
