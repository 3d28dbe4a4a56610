"""A hostile server against a site, through the real client app: it gets the usual answer or a refusal, and no more.

The server may send anything that a Flower message can hold. It is taken to run the app of the library; one that ships
another app runs code of its own at the site, which no test of ours can prevent (docs/privacy.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import codec
from fedsolve.data.task import Classes, Task
from fedsolve.moments import Moments

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsolve[flower]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedsolve.privacy.policy import Policy
from fedsolve.runtime import job as jobs
from fedsolve.runtime import sites
from fedsolve.runtime.client import Request
from fedsolve.runtime.flower import make_client_app
from fedsolve.runtime.flower.messages import HELLO, REQUEST, packed, unpacked
from fedsolve.runtime.job import VERSION, Job
from fedsolve.runtime.sites import FileSite

COLUMNS = ("age", "pulse", "weight")
PLAIN = {"ridge": 0.0, "intercept": False}
NAMES = ("ill", "unsure", "well")
TASK = Task(Classes(3, NAMES), (3,), feature_names=COLUMNS)


class Answer(NamedTuple):
    """What left the site: the bytes of an answer, or a reason; and whether it described itself."""

    body: bytes
    reason: str
    is_described: bool = False


class Ward:
    """A site with its file, and what a server sends it."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(3)
        self.folder, self.x = folder, rng.normal(size=(60, 3)).round(6)
        self.labels = np.array(NAMES)[np.arange(60) % 3]
        self.config = {"client": "ward-a", "data": str(folder / "data.csv"), "state": str(folder / "state")}
        self.save(self.x, self.labels)
        self.app = make_client_app()

    def save(self, x: Any, labels: Any) -> None:
        rows = (",".join([*map(repr, row), label]) for row, label in zip(x.tolist(), labels, strict=True))
        Path(self.config["data"]).write_text("\n".join([",".join([*COLUMNS, "label"]), *rows]))

    def call(self, kind: str, content: RecordDict, run: Any = 7) -> Answer:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
        message = Message(content, 1, f"query.{kind}")
        message.metadata.__dict__["_message_id"] = "1"
        reply = self.app(message, Context(run, 1, dict(self.config), RecordDict(), {}))
        assert not reply.has_error()
        records = reply.content.config_records
        assert set(reply.content) <= {"failure", "head", "body"}
        reason = str(records["failure"]["reason"]) if "failure" in records else ""
        if "head" in records:
            assert set(records["head"]) <= {"description", "assumed", "failed"}
            reason = str(records["head"].get("failed", ""))
        is_described = "head" in records and "description" in records["head"]
        return Answer(unpacked(reply.content) if "body" in reply.content else b"", reason, is_described)

    def ask(
        self,
        job: Job | dict[str, Any] | str | None = None,
        task: Task | str = TASK,
        request: Request | bytes | None = None,
        run: Any = 7,
    ) -> Answer:
        job = Job("afl", PLAIN) if job is None else job
        text = job if isinstance(job, str) else jobs.to_text(job) if isinstance(job, Job) else json.dumps(job)
        words = task if isinstance(task, str) else jobs.shared_text(task, Job("afl", PLAIN))
        asked = update() if request is None else request
        body = packed(asked if isinstance(asked, bytes) else asked.write())
        return self.call(REQUEST, RecordDict({"head": ConfigRecord({"job": text, "task": words}), "body": body}), run)

    def greet(self, job: Job, **head: str) -> Answer:
        """The hello that carries a first request."""
        words = {"version": VERSION, "job": jobs.to_text(job), "features": "identity", **head}
        return self.call(HELLO, RecordDict({"head": ConfigRecord(dict(words)), "body": packed(codec.encode({}))}))

    @property
    def train(self) -> fs.Samples:
        """What the site trains on, by the library's own split of one client's rows."""
        table = fs.load(self.config["data"])
        return table.owned_by("ward-a").clients["ward-a"].train

    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "state" / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def files(self) -> dict[str, bytes]:
        """Everything below the folder that is not the site's state."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(p): p.read_bytes() for p in paths if (self.folder / "state") not in p.parents}


def update(**changes: Any) -> Request:
    return replace(Request("update", 1, 0, TASK.described, {}), **changes)


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ward:
    monkeypatch.setenv("FEDSOLVE_CACHE", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leak.py").write_text("import pathlib\npathlib.Path('imported').write_text('x')\nclass Leak: ...\n")
    return Ward(tmp_path)


def raw_head(**changes: str) -> bytes:
    """A request whose head nobody of the library wrote."""
    head = {"kind": "update", "round": "1", "seed": "0", "space": TASK.described, "accepted": "1", "pace": "1.0"}
    return bytes(codec.encode({}, {**head, **changes}))


WRONG_ARRAYS = {"weight": np.full((2, 2), np.nan), "bias": np.zeros((0, 7)), "gram": np.ones(3)}
JOB = asdict(Job("afl", PLAIN))

REFUSED: dict[str, tuple[Callable[[Ward], Answer], str]] = {
    "a share that leaves one sample": (lambda w: w.ask(Job("afl", PLAIN, seed=5, test=0.9999)), "decides by itself"),
    "a share that leaves one row less": (lambda w: w.ask(Job("afl", PLAIN, test=0.2013)), "decides by itself"),
    "no test set": (lambda w: w.ask(Job("afl", PLAIN, test=0.0)), "decides by itself"),
    "an official test set": (lambda w: w.ask(Job("afl", PLAIN, test="official")), "decides by itself"),
    "a global test set": (lambda w: w.ask(Job("afl", PLAIN, test="global")), "decides by itself"),
    "a share with the hello": (lambda w: w.greet(Job("afl", PLAIN, test=0.9999)), "decides by itself"),
    "a share that is no number": (lambda w: w.ask(JOB | {"test": [0.2]}), ""),
    "a seed that is no number": (lambda w: w.greet(Job("afl", PLAIN, seed=cast("int", "x"))), ""),
    "a method of its own": (lambda w: w.ask(Job("leak:Leak")), "unknown method"),
    "a method that is no name": (lambda w: w.ask(JOB | {"method": ["afl"]}), ""),
    "features from a file": (lambda w: w.ask(Job("afl", PLAIN, features=f"onnx:{w.folder / 'data.csv'}")), ""),
    "a parameter of no method": (lambda w: w.ask(Job("afl", {"send": "rows"})), "send"),
    "a job with more fields": (lambda w: w.ask(JOB | {"rows": [0]}), "not a job"),
    "a job that is no JSON": (lambda w: w.ask("[" * 100_000), ""),
    "a column less": (
        lambda w: w.ask(task=replace(TASK, feature_names=COLUMNS[:2], inputs=(2,))),
        "not what all agreed on",
    ),
    "a column of another name": (
        lambda w: w.ask(task=replace(TASK, feature_names=("age", "pulse", "name"))),
        "not what all agreed on",
    ),
    "a column twice": (lambda w: w.ask(task=replace(TASK, feature_names=("age", "age", "pulse"))), "agreed on"),
    "a class less": (lambda w: w.ask(task=replace(TASK, target=Classes(2, NAMES[:2]))), "unknown class"),
    "classes by number": (lambda w: w.ask(task=replace(TASK, target=Classes(3))), "not what all agreed on"),
    "a task that is no JSON": (lambda w: w.ask(task="{"), "damaged"),
    "another space": (lambda w: w.ask(request=update(space="identity of (9,)")), "features are not the server's"),
    "other inputs": (lambda w: w.ask(task=replace(TASK, inputs=(9,), feature_names=())), "agreed on"),
    "a round that is no number": (lambda w: w.ask(request=raw_head(round="one")), "without a proper head"),
    "a round below zero": (lambda w: w.ask(request=update(round=-3)), "without a proper head"),
    "a network from a module": (lambda w: w.ask(Job("fedavg", {"model": "leak:Leak"})), ""),
    "a seed below zero": (lambda w: w.ask(Job("apfl"), request=raw_head(seed="-1")), ""),
    "a pace without end": (lambda w: w.ask(request=raw_head(pace="inf")), "without a proper head"),
    "a pace that is no number": (lambda w: w.ask(request=raw_head(pace="nan")), "without a proper head"),
    "a kind that nobody knows": (lambda w: w.ask(request=raw_head(kind="rows")), "nobody knows how to 'rows'"),
    "no head at all": (lambda w: w.ask(request=bytes(codec.encode({}))), "without a proper head"),
    "bytes that are no message": (lambda w: w.ask(request=b"\xff" * 64), "damaged"),
    "a run with the path of a folder": (lambda w: w.ask(run="../../x"), ""),
    "a run below zero": (lambda w: w.ask(run=-5), "a run is called by"),
    "another version": (lambda w: w.greet(Job("afl", PLAIN), version="0.0.1"), "install the same everywhere"),
    "a model of wrong shapes": (
        lambda w: w.ask(request=update(kind="evaluate", message=WRONG_ARRAYS)),
        "",
    ),
    "a personal model before there is one": (lambda w: w.ask(request=update(kind="evaluate")), ""),
    "no head in the message": (lambda w: w.call(REQUEST, RecordDict({"body": packed(b"")})), ""),
    "nothing in the message": (lambda w: w.call(HELLO, RecordDict()), ""),
    "no body in the message": (
        lambda w: w.call(
            REQUEST,
            RecordDict({"head": ConfigRecord({"job": jobs.to_text(Job("afl", PLAIN)), "task": TASK.to_text()})}),
        ),
        "no content",
    ),
}


@pytest.mark.parametrize("mode", list(REFUSED))
def test_a_hostile_request_is_refused_in_words_and_written_down(ward: Ward, mode: str) -> None:
    before = ward.files()
    send, words = REFUSED[mode]
    answer = send(ward)
    assert answer.body == b"" and answer.reason
    assert words in answer.reason
    line = ward.lines()[-1]
    assert line["refused"] and "sent" not in line
    assert line["refused"].startswith(answer.reason[:400]) or "audit.jsonl" in answer.reason
    assert ward.files() == before, "something was written outside the state"
    assert not (ward.folder / "state" / "models").exists()
    values = {repr(value) for value in ward.x.flatten().tolist()}
    assert not [value for value in values if value in answer.reason]


USUAL: dict[str, Callable[[Ward], Answer]] = {
    "with the hello": lambda w: w.greet(Job("afl", PLAIN)),
    "another seed": lambda w: w.ask(Job("afl", PLAIN, seed=5), request=update(seed=5)),
    "a seed in the request alone": lambda w: w.ask(request=update(seed=12345)),
    "the site's own share": lambda w: w.ask(Job("afl", PLAIN, test=0.2)),
    "a huge round": lambda w: w.ask(request=update(round=10**30)),
    "a huge pace": lambda w: w.ask(request=update(pace=1e308)),
    "arrays that the method did not ask for": lambda w: w.ask(request=update(message=WRONG_ARRAYS)),
    "a reply that was lost": lambda w: w.ask(request=update(accepted=False)),
    "an old round again": lambda w: (w.ask(), w.ask(request=update(round=2)), w.ask())[-1],
    "another run": lambda w: (w.ask(), w.ask(run=8))[-1],
    "many runs": lambda w: [w.greet(Job("afl", PLAIN, seed=run)) for run in range(6)][-1],
}


@pytest.mark.parametrize("mode", list(USUAL))
def test_a_strange_request_gets_the_usual_answer(ward: Ward, mode: str) -> None:
    """The sums over the site's own training samples, to the bit, whatever the server says."""
    before = ward.files()
    answer = USUAL[mode](ward)
    train = ward.train
    wanted = Moments.of(train.inputs, train.labels, classes=3)
    sent = Moments.from_arrays(codec.decode(answer.body))
    np.testing.assert_allclose(sent.gram, wanted.gram, rtol=1e-12)
    np.testing.assert_allclose(sent.cross, wanted.cross, rtol=1e-12)
    assert sent.gram.tobytes() == Moments.from_arrays(codec.decode(ward.ask().body)).gram.tobytes()
    line = ward.lines()[-1]
    assert (line["method"], line["samples"], line["test"], line["split_seed"]) == ("afl", 48, 0.2, 0)
    assert line["bytes"] == len(answer.body)
    assert set(line["sent"]) == set(codec.decode(answer.body))
    assert len({line["data"] for line in ward.lines() if "data" in line}) == 1
    assert ward.files() == before


