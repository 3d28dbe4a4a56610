"""A site that means harm: whatever it says, the run ends, it is named, and every honest model is the same to the bit.

Each mode is one thing that a hostile site does to its hello, its reply or its tallies. What nobody can tell from an
honest answer, as statistics of samples that it made up, is not among them.
"""

from __future__ import annotations

import json
import tracemalloc
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays, codec, metrics, parameters
from fedsolve.arrays import Arrays
from fedsolve.blas import packed_diagonal
from fedsolve.codec import Bytes
from fedsolve.data.federation import Federation
from fedsolve.errors import plain
from fedsolve.method import Method
from fedsolve.privacy.policy import Policy
from fedsolve.runtime.agreement import Agreement
from fedsolve.runtime.client import Request, handle
from fedsolve.runtime.drive import Outcome, drive
from fedsolve.runtime.inbox import Failure
from fedsolve.runtime.inprocess import InProcess
from fedsolve.runtime.job import VERSION, Description, Job, agreed, from_text, to_text
from fedsolve.runtime.sites import FileSite, respond

HOSTILE, FEATURES, CLASSES = "ward-b", 6, 3
METHODS: dict[str, Method] = {
    "afl": fs.AFL(ridge=0.0, intercept=False),
    "afl-intercept": fs.AFL(intercept=True, ridge=0.0),
    "apfl": fs.APFL(d_primary=12, d_refine=12),
    "fedhip": fs.FedHiP(beta=1.0, intercept=False),
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
    return codec.encode(answer | {f"chosen/{number}": np.array(1.0) for number in range(5_000)}, head)


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
    "unsure of a feature below zero": tallied(unsure=[-1]),
    "unsure of half a feature": tallied(unsure=[0.5]),
    "unsure without end": tallied(unsure=np.arange(100_000)),
    "nothing counted": nothing_counted,
    "a baseline not a number": tallied(baseline__brier=np.nan),
}


# --- what a hostile site does to its hello ---


def described(**changed: object) -> Callable[[str], str]:
    """Some fields of the description changed."""
    return lambda text: json.dumps({**json.loads(text), **changed})


def posed(**changed: object) -> Callable[[str], str]:
    """Some fields of the task in the description changed."""

    def spoil(text: str) -> str:
        values = json.loads(text)
        task = json.loads(values["task"])
        task["target"] |= {name: changed[name] for name in ("count", "names", "kind") if name in changed}
        task |= {name: value for name, value in changed.items() if name not in task["target"]}
        return json.dumps({**values, "task": json.dumps(task)})

    return spoil


HELLOS: dict[str, Callable[[str], str]] = {
    "no description": lambda text: "",
    "a description of nothing": lambda text: "null",
    "a description of brackets": lambda text: "[" * 20_000,
    "a description without end": lambda text: text[:-1] + " " * 20_000_001 + "}",
    "a field more": described(more=1),
    "a name that is a list": described(name=["ward-b"]),
    "samples as a text": described(samples="forty"),
    "samples below zero": described(samples=-40),
    "samples of 10^300": described(samples=10**300),
    "samples not a number": described(samples=float("nan")),
    "samples of half": described(samples=0.5),
    "a version that is a number": described(version=7),
    "a task that is a number": described(task=7),
    "a task of brackets": described(task="[" * 20_000),
    "a task of another kind": posed(kind="anything"),
    "a class number as a text": posed(count="3"),
    "two hundred thousand classes": posed(count=200_000),
    "a hundred million classes": posed(count=10**8),
    "ten to the thousandth classes": posed(count=10**1000),
    "more classes than samples can show": lambda text: posed(count=1_100)(described(samples=3)(text)),
    "as many classes as samples, beside sites with three": lambda text: posed(count=90_000)(
        described(samples=2**40)(text)
    ),
    "two hundred thousand names": posed(count=200_000, names=[f"class {n}" for n in range(200_000)]),
    "names without end": posed(count=3, names=["a" * 5_000_000] * 3),
    "texts where the rest have numbers": posed(names=["a", "b", "c"]),
    "columns that nobody has": posed(feature_names=[f"column {n}" for n in range(FEATURES)]),
    "a column without end": posed(feature_names=["a" * 10_000_000]),
    "inputs of another width": posed(inputs=[7], shape=[7]),
    "inputs of 10^9": posed(inputs=[10**9] * 4, shape=[10**9] * 4),
    "a hundred sides": posed(inputs=[1] * 100, shape=[1] * 100),
    "another feature map": posed(identity="random:20,tanh,1", shape=[20]),
    "an escape in its feature map": posed(identity="\x1b[2J\u202e" * 1000),
}  # fmt: skip


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
    """Before, moments that no samples have were added up, and others of these ended the run."""
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
    assert {metric.name for metric in metrics.classes.METRICS} == saved.metrics.keys()


