"""Every reader of what strangers write, as a function from bytes to nothing, with valid inputs to start from."""

from __future__ import annotations

import io
import json
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np

import fedsolve as fs
from fedsolve import arrays, codec, methods, report
from fedsolve.arrays import Array
from fedsolve.data import catalog
from fedsolve.data.files import read_columns
from fedsolve.data.large import stream
from fedsolve.data.pickled import read_pickle
from fedsolve.data.reading import Reading
from fedsolve.data.task import Task
from fedsolve.features import columnsums, fitting, maps
from fedsolve.features.cache import extract
from fedsolve.features.cells import Cells, Texts
from fedsolve.features.columns import Columns
from fedsolve.features.elsewhere import Elsewhere
from fedsolve.ledger.contribution import Contribution
from fedsolve.ledger.terms import Terms
from fedsolve.method import Plan
from fedsolve.model import load_model
from fedsolve.privacy.budget import Budget
from fedsolve.privacy.policy import Policy
from fedsolve.report import clusters
from fedsolve.result import Result
from fedsolve.runtime import audit
from fedsolve.runtime.client import Memory, Request, handle
from fedsolve.runtime.inbox import Replies, Tallies
from fedsolve.runtime.job import Description, Job, from_text, to_text
from fedsolve.study import comparison
from fedsolve.study.settings import Settings, read_config
from fedsolve.texts import read_env
from tests.conftest import unsealed
from tests.security.mutator import Kind, mutate


@dataclass(frozen=True)
class Target:
    """A reader. It may raise a FedsolveError; an inbox that tolerates, nothing at all."""

    name: str
    kind: Kind
    seeds: tuple[bytes, ...]
    read: Callable[[bytes], object]
    silent: bool = False  # whether it must not raise at all, but says whether it refused
    share: float = 1.0  # of the inputs of a long run: slow readers get fewer

    def inputs(self, seed: int) -> Iterator[bytes]:
        """Valid inputs first, then variants of them without end, the same for the same seed."""
        yield from self.seeds
        rng = random.Random(f"{self.name} {seed}")
        while True:
            yield mutate(rng.choice(self.seeds), self.kind, self.seeds, rng)


def every(folder: Path) -> dict[str, Target]:
    """All readers, by name; those that read files find them in `folder`."""
    federation = _federation()
    task, method = federation.task, fs.AFL(ridge=0.0, intercept=False)
    clients = list(federation.clients.values())
    message: dict[str, Array] = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.array(3),
        "c/d": np.zeros((0, 4), np.float32),
    }
    updates = [handle(method, task, client, None, _request(task, {})) for client in clients]
    state = method.init_server(fs.Server(task, 0, np.random.default_rng(0)))
    replies = [bytes(answer) for _, answer in updates]
    summed = Replies(Plan(tuple(federation.clients)), task.space, tolerate=False)
    for client, answer in zip(clients, replies, strict=True):
        summed.put(client.name, answer)
    state = method.aggregate(state, summed.folded(), fs.Server(task, 1, np.random.default_rng(0)))
    shared = method.message(state, clients[0].name, "personalize")
    ask = Request("evaluate", 1, 0, task.described, shared)
    tallies = [
        bytes(handle(method, task, client, memory, ask)[1])
        for client, (memory, _) in zip(clients, updates, strict=True)
    ]
    terms = Terms.make(method, task)
    moments = codec.decode(replies[0])
    contribution = bytes(Contribution.of("ward-a", moments).write(terms))
    description = Description("ward-a", "1", task, 12)
    memory = Memory({"w": np.ones(3)}, counted=True, pending={"w": np.zeros(3)}, model={"m": np.ones(2)})

    def put(inbox: Any, data: bytes) -> bool:
        """Whether the answer was refused; those of the others count whatever it is."""
        inbox.put("ward-a", data)
        for each in (clients[1].name, clients[2].name):
            inbox.put(each, (replies if isinstance(inbox, Replies) else tallies)[1])
        if isinstance(inbox, Replies):
            inbox.folded()
        return "ward-a" in inbox.failed

    plain = {
        "codec": Target("codec", "safetensors", (bytes(codec.encode(message, {"k": "v"})), replies[0]), codec.read),
        "request": Target(
            "request", "safetensors", (bytes(_request(task, message).write()), bytes(ask.write())), Request.read
        ),
        "memory": Target(
            "memory",
            "safetensors",
            (bytes(codec.encode(memory.arrays())), bytes(codec.encode(updates[0][0].arrays()))),
            lambda data: Memory.from_arrays(codec.decode(data)),
        ),
        "replies": Target(
            "replies",
            "safetensors",
            (replies[0], bytes(codec.encode(moments, {"space": f"{task.space:x}", "seconds": "000001.500000"}))),
            lambda data: put(Replies(Plan(tuple(federation.clients)), task.space, tolerate=True), data),
            silent=True,
        ),
        "tallies": Target(
            "tallies",
            "safetensors",
            tuple(tallies),
            lambda data: put(Tallies(task.target, tolerate=True), data),
            silent=True,
        ),
        "description": Target(
            "description", "json", (to_text(description).encode(),), lambda data: from_text(Description, _text(data))
        ),
        "job": Target(
            "job",
            "json",
            (
                to_text(Job("fedhip", {"alpha": 5.0, "beta": 1.0}, "unit", 3, 0.2, "1")).encode(),
                to_text(Job("afl")).encode(),
            ),
            lambda data: from_text(Job, _text(data)),
        ),
        "task": Target(
            "task",
            "json",
            (task.to_text().encode(), fs.Task(fs.Classes(2), (8, 8, 3)).to_text().encode()),
            lambda data: Task.from_text(_text(data)),
        ),
        "words": Target("words", "bytes", tuple(text.encode() for text in _words()), _map),
        "columns": Target("columns", "bytes", (COLUMNS.encode(), f"{COLUMNS}+random:4".encode()), _columns),
        "told": Target("told", "safetensors", _told(), _fit_told),
        "contribution": Target(
            "contribution", "safetensors", (contribution,), lambda data: Contribution.read(data, terms, "a.safetensors")
        ),
        "terms": Target(
            "terms",
            "safetensors",
            tuple(
                bytes(Terms.make(each, task).write())
                for each in (method, fs.FedHiP(alpha=5.0, beta=1.0, intercept=False))
            ),
            lambda data: Terms.read(*codec.read(data), "invitation", ""),
        ),
    }
    return plain | _files(folder, federation) | _secure(federation)