def test_columns_and_classes_in_another_order_are_the_same_sums(ward: Ward) -> None:
    task = replace(TASK, feature_names=COLUMNS[::-1], target=Classes(4, ("else", *NAMES[::-1])))
    sent = Moments.from_arrays(codec.decode(ward.ask(task=task).body))
    usual = Moments.from_arrays(codec.decode(ward.ask().body))
    np.testing.assert_allclose(sent.gram, usual.gram[::-1, ::-1], rtol=1e-12)
    np.testing.assert_allclose(sent.cross, np.c_[np.zeros(3), usual.cross[::-1, ::-1]], rtol=1e-12)


def test_class_names_cannot_pick_single_rows(ward: Ward) -> None:
    """A class exists where the site's file has it: the server can order and add names, not part a class."""
    names = (*NAMES, *(f"row-{number}" for number in range(20)))
    sent = Moments.from_arrays(codec.decode(ward.ask(task=replace(TASK, target=Classes(23, names))).body))
    assert not sent.cross[:, 3:].any()
    merged = ward.ask(task=replace(TASK, target=Classes(3, ("ill", "ill", "well"))))
    assert merged.body == b"" and "unknown class" in merged.reason


def test_a_class_of_four_is_never_sent_and_not_named(ward: Ward) -> None:
    labels = ward.labels.copy()
    labels[labels == "unsure"] = "well"
    labels[:5] = "plague"
    ward.save(ward.x, labels)
    names = ("ill", "plague", "well")
    for answer in (ward.ask(task=replace(TASK, target=Classes(3, names))), ward.greet(Job("afl", PLAIN))):
        assert answer.body == b""
        assert "a class with fewer than 5 training samples" in answer.reason
        assert "plague" not in answer.reason
        assert "plague (" in ward.lines()[-1]["refused"]