def hellos(spoil: Callable[[str], str] | None) -> tuple[Agreement, dict[str, str]]:
    """What comes of the hellos of all, one of them spoilt, or of the rest alone; and who cannot be understood."""
    names = [name for name in federation().clients if spoil or name != HOSTILE]
    texts = {name: to_text(Description(name, VERSION, named_columns(), 40)) for name in names}
    descriptions, refused = {}, {}
    for name, text in texts.items():
        try:
            descriptions[name] = from_text(Description, spoil(text) if spoil and name == HOSTILE else text)
        except fs.DataError as error:
            refused[name] = str(error)
    return agreed(descriptions, Job("fedhip"), quorum=3), refused


def named_columns() -> fs.Task:
    return replace(federation().task, feature_names=tuple("abcdef"))


@pytest.mark.parametrize("mode", list(HELLOS))
def test_a_hostile_hello_costs_nobody_else_anything(mode: str) -> None:
    """The others agree on the task that they would have agreed on without it: nobody computes or sends more."""
    (task, left_out), refused = hellos(HELLOS[mode])
    assert {**left_out, **refused}.keys() == {HOSTILE}
    assert plain({**left_out, **refused}[HOSTILE])
    assert task == hellos(None)[0].task


def peak(work: Callable[[], object]) -> int:
    """The most bytes that were in use at once."""
    work()  # what is made once and kept
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", [mode for mode in HELLOS if "classes" in mode or "names" in mode])
def test_an_honest_site_needs_no_more_memory_beside_one_that_drowns_it(mode: str) -> None:
    client = federation().clients["ward-a"]

    def worked(task: fs.Task) -> Callable[[], object]:
        request = Request("update", 1, 0, task.described, {})
        return lambda: handle(fs.FedHiP(beta=1.0, intercept=False), task, client, None, request)

    alone = peak(worked(hellos(None)[0].task))
    assert peak(worked(hellos(HELLOS[mode])[0].task)) <= 1.2 * alone


@pytest.mark.parametrize("classes", [1_400, 200_000, 10**8])
def test_a_site_refuses_terms_far_from_its_own_before_it_makes_anything(tmp_path: Path, classes: int) -> None:
    """In 0.1.0 a task of 10^8 classes was taken, and its statistics were more than the machine's memory."""
    x, y = federation().clients["ward-a"].train.inputs, federation().clients["ward-a"].train.labels
    np.savez(tmp_path / "a.npz", x=x, y=y)
    job = Job("fedhip")
    task = fs.Task(fs.Classes(CLASSES), (FEATURES,))
    many = replace(task, target=fs.Classes(classes))

    def asked(task: fs.Task) -> None:
        site = FileSite("ward-a", str(tmp_path / "a.npz"), tmp_path, policy=Policy(min_class=1))
        respond(site, job, task, Request("update", 1, 0, task.described, {}).write(), "1")

    def refused() -> None:
        with pytest.raises(fs.DataError, match=f"site 'ward-a' has 3 classes .* the task has {classes}"):
            asked(many)

    assert peak(refused) <= 1.2 * peak(lambda: asked(task))


# --- over Flower's apps ---

FEW = (
    "cut off", "seconds null", "F'Y times a million", "a count of 2^63 - 1", "scatter at the end of numbers",
    "a choice not a number", "loss infinite", "training samples below zero",
    "a description of brackets", "samples of 10^300", "a hundred million classes", "texts where the rest have numbers",
)  # fmt: skip
UNNAMED = "columns that nobody has"  # files of arrays have no names of columns, so any names are as good
EVERY = [mode for mode in (*REPLIES, *TALLIES, *HELLOS) if mode != UNNAMED]