def _secure(federation: fs.Federation) -> dict[str, Target]:
    """Readers of secure sums, where they can be had."""
    if not find_spec("cryptography"):
        return {}
    from tests.security.secure_targets import readers

    found = readers(federation).items()
    return {name: Target(name, cast("Kind", kind), seeds, read, silent) for name, (kind, seeds, read, silent) in found}


def _files(folder: Path, federation: fs.Federation) -> dict[str, Target]:
    """Readers of files."""
    folder.mkdir(parents=True, exist_ok=True)
    results = [
        fs.run(each, federation)
        for each in (
            fs.AFL(ridge=0.0, intercept=False),
            fs.FedHiP(beta=1.0, intercept=False),
            fs.PFedACnnL(network="lr", groups=2),
        )
    ]
    saved = [result.save(folder / f"seed-{number}") for number, result in enumerate(results)]
    texts = tuple(json.dumps(unsealed(place / "result.json")).encode() for place in saved)  # no digest refuses them all
    settings = json.loads(texts[0])
    settings["settings"] |= {"data": "digits", "partition": "iid", "clients": 3}
    models = tuple(_model(each, federation) for each in _methods())
    run = folder / "run"
    (run / "models").mkdir(parents=True, exist_ok=True)
    (run / "state.safetensors").write_bytes((saved[0] / "state.safetensors").read_bytes())

    def through(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        path = folder / name

        def reader(data: bytes) -> object:
            path.write_bytes(data)
            return read(path)

        return reader

    def table(path: Path) -> None:
        found = catalog.load(str(path), reading=Reading() if path.suffix == ".npz" else Reading(date_as="days"))
        if not isinstance(found.inputs, np.ndarray):
            found.owned_by("ward", test=0.0)  # which fits its columns
        else:
            catalog.table_of(read_columns(path), "table")

    def streamed(path: Path) -> None:
        stream(path, date_as="days").fitted("columns:cell=1").moments()

    def config(path: Path) -> None:
        chosen = Settings.of(read_config(path), str(path))
        if chosen.method in ("afl", "fedhip", "apfl"):
            methods.create(chosen.method, chosen.set)

    def several(path: Path) -> None:
        comparison.read(path, {}, {}, [])

    def page(path: Path) -> None:
        for section in report.sections(report.entries([path.parent])):
            for group in section.groups:
                report.gains(group, section.runs)
            for run in section.runs:
                clusters.clusters(run)

    toml = b'method = "fedhip"\nclients = 5\npartition = "dirichlet:0.1"\ntest = 0.2\n\n[set]\nalpha = 5.0\n'
    study = (
        b'clients = [5, 10]\nseeds = [0, 1]\nmethods.weak = {method = "fedhip", set.alpha = 1}\n[set]\nbeta = [1, 2]\n'
    )
    csv = b"age,pulse,label\n61,40.5,ill\n35,60,well\n80,1e2,ill\n"
    numbers = b'client,a,"b c",y\nward-a,1,2,0\nward-b,3,4,1\nward-a,-5,.5,7\n'
    mixed = "id;alter;größe;seit;y\n1;4,5;groß;2026-01-02;ja\n2;;klein;03.04.2026;nein\n3;NA;;;ja\n".encode("utf-16")
    spent = b'{"format": 1, "mu": {"3f1a": 0.268, "77ab": 1.5}}\n'
    site = b"NAME=ward-a\nMIN_CLASS=5\nMAX_PARAMETERS=0.33\nALLOW_METHODS=afl,fedhip\nPRIVACY='plain'\n"

    leaf = tuple(
        json.dumps({"users": ["a", "b"], "num_samples": [1, 2], "user_data": {"a": first, "b": second}}).encode()
        for first, second in (
            ({"x": [[0.5] * 784], "y": [3]}, {"x": [[0, 1] * 392] * 2, "y": [61, 0]}),
            ({"x": ["To be, or"], "y": [" "]}, {"x": ["not to be", "é\n"], "y": ["\n", "€"]}),
        )
    )
    batch = {
        b"data": np.arange(6, dtype=np.uint8).reshape(2, 3),
        b"labels": [1, 300],
        b"filenames": [b"a.png", b"\xff"],
    }
    (folder / "leaf" / "train").mkdir(parents=True, exist_ok=True)

    def rules(path: Path) -> None:
        Policy.of({name.lower(): value for name, value in read_env(path).items()})

    sent = b'{"time": "2026-11-18T15:48:46.123+00:00", "run": "7", "what": "update", "method": "afl", "round": 1, '
    sent += b'"privacy": "plain", "sent": {"cross": "<f8[3, 3]"}, "bytes": 1064, "samples": 48, "data": "3f1a"}\n'
    targets = [
        Target(
            "audit",
            "bytes",
            (sent, sent.replace(b'"sent"', b'"refused"')),
            through("a.jsonl", lambda path: audit.read(path)[1]),
            silent=True,
        ),
        Target("spent", "json", (spent,), through("spent.json", lambda path: Budget(path, 2.0).spent("3f1a"))),
        Target("policy", "bytes", (site,), through("site.env", rules)),
        Target(
            "leaf", "json", tuple(leaf), through("leaf/train/a.json", lambda path: catalog.load(str(folder / "leaf")))
        ),
        Target(
            "pickle",
            "bytes",
            tuple(pickle.dumps(batch, protocol) for protocol in (0, 1, 2)),
            lambda data: read_pickle(data, "a batch"),
        ),
        Target("model", "safetensors", models, through("m.safetensors", load_model), share=0.5),
        Target("csv", "bytes", (csv, numbers, mixed), through("t.csv", table)),
        Target("npz", "npz", tuple(map(_npz, (False, True))), through("t.npz", table), share=0.5),
        Target("toml", "bytes", (toml,), through("c.toml", config)),
        Target("comparison", "bytes", (toml, study), through("s.toml", several)),
        Target("config", "json", (json.dumps(settings).encode(),), through("c.json", config)),
        Target("result", "json", texts, through("run/result.json", lambda path: Result.load(path.parent)), share=0.5),
        Target("report", "json", texts, through("run/result.json", page), share=0.5),
    ]
    if find_spec("pyarrow"):
        targets.append(Target("parquet", "bytes", (_parquet(),), through("t.parquet", table), share=0.2))
        targets.append(Target("stream", "bytes", (_parquet(),), through("s.parquet", streamed), share=0.1))
    return {target.name: target for target in targets}


def _text(data: bytes) -> str:
    """A message's text: what is not UTF-8 comes as what Flower's messages could hold at worst."""
    return data.decode("utf-8", "surrogateescape")


def _words() -> list[str]:
    """Feature maps in words, also such as hold fitted numbers."""
    pictures = np.random.default_rng(0).integers(255, size=(20, 5, 5)).astype(np.uint8)
    fitted = [
        str(fitting.fit(text, [pictures])) for text in ("patches:2x2x2,mirror=yes,windows=one,steps=1", "standardise")
    ]
    return ["unit+random:8,relu,3", *fitted, f"{fitted[0]}+ones"]


COLUMNS = "columns:age:54.4/9.0,ca:0.7/0.9/empty,sex=male|%28other%29|f%C3%A9male"


def _columns(data: bytes) -> object:
    """The map of words, tried on a row of empty cells."""
    text = _text(data)
    first = maps.parts(text)[0]
    if maps.opens(text) or not first.startswith("columns:"):
        return None
    parsed = Columns.read(first.removeprefix("columns:"))
    features = maps.from_words(Elsewhere(text, _identity(text), ()), (len(parsed.raw),))
    cells = Cells(parsed.raw, (np.full(1, np.nan),) * len(parsed.raw))
    parsed.strange(cells)
    return extract(features, cells).shape if features.shape((len(parsed.raw),))[0] < 1000 else None


def _told() -> tuple[bytes, ...]:
    """What clients tell of the columns of a table, in both rounds."""
    cells = Cells(("age", "sex"), (np.array([61.0, np.nan, 45.5]), Texts.of(["f", "männlich", None])))
    first = columnsums.counted(cells)
    return tuple(bytes(codec.encode(told)) for told in (first, columnsums.squared(cells, columnsums.means(first))))


def _fit_told(data: bytes) -> object:
    """The map that a stranger's sums give with those of somebody else."""
    told = codec.decode(data)
    arrays.check(told, "its reply")
    columnsums.check(told, 2)
    first, second = map(codec.decode, _told())
    if "squares" in told:
        return columnsums.fitted(("age", "sex"), first, columnsums.added(told, second), 1)
    return columnsums.fitted(("age", "sex"), columnsums.added(told, first), second, 1)


def _map(data: bytes) -> object:
    """The map of words, tried on a picture; `from_words` opens nothing."""
    text = _text(data)
    if maps.opens(text):
        return None
    features = maps.from_words(Elsewhere(text, _identity(text), ()), (5, 5))
    (width,) = features.shape((5, 5)) if "identity" not in text else (0,)
    return features(np.ones((1, 5, 5), np.uint8)).shape if 0 < width < 1000 else None


def _identity(text: str) -> str:
    """What a stranger says who keeps to his words."""
    return "+".join(maps.parse(part).identity for part in maps.parts(text))


def _request(task: Task, message: dict[str, Array]) -> Request:
    return Request("update", 1, 0, task.described, message)


def _federation() -> fs.Federation:
    rng = np.random.default_rng(0)

    def part(rows: int) -> tuple[Any, Any]:
        return rng.normal(size=(rows, 3)), rng.integers(0, 2, size=rows)

    wards = {name: {"train": part(12), "test": part(5)} for name in ("ward-a", "ward-b", "ward-c")}
    return fs.Federation.from_arrays(wards, class_names=("ill", "well"))


def _methods() -> list[fs.Method]:
    """One method of each family."""
    methods: list[fs.Method] = [
        fs.AFL(ridge=0.0, intercept=False),
        fs.FedHiP(beta=1.0, intercept=False),
        fs.APFL(d_primary=8, d_refine=8),
        fs.FedPrior(),
    ]
    methods.append(fs.FedACnnL(network="mlp:4"))
    return [*methods, fs.FedAvg(rounds=1, model="mlp:4")] if find_spec("torch") else methods


def _model(method: fs.Method, federation: fs.Federation) -> bytes:
    model = fs.run(method, federation).models["ward-b"]
    return bytes(codec.encode(model.arrays, model.metadata()))  # without the digest of a file, which refuses them all


def _npz(packed: bool) -> bytes:
    buffer = io.BytesIO()
    columns: dict[str, Any] = {"x": np.arange(12.0).reshape(4, 3), "y": [0, 1, 1, 0], "client": ["a", "b", "b", "a"]}
    if packed:
        columns |= {"y": ["ill", "well", "well", "ill"], "x_test": np.ones((1, 3)), "y_test": ["ill"]}
    (np.savez_compressed if packed else np.savez)(buffer, **columns)
    return buffer.getvalue()


def _parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    columns = {
        "a": [1.0, 2.0, 3.5, 4.0],
        "b": [1, 2, 3, 4],
        "client": ["x", "y", "x", "y"],
        "label": ["i", "w", "i", "w"],
    }
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()