def test_two_runs_cannot_differ_in_one_row(ward: Ward) -> None:
    """Job after job, with any share and seed: one set of training samples, or a refusal."""
    grams = set()
    for share in ("own", 0.2, 0.2013, 0.25, 0.9999):
        for seed in range(4):
            answer = ward.ask(Job("afl", PLAIN, seed=seed, test=share), request=update(seed=seed))
            if answer.body:
                grams.add(Moments.from_arrays(codec.decode(answer.body)).gram.tobytes())
    assert len(grams) == 1
    assert len(ward.lines()) == 20


def test_data_that_change_between_two_messages(ward: Ward) -> None:
    """A row more or less in the file, without a test set, is that row in the difference of two sums."""
    ward.config["test"] = "0"
    assert ward.ask().body
    ward.save(ward.x[:-1], ward.labels[:-1])
    answer = ward.ask()
    assert answer.body == b"" and "differ from those it answered with before in fewer than 5" in answer.reason
    ward.save(np.r_[ward.x, ward.x[:6] + 1], np.r_[ward.labels, ward.labels[:6]])
    assert ward.ask().body
    assert len({line["data"] for line in ward.lines()}) == 3
    ward.config["test"] = "0.5"
    assert "under another split" in ward.ask().reason


def test_a_file_that_cannot_be_read_is_not_quoted(ward: Ward) -> None:
    """In 0.1.0 the reason that the server was told named the value that is no number."""
    with Path(ward.config["data"]).open("a") as file:
        file.write("\nJohn Smith,1,2,well")
    for answer in (ward.ask(), ward.greet(Job("afl", PLAIN))):
        assert answer.body == b"" and "cannot be read" in answer.reason
        assert "John" not in answer.reason
        assert "John Smith" in ward.lines()[-1]["refused"]