def over_flower(folder: Path, method: Method, mode: str) -> tuple[Outcome, dict[str, Arrays]]:
    """A whole run of the two apps, with files at the sites; "": nobody means harm; "-": the hostile site is away."""
    folder.mkdir()
    flower, grids = pytest.importorskip("fedsolve.runtime.flower"), pytest.importorskip("tests.runtime.grid")
    messages = pytest.importorskip("fedsolve.runtime.flower.messages")
    nodes = {}
    for number, (name, client) in enumerate(federation().clients.items()):
        np.savez(folder / f"{name}.npz", x=client.train.inputs, y=client.train.labels)
        nodes[number] = {"client": name, "data": str(folder / f"{name}.npz"), "state": str(folder / name)}
    hostile = next(node for node, config in nodes.items() if config["client"] == HOSTILE)

    def spoil(node: int, message: Any, reply: Any) -> Any:
        if node != hostile or reply.has_error():
            return reply
        head, body = reply.content.config_records.get("head"), reply.content.array_records.get("body")
        if mode in HELLOS and head is not None:
            head["description"] = HELLOS[mode](str(head["description"]))
            return reply
        answer, words = codec.read(body["bytes"].data) if body is not None else ({}, {})
        change = TALLIES.get(mode) if "train" in answer else REPLIES[mode][1] if mode in REPLIES and answer else None
        if change is None:
            return reply
        data = change(answer, dict(words))
        if isinstance(data, Failure):
            raise RuntimeError(data.reason)
        reply.content["body"] = messages.packed(data)
        return reply

    if mode == "-":
        del nodes[hostile]
    grid = grids.InProcessGrid(flower.make_client_app(), nodes, spoil if mode.strip("-") else None)
    names = {node: config["client"] for node, config in nodes.items()}
    grid.keys = {node: f"KEY {name}".encode() for node, name in names.items()}
    keys = {name: f"KEY {name}" for name in names.values()}
    rules = flower.Rules(tuple(sorted(keys)), wait=0.3, timeout=20.0, keys=keys)
    job = Job(method.name, parameters.values(method))
    outcome, _, _ = flower.serve(grid, job, rules, lambda line: None, scratch=folder)
    honest = sorted(set(names.values()) - {HOSTILE})
    return outcome, {n: fs.load_model(folder / n / "models" / f"{n}.safetensors").arrays for n in honest}


def flower_mode(folder: Path, mode: str) -> None:
    """As over the loop; where only the tallies are spoilt, the site's statistics count."""
    method = METHODS[REPLIES[mode][0] if mode in REPLIES else "fedhip"]
    outcome, models = over_flower(folder / "hostile", method, mode)
    wanted, wanted_models = over_flower(folder / "honest", method, "" if mode in TALLIES else "-")
    named(outcome)
    assert arrays.same(outcome.state, wanted.state)
    for name, model in wanted_models.items():
        assert arrays.same(models[name], model), name
        assert outcome.clients[name] == wanted.clients[name]


@pytest.mark.parametrize("mode", FEW)
def test_a_hostile_site_among_flowers_apps_costs_nobody_else_anything(tmp_path: Path, mode: str) -> None:
    flower_mode(tmp_path, mode)


@pytest.mark.long
@pytest.mark.parametrize("mode", [mode for mode in EVERY if mode not in FEW])
def test_every_hostile_site_among_flowers_apps_costs_nobody_else_anything(tmp_path: Path, mode: str) -> None:
    flower_mode(tmp_path, mode)


# --- beside the modes ---


