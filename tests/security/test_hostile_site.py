"""A site that means harm: whatever it says, the run ends, it is named, and every honest model is the same to the bit.

Each mode is one thing that a hostile site does to its hello, its reply or its tallies. What nobody can tell from an
honest answer, as statistics of samples that it made up, is not among them.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays, codec, metrics
from fedsolve.arrays import Arrays
from fedsolve.blas import packed_diagonal
from fedsolve.codec import Bytes
from fedsolve.data.federation import Federation
from fedsolve.method import Method
from fedsolve.runtime.drive import Outcome, drive
from fedsolve.runtime.inbox import Failure
from fedsolve.runtime.inprocess import InProcess

HOSTILE, FEATURES, CLASSES = "ward-b", 6, 3
METHODS: dict[str, Method] = {
    "afl": fs.AFL(),
    "afl-intercept": fs.AFL(intercept=True),
    "apfl": fs.APFL(d_primary=12, d_refine=12),
    "fedhip": fs.FedHiP(),
    "fedprior": fs.FedPrior(),
    "fedacnnl": fs.FedACnnL(network="mlp:8", adaptive=True),
    "pfedacnnl": fs.PFedACnnL(network="mlp:8", groups=2),
}

Spoil = Callable[[dict[str, Any], dict[str, Any]], Bytes | Failure]


# --- what a hostile site does to its reply ---


def put(method: str = "fedhip", **changed: Callable[[Any], Any]) -> tuple[str, Spoil]:
    """Some arrays of the reply changed; nonsense in a round whose replies have no such arrays."""

    def spoil(reply: dict[str, Any], head: dict[str, Any]) -> Bytes:
        if not changed.keys() <= reply.keys():
            return b"nonsense"
        return codec.encode({**reply, **{name: change(reply[name]) for name, change in changed.items()}}, head)

    return method, spoil


def header(**changed: object) -> tuple[str, Spoil]:
    """Values beside the arrays that are no texts, or other texts; `...` takes one away."""

    def spoil(reply: dict[str, Any], head: dict[str, Any]) -> Bytes:
        data = bytes(codec.encode(reply))
        length = 8 + int.from_bytes(data[:8], "little")
        words = {name: value for name, value in {**head, **changed}.items() if value is not ...}
        text = json.dumps({**json.loads(data[8:length]), "__metadata__": words}).encode()
        return len(text).to_bytes(8, "little") + text + data[length:]

    return "fedacnnl", spoil


def instead(answer: Bytes | Failure | Arrays, method: str = "fedhip") -> tuple[str, Spoil]:
    """Something else in place of the reply."""

    def spoil(reply: dict[str, Any], head: dict[str, Any]) -> Bytes | Failure:
        return answer if isinstance(answer, bytes | memoryview | Failure) else codec.encode(answer, head)

    return method, spoil


def cut(reply: dict[str, Any], head: dict[str, Any]) -> Bytes:
    return codec.encode(reply, head)[:-9]


def more(method: str = "fedhip", **arrays: Any) -> tuple[str, Spoil]:
    """Arrays more than there should be."""
    return method, lambda reply, head: codec.encode({**reply, **arrays}, head)


def less(name: str, method: str = "fedhip") -> tuple[str, Spoil]:
    """One array fewer."""
    return method, lambda reply, head: codec.encode({n: a for n, a in reply.items() if n != name}, head)


def scaled(share: float) -> Callable[[Any], Any]:
    return lambda array: array * share


def same(value: Any) -> Callable[[Any], Any]:
    return lambda array: np.array(value)


def entry(value: float, *place: int) -> Callable[[Any], Any]:
    """One number in place of another."""

    def change(array: Any) -> Any:
        changed = np.array(array)
        changed[place] = value
        return changed

    return change


def diagonal(number: int, change: Callable[[float], float], features: int = FEATURES) -> Callable[[Any], Any]:
    """The sum of squares of one feature changed, in a triangle."""

    def spoil(array: Any) -> Any:
        triangle = np.array(array)
        place = packed_diagonal(features)[number]
        triangle[place] = change(float(triangle[place]))
        return triangle

    return spoil


def widened(reply: dict[str, Any], head: dict[str, Any]) -> Bytes:
    """Moments of a hundred thousand classes."""
    return codec.encode({**reply, "cross": np.zeros((FEATURES, 100_000))}, head)


def enlarged(reply: dict[str, Any], head: dict[str, Any]) -> Bytes:
    """Moments of samples whose features are 1e80 times as large: possible, but their squares are in no sum's reach."""
    return codec.encode({**reply, "triangle": 1e160 * reply["triangle"], "cross": 1e80 * reply["cross"]}, head)


def other_labels(reply: dict[str, Any], head: dict[str, Any]) -> Bytes:
    """Class sums that are not those of the samples, with the class counts left as they are."""
    cross = np.array(reply["cross"])
    cross[0] += 1.0
    return codec.encode({**reply, "cross": cross}, head)