def test_a_method_that_raises_at_the_first_answer_leaves_the_site_there(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its description stands, so that the others do not wait for it, and the reason says no more than the type."""

    def spoilt(*_: Any) -> Any:
        raise RuntimeError("John Smith")

    monkeypatch.setattr(fs.AFL, "update", spoilt)
    answer = ward.greet(Job("afl", PLAIN))
    assert answer == Answer(b"", "it raised RuntimeError; its audit.jsonl says more", True)
    assert "John Smith" in ward.lines()[-1]["refused"]


def test_without_a_line_there_is_no_answer(ward: Ward) -> None:
    """A record that cannot be written keeps the answer back."""
    (ward.folder / "state" / "audit.jsonl").mkdir(parents=True)
    for answer in (ward.ask(), ward.greet(Job("afl", PLAIN))):
        assert answer.body == b"" and "cannot write to" in answer.reason


def test_what_was_sent_can_be_read_off_the_record(ward: Ward) -> None:
    ward.greet(Job("afl", PLAIN, seed=3))
    ward.ask(Job("afl", PLAIN, seed=3), request=update(seed=3))
    hello, early, second = ward.lines()
    assert hello["sent"] == "a description" and hello["what"] == "query.hello"
    assert early["what"] == second["what"] == "update"
    for line in (early, second):
        assert (line["run"], line["method"], line["round"], line["seed"], line["samples"]) == ("7", "afl", 1, 3, 48)
        assert line["sent"]["cross"] == "<f8[3, 3]" and line["bytes"] > 0 and line["time"] and line["data"]
    assert os.stat(ward.folder / "state" / "audit.jsonl").st_mode & 0o777 == 0o600


def test_a_site_is_told_apart_from_an_experiment_on_one_machine(tmp_path: Path) -> None:
    """Nobody has to be protected from himself: a split federation keeps no record and no rules."""
    federation = fs.load("wards").split("by-client")
    site = sites.SplitSite(next(iter(federation.clients)), federation, tmp_path)
    assert site.policy is None and not site.account()
    assert FileSite("ward-a", "x", tmp_path).policy == Policy()