@pytest.mark.long
@pytest.mark.parametrize("size", [3e38, 1e30])
def test_networks_whose_sum_would_not_be_finite_are_refused(size: float) -> None:
    """Each is finite; a sum of some of them, or its square, would not be."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'fedsolve[torch]'")

    def spoil(reply: dict[str, Any], head: dict[str, Any]) -> Bytes:
        large = {name: np.full_like(array, size) for name, array in reply.items() if array.dtype == np.float32}
        return codec.encode({**reply, **large}, head)

    method = fs.FedAvg(model="mlp:4", rounds=2, epochs=1)
    found = ended(method, Hostile(method, federation(), "update", spoil))
    assert "sums hold values up to 1e+15" in named(found.outcome)
    nothing_changed(found, ended(method, InProcess(method, federation(), absent=(HOSTILE,))))


def test_the_neighbours_of_a_site_that_scales_its_labels_keep_their_models() -> None:
    """In 0.1.0, F'Y times 10^6 at one site took a neighbour's personal model from 94 to 56 % of right answers."""
    name, spoil = REPLIES["F'Y times a million"]
    found = ended(METHODS[name], Hostile(METHODS[name], federation(), "update", spoil))
    wanted = honest(name, without=True)
    assert found.outcome.clients["ward-a"].accuracy == wanted.outcome.clients["ward-a"].accuracy


@pytest.mark.parametrize("share", [1.5, 1e6])
def test_in_one_process_too_moments_of_no_samples_are_refused_by_the_name_of_the_client(share: float) -> None:
    """Every number is looked at, but no factor is computed: what F'F and the count allow is refused elsewhere alone."""
    method, spoil = METHODS["fedhip"], put(cross=scaled(share))[1]
    transport = Hostile(method, federation(), "update", spoil)
    if share > 2:
        with pytest.raises(fs.DataError, match="client 'ward-b': its F'Y is larger than its F'F and its counts allow"):
            drive(method, federation().task, transport)
    else:
        assert drive(method, federation().task, transport).clients.keys() == federation().clients.keys()


@dataclass(frozen=True)
class Lengths(fs.AFL):
    """Least squares of something else than labels, which is no fault."""

    name: ClassVar[str] = "lengths"

    def update(self, private: Any, message: Any, site: Any) -> Any:
        targets = np.abs(site.train.inputs).sum(axis=1, keepdims=True) * np.full((1, CLASSES), 1e4)
        return {}, fs.Moments.of(site.train.inputs, targets).arrays()


@pytest.mark.parametrize("tolerate", [False, True])
def test_moments_of_other_targets_than_labels_may_be_of_any_size(tolerate: bool) -> None:
    method = Lengths(ridge=1.0, intercept=False)
    outcome = drive(method, federation().task, InProcess(method, federation()), tolerate=tolerate)
    assert not outcome.failed
    assert outcome.clients.keys() == federation().clients.keys()


@dataclass(frozen=True)
class Diverges(fs.AFL):
    """A method that makes infinities of what it is given, or nothing at all."""

    name: ClassVar[str] = "diverges"
    raises: bool = parameters.flag(False, "raise instead")

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        if self.raises:
            raise ZeroDivisionError("nothing to divide by")
        return {**super().aggregate(state, replies, server), "weight": np.full((FEATURES, CLASSES), np.inf)}


def test_a_state_that_is_not_finite_stops_the_run_with_the_largest_replies_named() -> None:
    """Nobody looked at the state before it was saved."""
    transport = InProcess(Diverges(), federation())
    sizes = {
        name: float(np.square(client.train.inputs).sum(axis=0).max()) for name, client in federation().clients.items()
    }
    largest = max(sizes, key=lambda name: sizes[name])
    said = rf"round 1 cannot be used: the server's 'weight' is not finite after it; the largest .* from {largest} \("
    with pytest.raises(fs.DataError, match=said):
        drive(Diverges(), federation().task, transport, tolerate=True)
    with pytest.raises(fs.DataError, match="ZeroDivisionError: nothing to divide by; the largest numbers came from"):
        drive(Diverges(raises=True), federation().task, transport, tolerate=True)
    with pytest.raises(fs.DataError, match="'weight' is not finite after it; scale the features down"):
        drive(Diverges(), federation().task, transport)
    with pytest.raises(ZeroDivisionError):  # with clients that are trusted it is the method's own fault
        drive(Diverges(raises=True), federation().task, transport)


def test_what_goes_wrong_at_a_witness_is_not_the_client_that_is_told_of() -> None:
    """A full disk under a ledger must not read as a site that was refused."""

    def full(client: str, reply: Arrays) -> None:
        raise OSError(28, "no space left on device")

    method = METHODS["fedhip"]
    with pytest.raises(OSError, match="no space left"):
        drive(method, federation().task, InProcess(method, federation()), tolerate=True, on_reply=full)