def shifted_counts(by: float) -> Callable[[Any], Any]:
    """Class counts, in the row of the feature that is one, that sum to the same."""

    def change(array: Any) -> Any:
        cross = np.array(array)
        cross[-1, 0] += by
        cross[-1, 1] -= by
        return cross

    return change


REPLIES: dict[str, tuple[str, Spoil]] = {
    "no bytes": instead(b""),
    "nonsense": instead(b"nonsense " * 9),
    "cut off": ("fedhip", cut),
    "a header longer than all": instead((2**62).to_bytes(8, "little") + b"{}"),
    "a header of brackets": instead((20_000).to_bytes(8, "little") + b"[" * 20_000),
    "an escape in its reason": instead(Failure("\x1b]0;mine\x07 \x1b[2J\u202eno data\r\n")),
    "a reason without end": instead(Failure("no data " * 100_000)),
    "seconds null": header(seconds=None),
    "seconds a list": header(seconds=[1.0]),
    "seconds infinite": header(seconds="inf"),
    "seconds below zero": header(seconds="-1"),
    "seconds beyond counting": header(seconds="1e308"),
    "no space": header(space=...),
    "space a list": header(space=["7"]),
    "no arrays": instead({}),
    "an array more": more(extra=np.ones(3)),
    "a count fewer": less("count"),
    "F'F fewer": less("triangle"),
    "F'Y not a number": put(cross=scaled(np.nan)),
    "F'F infinite": put(triangle=scaled(np.inf)),
    "F'Y at the end of numbers": put(cross=entry(1.7e308, 0, 0)),
    "F'Y times a million": put(cross=scaled(1e6)),
    "F'Y times three halves": put(cross=scaled(1.5)),
    "F'Y turned": put(cross=lambda cross: np.array(cross[:, ::-1] * 40)),
    "F'F next to nothing": put(triangle=scaled(1e-6)),
    "F'F below zero": put(triangle=scaled(-1.0)),
    "F'F indefinite": put(triangle=diagonal(3, lambda value: 0.1 * value)),
    "F'F of a full matrix": put(triangle=lambda triangle: np.ones((FEATURES, FEATURES))),
    "features beyond all sums": ("fedhip", enlarged),
    "a count of 2^63 - 1": put(count=same(2**63 - 1)),
    "a count of 2^41": put(count=same(2**41)),
    "a count below zero": put(count=same(-5)),
    "a count of none": put(count=same(0)),
    "a count that is none": put(count=same(3.5)),
    "two counts": put(count=same([5, 5])),
    "a count as bytes": put(count=lambda count: np.array(5, dtype=np.uint8)),
    "single precision": put(cross=lambda cross: cross.astype(np.float32)),
    "whole numbers": put(cross=lambda cross: np.ones_like(cross, dtype=np.int64)),
    "fewer classes": put(cross=lambda cross: np.array(cross[:, :2])),
    "a hundred thousand classes": ("fedhip", widened),
    "scatter at the end of numbers": put("fedprior", triangle=diagonal(0, lambda value: value + 1e307, FEATURES + 1)),
    "class counts below zero": put("fedprior", cross=shifted_counts(1000.0)),
    "class counts in parts": put("fedprior", cross=shifted_counts(0.5)),
    "class counts of another count": put("fedprior", count=lambda count: count + 1),
    "sums of other labels": ("afl-intercept", other_labels),
    "a count of 2^63 - 1 beside ones": put("afl-intercept", count=same(2**63 - 1)),
    "random features times a million": put("apfl", cross=scaled(1e6)),
    "a layer at the end of numbers": put("fedacnnl", cross=entry(1.7e308, 0, 0)),
    "a layer times a million": put("fedacnnl", cross=scaled(1e6)),
    "a profile of another length": put("pfedacnnl", profile=lambda profile: np.ones(2)),
    "a profile in a square": put("pfedacnnl", profile=lambda profile: np.ones((3, 3))),
    "a profile by another name": instead({"portrait": np.ones(8)}, "pfedacnnl"),
    "a profile at the end of numbers": put("pfedacnnl", profile=scaled(1e200)),
}  # fmt: skip


# --- what a hostile site does to its tallies ---


def tallied(**changed: Any) -> Spoil:
    """Arrays of the answer changed; a function is applied to what is there."""

    def spoil(answer: dict[str, Any], head: dict[str, Any]) -> Bytes:
        changes = {name.replace("__", "/"): change for name, change in changed.items()}
        values = {name: change(answer[name]) if callable(change) else change for name, change in changes.items()}
        return codec.encode(answer | {name: np.array(value) for name, value in values.items()}, head)

    return spoil


def nothing_counted(answer: dict[str, Any], head: dict[str, Any]) -> Bytes:
    return codec.encode({name: array for name, array in answer.items() if not name.startswith("personal/")}, head)


def all_chosen(answer: dict[str, Any], head: dict[str, Any]) -> Bytes:
    return codec.encode(answer | {f"chosen/{number}": np.array(1.0) for number in range(50_000)}, head)


