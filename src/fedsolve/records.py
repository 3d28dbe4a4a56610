"""The parts of a result: how one client fares, how a figure spreads over clients, a round, and where time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from fedsolve import metrics
from fedsolve.arrays import Arrays

Whose: TypeAlias = Literal["personal", "shared", "alone", "constant"]
"""The client's model, the global one, that of training alone, or the best constant answer for the client."""


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds of one client, by what it spent them on.

    >>> Times(compute=1.0, transfer=2.0) + Times(compute=0.5, waiting=1.5)
    Times(compute=1.5, waiting=1.5, transfer=2.0)
    >>> Times(compute=1.0, waiting=3.0).idle
    0.75
    """

    compute: float = 0.0  # the method's work, without the evaluation on test samples
    waiting: float = 0.0  # for the slowest client of each round it took part in
    transfer: float = 0.0  # of what it is sent and sends

    def __add__(self, other: Times) -> Times:
        return Times(self.compute + other.compute, self.waiting + other.waiting, self.transfer + other.transfer)

    @property
    def busy(self) -> float:
        """Seconds of work and of transfer."""
        return self.compute + self.transfer

    @property
    def idle(self) -> float:
        """The share of its seconds in which it waits."""
        total = self.busy + self.waiting
        return self.waiting / total if total > 0 else 0.0

    def json(self) -> dict[str, float]:
        """As it stands in result.json."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class ClientResult:
    """How one client fares. Figures are on its own test samples; there are none where it has none.

    Under a secure sum nobody else knows them, nor how many samples it has.
    """

    train: int | None
    test: int | None
    metrics: Mapping[str, float] = field(default_factory=dict)  # of its personal model
    shared_metrics: Mapping[str, float] = field(default_factory=dict)  # of the one global model
    alone_metrics: Mapping[str, float] = field(default_factory=dict)  # of training alone
    chosen: Mapping[str, float] = field(default_factory=dict)  # hyper-parameters chosen for this client
    unsure: tuple[int, ...] = ()  # features whose digits its model lost; see Solution.unsure
    constant_metrics: Mapping[str, float] = field(default_factory=dict)  # of the best constant answer for it
    seconds: Times | None = field(default=None, compare=False)  # as for all times: equal runs may differ in them

    @property
    def accuracy(self) -> float | None:
        """The accuracy of its personal model."""
        return self.metrics.get("accuracy")

    @property
    def shared(self) -> float | None:
        """The accuracy of the one global model on its test samples."""
        return self.shared_metrics.get("accuracy")

    @property
    def alone(self) -> float | None:
        """The accuracy of training alone."""
        return self.alone_metrics.get("accuracy")

    def of(self, whose: Whose) -> Mapping[str, float]:
        """The figures of its personal model, of the global one, of training alone, or of the best constant answer."""
        others = {"shared": self.shared_metrics, "alone": self.alone_metrics, "constant": self.constant_metrics}
        return {"personal": self.metrics, **others}[whose]

    def json(self) -> dict[str, Any]:
        """As it stands in result.json; the global model is called "global" there."""
        sizes = {name: n for name, n in (("train", self.train), ("test", self.test)) if n is not None}
        entry = {**sizes, "accuracy": self.accuracy, "metrics": dict(self.metrics)}
        others = {"global": self.shared_metrics, "alone": self.alone_metrics, "constant": self.constant_metrics}
        others["chosen"] = self.chosen
        filled = {name: dict(figures) for name, figures in others.items() if figures}
        timed = {} if self.seconds is None else {"seconds": self.seconds.json()}
        return {**entry, **filled, **({"unsure": list(self.unsure)} if self.unsure else {}), **timed}

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> ClientResult:
        """The inverse of `json`; format 1 had accuracies alone, as plain numbers."""
        others = (entry.get("global"), entry.get("alone"))
        shared, alone = (figures if isinstance(figures, Mapping) else _accuracy(figures) for figures in others)
        metrics = entry.get("metrics", _accuracy(entry["accuracy"]))
        chosen, unsure = entry.get("chosen", {}), tuple(entry.get("unsure", ()))
        train, test = entry.get("train"), entry.get("test")
        seconds = Times(**entry["seconds"]) if "seconds" in entry else None
        return cls(train, test, metrics, shared, alone, chosen, unsure, entry.get("constant", {}), seconds)


def _accuracy(value: float | None) -> dict[str, float]:
    return {} if value is None else {"accuracy": value}


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over clients. `mean` counts clients alike, `pooled` counts test samples alike: papers mix them up."""

    mean: float | None = None
    pooled: float | None = None
    std: float | None = None  # over clients
    worst_decile: float | None = None  # mean over the worst tenth of the clients, at least one


def spreads(
    clients: Mapping[str, ClientResult], whose: Whose = "personal", tally: Arrays | None = None
) -> dict[str, Spread]:
    """Every figure over the clients that have it. Pooled ones are those of the clients' summed `tally`, where given.

    Without it, pooled accuracy still follows from the clients' own, and no other pooled figure does.

    >>> spreads({"a": ClientResult(9, 1, {"accuracy": 1.0}), "b": ClientResult(9, 3, {"accuracy": 0.0})})["accuracy"]
    Spread(mean=0.5, pooled=0.25, std=0.5, worst_decile=0.0)
    """
    pooled = dict(metrics.figures(tally)) if tally else {}
    tested = [(client.of(whose), client.test or 0) for client in clients.values()]
    if "accuracy" not in pooled and any("accuracy" in figures for figures, _ in tested):
        counted = [(figures["accuracy"], count) for figures, count in tested if "accuracy" in figures]
        pooled["accuracy"] = sum(round(share * n) for share, n in counted) / sum(n for _, n in counted)
    by_name = {}
    for metric in metrics.METRICS.values():
        values = [figures[metric.name] for figures, _ in tested if metric.name in figures]
        if values:
            by_name[metric.name] = Spread(pooled=pooled.get(metric.name), **metrics.spread(values, metric.better))
        elif not any(figures for figures, _ in tested) and metric.name in pooled:  # as under a secure sum
            by_name[metric.name] = Spread(pooled=pooled[metric.name])
    return by_name


@dataclass(frozen=True, slots=True)
class Round:
    """One line of the history."""

    round: int
    bytes_up: int
    bytes_down: int
    seconds: float  # as measured; on emulated devices, those of the slowest client and of the server
    missing: tuple[str, ...] = ()  # clients that were not part of it
    loss: float | None = None  # mean training loss, where clients send it
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # mean and pooled, if evaluated

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy over clients, where it was evaluated."""
        return self.metrics.get("accuracy", {}).get("mean")

    def json(self) -> dict[str, Any]:
        """As it stands in result.json, without a loss where there is none."""
        line = {name: value for name, value in asdict(self).items() if name != "loss" or value is not None}
        return {"round": line.pop("round"), "accuracy": self.accuracy, **line}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Round:
        """The inverse of `json`; format 1 had accuracies alone."""
        values = {name: value for name, value in line.items() if name != "accuracy"}
        if "metrics" not in values and line["accuracy"] is not None:
            values["metrics"] = {"accuracy": {"mean": line["accuracy"]}}
        return cls(**{**values, "missing": tuple(values["missing"])})


@dataclass(frozen=True, slots=True)
class Seconds:
    """The seconds of a run, by what they were spent on."""

    features: float = 0.0
    clients: float = 0.0
    server: float = 0.0
    evaluate: float = 0.0
    total: float = 0.0