TALLIES: dict[str, Spoil] = {
    "no tallies": instead({})[1],
    "tallies of nonsense": instead(b"nonsense")[1],
    "loss not a number": tallied(personal__log_loss=np.nan),
    "loss infinite": tallied(personal__log_loss=np.inf),
    "loss below zero": tallied(personal__log_loss=-1.0),
    "loss beyond all": tallied(shared__log_loss=1e300),
    "answers below zero": tallied(personal__confusion=lambda table: -table),
    "a thousand million million samples": tallied(test=10**15, personal__count=10**15),
    "more samples than there are": tallied(personal__count=lambda count: count + 1),
    "answers of other classes": tallied(personal__confusion=np.zeros((9, 9), dtype=np.int64)),
    "histograms of nobody": tallied(personal__positives=lambda table: 0 * table),
    "an area not a number": tallied(personal__auc=np.nan),
    "an area above one": tallied(personal__auc=2.0),
    "training samples below zero": tallied(train=-1),
    "training samples not a number": tallied(train=np.nan),
    "training samples of 1e300": tallied(train=1e300),
    "training samples beyond all": tallied(train=2**60),
    "two numbers of samples": tallied(train=[1, 2]),
    "a choice not a number": tallied(chosen__alpha=np.nan),
    "a choice infinite": tallied(chosen__alpha=np.inf),
    "a choice of a thousand": tallied(chosen__alpha=np.ones(1000)),
    "choices without end": all_chosen,
    "nothing counted": nothing_counted,
    "a baseline not a number": tallied(baseline__brier=np.nan),
}


# --- over the loop ---


class Hostile(InProcess):
    """A transport on which one client answers what it likes."""

    def __init__(self, method: Method, federation: Federation, kind: str, spoil: Spoil) -> None:
        super().__init__(method, federation)
        self._kind, self._spoil = kind, spoil

    def _handle(self, name: str, request: Any) -> Any:
        answer = super()._handle(name, request)
        if name != HOSTILE or request.kind != self._kind:
            return answer
        return self._spoil(*codec.read(answer))


@cache
def federation() -> Federation:
    rng = np.random.default_rng(5)
    clients = {}
    for number, letter in enumerate("abcd"):
        x = rng.normal(size=(40, FEATURES)) + number / 2
        y = np.argmax(x[:, :CLASSES] + rng.normal(size=(40, CLASSES)), axis=1)
        clients[f"ward-{letter}"] = {"train": (x[:30], y[:30]), "test": (x[30:], y[30:])}
    return Federation.from_arrays(clients, classes=CLASSES)


@dataclass
class Ended:
    """A run that is over, and the models of its clients."""

    outcome: Outcome
    models: dict[str, Arrays]


def ended(method: Method, transport: InProcess) -> Ended:
    outcome = drive(method, federation().task, transport, tolerate=True, min_clients=2)
    return Ended(outcome, {name: transport.model(name) for name in transport.clients()})


@cache
def honest(name: str, *, without: bool) -> Ended:
    """The run of the others alone, or of all, when nobody means harm."""
    return ended(METHODS[name], InProcess(METHODS[name], federation(), absent=(HOSTILE,) if without else ()))


def nothing_changed(found: Ended, wanted: Ended) -> None:
    """The server's state, every honest model and every honest figure are the same, and a result can be written."""
    assert arrays.same(found.outcome.state, wanted.outcome.state)
    for name in set(wanted.models) - {HOSTILE}:
        assert arrays.same(found.models[name], wanted.models[name]), name
        assert found.outcome.clients[name] == wanted.outcome.clients[name]


def named(outcome: Outcome) -> str:
    """The reason that stands beside the hostile site, the only one that failed: short, and of one line."""
    assert set(outcome.failed) == {HOSTILE}
    reason = outcome.failed[HOSTILE]
    assert 0 < len(reason) <= 500
    assert not any(unicodedata.category(character).startswith("C") for character in reason)
    return reason


@pytest.mark.parametrize("mode", list(REPLIES))
def test_a_hostile_reply_costs_nobody_else_anything(mode: str) -> None:
    """Of these, 0.1.0 added up moments that no samples have, and ended the run at a dozen others."""
    name, spoil = REPLIES[mode]
    found = ended(METHODS[name], Hostile(METHODS[name], federation(), "update", spoil))
    named(found.outcome)
    assert found.outcome.history[0].missing == (HOSTILE,)
    nothing_changed(found, honest(name, without=True))


@pytest.mark.parametrize("mode", list(TALLIES))
def test_hostile_tallies_cost_nobody_else_anything(mode: str, tmp_path: Any) -> None:
    """The statistics of the site are as good as anybody's; only its figures are left out."""
    method, task = METHODS["fedhip"], federation().task
    found = ended(method, Hostile(method, federation(), "evaluate", TALLIES[mode]))
    named(found.outcome)
    nothing_changed(found, honest("fedhip", without=False))
    assert HOSTILE not in found.outcome.clients
    result = found.outcome.result(method, task, settings={}, data={}, models={}, seconds=1.0)
    saved = fs.Result.load(result.save(tmp_path / "run"))
    assert set(saved.clients) == {"ward-a", "ward-c", "ward-d"}
    assert metrics.METRICS.keys() == saved.metrics.keys()
