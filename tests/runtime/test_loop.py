from __future__ import annotations

import dataclasses
import threading
import tracemalloc
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import fedsolve as fs
from fedsolve import arrays, codec, metrics
from fedsolve.checks import sample_federation
from fedsolve.data.task import Classes
from fedsolve.errors import DataError, ParameterError
from fedsolve.families.ridge import linear
from fedsolve.method import Personal, Plan
from fedsolve.rng import derive
from fedsolve.runtime import inprocess
from fedsolve.runtime.client import Request, assess, handle
from fedsolve.runtime.drive import drive
from fedsolve.runtime.inbox import Failure, Replies, Tallies
from fedsolve.runtime.inprocess import InProcess
from fedsolve.runtime.pace import LARGEST_PACE, Pace
from tests.conftest import relative
from tests.contexts import site


def many(clients: int, features: int = 5, samples: int = 6) -> fs.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(clients * samples, features)), rng.integers(3, size=clients * samples)
    parts = zip(np.split(x, clients), np.split(y, clients), strict=True)
    return fs.Federation.from_arrays({f"c{i:05d}": {"train": p, "test": p} for i, p in enumerate(parts)}, classes=3)


def test_absent_clients_are_named_nowhere_and_unknown_ones_refused() -> None:
    federation = sample_federation()
    result = fs.run(fs.AFL(ridge=0.0, intercept=False), federation, absent=["site-0"])
    assert "site-0" not in result.clients
    assert "site-0" not in result.models
    with pytest.raises(ParameterError, match="'site-9'"):
        fs.run(fs.AFL(ridge=0.0, intercept=False), federation, absent=["site-9"])
    with pytest.raises(DataError, match="no client answered in round 1"):
        fs.run(fs.AFL(ridge=0.0, intercept=False), federation, absent=list(federation.clients))


def test_participation_draws_a_share_and_everybody_is_evaluated() -> None:
    federation = many(40)
    result = fs.run(fs.AFL(ridge=0.0, intercept=False), federation, participation=0.3, seed=5)
    missing = set(result.history[0].missing)
    assert len(missing) == 28
    assert set(result.clients) == set(federation.clients)
    rest = {n: c for n, c in federation.clients.items() if n not in missing}
    wanted = fs.run(fs.AFL(ridge=0.0, intercept=False), dataclasses.replace(federation, clients=rest))
    assert relative(result.state["weight"], wanted.state["weight"]) < 1e-10
    assert (
        fs.run(fs.AFL(ridge=0.0, intercept=False), federation, participation=0.3, seed=6).history[0].missing
        != result.history[0].missing
    )


@pytest.mark.parametrize("share", [0.0, -0.5, 1.1, float("nan")])
def test_a_participation_outside_its_domain_is_refused(share: float) -> None:
    with pytest.raises(ParameterError, match="participation must be a share"):
        fs.run(fs.AFL(ridge=0.0, intercept=False), sample_federation(), participation=share)


@pytest.mark.parametrize("clients", [1, 3, 4, 31, 32, 65, 400])
def test_the_number_of_workers_changes_no_bit(clients: int) -> None:
    federation = many(clients)
    one, three = (fs.run(fs.FedHiP(beta=1.0, intercept=False), federation, workers=workers) for workers in (1, 3))
    assert arrays.same(one.state, three.state)
    for name in federation.clients:
        assert arrays.same(one.models[name].arrays, three.models[name].arrays)


@dataclasses.dataclass(frozen=True)
class Spoils(fs.AFL):
    """AFL whose client site-2 answers nonsense."""

    how: str = "nan"

    def update(self, private: Any, message: Any, site: Any) -> Any:
        private, reply = super().update(private, message, site)
        if len(site.train) != 60:  # site-2
            return private, reply
        spoilt = {
            "nan": {**reply, "cross": reply["cross"] * np.nan},
            "inf": {**reply, "triangle": reply["triangle"] + np.inf},
            "shape": {**reply, "cross": reply["cross"][:-1]},
            "type": {**reply, "cross": reply["cross"].astype(np.float32)},
            "names": {"cross": reply["cross"]},
        }
        return private, spoilt[self.how]


@pytest.mark.parametrize("how", ["nan", "inf", "shape", "type", "names"])
def test_a_client_that_answers_nonsense_is_named_or_left_out(how: str) -> None:
    federation, method = sample_federation(), Spoils(how=how, ridge=0.0, intercept=False)
    with pytest.raises(DataError, match="site-2"):
        fs.run(method, federation)
    rest = {n: c for n, c in federation.clients.items() if n != "site-2"}
    wanted = fs.run(fs.AFL(ridge=0.0, intercept=False), dataclasses.replace(federation, clients=rest))
    found = drive(method, federation.task, InProcess(method, federation), tolerate=True)
    assert relative(found.state["weight"], wanted.state["weight"]) < 1e-12
    assert found.history[0].missing == ("site-2",)


def test_another_feature_space_is_refused_on_both_sides() -> None:
    federation = sample_federation()
    task, client = federation.task, federation.clients["site-0"]
    request = Request("update", 1, 0, "unit of (5,)", {})
    with pytest.raises(DataError, match="nothing was computed"):
        handle(fs.AFL(ridge=0.0, intercept=False), task, client, None, request)
    _, answer = handle(
        fs.AFL(ridge=0.0, intercept=False), task, client, None, Request("update", 1, 0, task.described, {})
    )
    with pytest.raises(DataError, match=r"client 'site-0': its feature space is"):
        Replies(Plan(()), task.space + 1, tolerate=False).put("site-0", answer)


def test_requests_survive_bytes() -> None:
    request = Request("evaluate", 3, 12, "unit of (4,)", {"w": np.arange(4.0)})
    again = Request.read(request.write())
    assert dataclasses.replace(again, message={}) == dataclasses.replace(request, message={})
    assert arrays.same(again.message, request.message)
    with pytest.raises(DataError, match="without a proper head"):
        Request.read(codec.encode({}))


def reply(value: float) -> memoryview:
    return codec.encode({"a": np.array([value]), "n": np.array(1)}, {"space": "7"})


@pytest.mark.parametrize(
    ("fold", "wanted"),
    [
        ("sum", {"a": 111.0}),
        ("collect", {"x/a": 1.0, "y/a": 10.0, "z/a": 100.0}),
        ({"x": "g0", "y": "g1", "z": "g0"}, {"g0/a": 101.0, "g1/a": 10.0}),
    ],
)
def test_folds_and_their_merging(fold: Any, wanted: dict[str, float]) -> None:
    plan = Plan(("x", "y", "z"), fold)
    whole, left, right = (Replies(plan, 7, tolerate=False) for _ in range(3))
    for inbox in (whole, left):
        inbox.put("x", reply(1.0))
    for inbox in (whole, right):
        inbox.put("y", reply(10.0))
        inbox.put("z", reply(100.0))
    left.merge(right)
    for inbox in (whole, left):
        assert {n: float(a[0]) for n, a in inbox.folded().items() if n.endswith("a")} == wanted
        assert inbox.answered == {"x", "y", "z"}
        assert inbox.received == 3 * len(reply(1.0))
    with pytest.raises(TypeError, match="cannot merge"):
        left.merge(Tallies(Classes(2), tolerate=False))


@pytest.mark.parametrize("fold", ["sum", {"x": "g", "y": "g"}])
def test_what_each_client_has_for_itself_is_not_added_up(fold: Any) -> None:
    """Names under a prefix in `each` stay per client, beside the sum of the rest, also for who is merged."""
    plan = Plan(("x", "y"), fold, each=("head", "n"))
    whole, left, right = (Replies(plan, 7, tolerate=True) for _ in range(3))
    values = {"x": 1.0, "y": 10.0}
    for client, value in values.items():
        arrays_ = {"a": np.array([value]), "head/w": np.array([value]), "header": np.array([value]), "n": np.array(1)}
        for inbox in (whole, left if client == "x" else right):
            inbox.put(client, codec.encode(arrays_, {"space": "7"}))
    left.merge(right)
    start = "" if fold == "sum" else "g/"
    wanted = {f"{start}a": 11.0, f"{start}header": 11.0, "x/head/w": 1.0, "y/head/w": 10.0, "x/n": 1.0, "y/n": 1.0}
    for inbox in (whole, left):
        assert {name: float(np.sum(array)) for name, array in inbox.folded().items()} == wanted
    # A reply of another layout fails as a whole: nothing of it stays behind.
    for client in ("z", "odd"):
        odd = {"a": np.array([1.0])} if client == "odd" else arrays_
        whole.put(client, codec.encode(odd, {"space": "7"})) if fold == "sum" else None
    if fold == "sum":
        assert not any(name.startswith("odd/") for name in whole.folded())
        assert "odd" in whole.failed


@pytest.mark.parametrize("tolerate", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_reply_is_checked_when_it_is_put(tolerate: bool, value: float) -> None:
    """Also by a transport that puts replies into the inbox itself, one by one, as the protocol lets it."""
    replies = Replies(Plan(()), 7, tolerate=tolerate)
    replies.put("x", reply(1.0))
    if tolerate:
        replies.put("y", reply(value))
        assert "finite" in replies.failed["y"]
    else:
        with pytest.raises(DataError, match=r"client 'y': its reply: 'a' has values that are not finite"):
            replies.put("y", reply(value))
    assert replies.folded()["a"] == 1.0


def test_a_tie_between_layouts_is_decided_by_the_layout_and_not_by_who_came_first() -> None:
    one, two = (codec.encode({"a": np.zeros(size)}, {"space": "7"}) for size in (2, 3))
    kept = []
    for order in (("x", one, "y", two), ("y", two, "x", one)):
        replies = Replies(Plan(()), 7, tolerate=True)
        replies.put(order[0], order[1])
        replies.put(order[2], order[3])
        kept.append((replies.folded()["a"].shape, replies.answered))
    assert kept[0] == kept[1]


def test_failures_are_raised_or_kept_with_their_reason() -> None:
    strict, lenient = Replies(Plan(()), 7, tolerate=False), Replies(Plan(()), 7, tolerate=True)
    with pytest.raises(DataError, match="client 'x': timed out"):
        strict.put("x", Failure("timed out"))
    lenient.put("x", Failure("timed out"))
    lenient.put("y", b"rubbish")
    assert lenient.failed["x"] == "timed out"
    assert "damaged" in lenient.failed["y"]
    assert not lenient.answered


@dataclasses.dataclass(frozen=True)
class Collecting(fs.AFL):
    """AFL that looks at every reply by itself, and takes two rounds."""

    @property
    def rounds(self) -> int:
        return 2

    def plan(self, state: Any, clients: Any) -> Plan:
        return Plan(tuple(clients), "collect")

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        total: dict[str, Any] | None = None
        for client in sorted({name.partition("/")[0] for name in replies}):
            total = arrays.accumulate(total, arrays.take(client, replies))
        assert total is not None
        return super().aggregate(state, total, server)


def test_collecting_and_several_rounds() -> None:
    federation = sample_federation()
    result, once = (
        fs.run(Collecting(ridge=0.0, intercept=False), federation),
        fs.run(fs.AFL(ridge=0.0, intercept=False), federation),
    )
    assert relative(result.state["weight"], once.state["weight"]) < 1e-12
    assert result.rounds == 2
    assert [line.round for line in result.history] == [1, 2]
    assert result.bytes_up == 2 * once.bytes_up
    # one message before the second update, one for personalisation
    assert result.bytes_down == 2 * once.bytes_down


def test_bytes_are_those_of_the_messages() -> None:
    federation = sample_federation()
    task = federation.task
    result = fs.run(fs.AFL(ridge=0.0, intercept=False), federation)
    own = fs.AFL(ridge=0.0, intercept=False).update({}, {}, site(task, federation.clients["site-0"].train))[1]
    assert result.bytes_up == len(federation.clients) * len(codec.encode(own, {"space": f"{task.space:x}"}))
    down = Request(
        "evaluate", 1, 0, task.described, fs.AFL(ridge=0.0, intercept=False).message(result.state, "", "update")
    ).write()
    assert result.bytes_down == len(federation.clients) * len(down)


def test_the_server_never_holds_a_matrix_per_client() -> None:
    """Peak memory while 300 clients answer with a triangle each, in units of triangles."""
    federation = many(300, features=200, samples=4)
    triangle = 8 * 200 * 201 / 2
    fs.run(fs.AFL(ridge=1.0, intercept=False), federation)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    fs.run(fs.AFL(ridge=1.0, intercept=False), federation, workers=2)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert peak / triangle < 40


def test_progress_counts_up_to_the_end() -> None:
    seen: list[tuple[str, int, int]] = []
    fs.run(fs.FedHiP(beta=1.0, intercept=False), many(50), progress=lambda *event: seen.append(event))
    assert ("round 1: clients answering", 50, 50) in seen
    assert ("round 1: personal models", 50, 50) in seen
    assert all(done <= total for _, done, total in seen)


def test_an_error_in_a_client_ends_the_run_and_leaves_no_thread() -> None:
    federation = many(60)
    bad = federation.clients["c00037"]
    spoilt = np.array(bad.train.inputs)
    spoilt[0, 0] = np.nan
    broken = fs.Client("c00037", fs.Samples(spoilt, bad.train.labels), bad.test)
    clients = {**federation.clients, "c00037": broken}
    with pytest.raises(DataError, match=r"client 'c00037': features must be finite; got nan in row 0, column 0"):
        fs.run(fs.AFL(ridge=0.0, intercept=False), dataclasses.replace(federation, clients=clients))
    assert not [t for t in threading.enumerate() if t.name.startswith("fedsolve")]


def test_the_global_column_is_the_global_model() -> None:
    federation = fs.load("digits").split(fs.dirichlet(0.1), clients=8)
    result = fs.run(fs.FedHiP(beta=1.0, intercept=False), federation)
    assert result.shared is not None
    for name, client in federation.clients.items():
        right = (result.shared.predict(client.test.inputs) == client.test.labels).mean()
        assert result.clients[name].shared == pytest.approx(right)
    assert any(c.shared != c.accuracy for c in result.clients.values())


def test_one_model_on_one_test_set_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = assess

    def spy(method: Any, model: Any, test: Any, task: Any) -> Any:
        calls.append(len(test))
        return plain(method, model, test, task)

    monkeypatch.setattr(inprocess, "assess", spy)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 4)), rng.integers(3, size=300)
    table = fs.Table.make("t", x[:200], y[:200], test=(x[200:], y[200:]))
    federation = table.split("iid", clients=60, test="global")
    result = fs.run(fs.AFL(ridge=0.0, intercept=False), federation, workers=1)
    assert len(calls) == 1
    assert {c.accuracy for c in result.clients.values()} == {result.accuracy.mean}
    calls.clear()
    personal = fs.run(fs.FedHiP(alpha=50.0, beta=1.0, intercept=False), federation, workers=1)
    test = federation.clients["client-07"].test
    right = (personal.models["client-07"].predict(test.inputs) == test.labels).mean()
    assert personal.clients["client-07"].accuracy == pytest.approx(right)
    assert len({c.accuracy for c in personal.clients.values()}) > 1
    assert len(calls) == 60 + 1  # every personal model, and the global one once


@dataclasses.dataclass(frozen=True)
class Draws(fs.AFL):
    """Two rounds, whose replies are draws."""

    @property
    def rounds(self) -> int:
        return 2

    def update(self, private: Any, message: Any, site: Any) -> Any:
        return {"last": site.rng.normal(size=1)}, {"draw": site.rng.normal(size=1)}

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        return {f"round-{len(state)}": replies["draw"], **state}

    def message(self, state: Any, client: str, purpose: Any) -> Any:
        return {}

    def personalize(self, private: Any, message: Any, site: Any) -> Any:
        return Personal({"weight": np.zeros((site.task.width, site.task.classes)), "private": private["last"]})


def test_draws_differ_by_round_and_client_and_not_by_who_takes_part() -> None:
    federation = sample_federation()
    everybody, fewer = fs.run(Draws(), federation, seed=1), fs.run(Draws(), federation, seed=1, absent=["site-0"])
    assert everybody.state["round-0"] != everybody.state["round-1"]
    for name in fewer.models:
        assert arrays.same(fewer.models[name].arrays, everybody.models[name].arrays)
    assert everybody.models["site-1"].arrays["private"] != everybody.models["site-2"].arrays["private"]


def test_an_update_whose_reply_was_lost_never_happened() -> None:
    federation = sample_federation()
    task, client = federation.task, federation.clients["site-0"]
    request = Request("update", 1, 0, task.described, {})
    memory, _ = handle(fs.FedHiP(beta=1.0, intercept=False), task, client, None, request)
    total = fs.run(fs.FedHiP(beta=1.0, intercept=False), federation).state
    message = fs.FedHiP(beta=1.0, intercept=False).message(total, "site-0", "update")
    seen = []
    for accepted in (True, False):
        final = Request("evaluate", 1, 0, task.described, message, accepted)
        after, _ = handle(fs.FedHiP(beta=1.0, intercept=False), task, client, memory, Request.read(final.write()))
        seen.append(after.counted)
    assert seen == [True, False]


def test_many_clients_run_side_by_side_with_one_blas_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    blas: set[int] = set()
    plain = linear.moments

    def spy(*arguments: Any, **options: Any) -> Any:
        threads.add(threading.current_thread().name)
        blas.update(info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas")
        return plain(*arguments, **options)

    monkeypatch.setattr(linear, "moments", spy)
    with threadpool_limits(2, user_api="blas"):  # whatever the environment says
        fs.run(fs.AFL(ridge=0.0, intercept=False), many(40), workers=2)
        assert all(name.startswith("fedsolve-client") for name in threads)
        assert blas == {1}
        threads.clear()
        fs.run(fs.AFL(ridge=0.0, intercept=False), many(2), workers=2)
        assert threads == {threading.current_thread().name}
        runs = [threading.Thread(target=fs.run, args=(fs.AFL(ridge=0.0, intercept=False), many(40))) for _ in range(3)]
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join()
        after = {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}
        assert after == {2}  # the last one out lifts the limit


def test_no_more_than_a_few_batches_are_under_way() -> None:
    """Answers are folded as they come; a fast sender must not pile them up."""
    federation = many(200)
    transport = InProcess(fs.AFL(ridge=0.0, intercept=False), federation, workers=2)
    size = 200 // inprocess.BATCHES
    drawn, folded, ahead = 0, 0, []

    class Slow(Replies):
        def empty(self) -> Replies:
            return Replies(Plan(()), federation.task.space, False)

        def merge(self, other: Any) -> None:
            nonlocal folded
            super().merge(other)
            folded += len(other.answered)
            ahead.append(drawn - folded)

    def requests() -> Any:
        nonlocal drawn
        for name in transport.clients():
            drawn += 1
            yield name, Request("update", 1, 0, federation.task.described, {}).write()

    transport.ask(requests(), Slow(Plan(()), federation.task.space, False), lambda done: None)
    assert folded == 200
    assert max(ahead) <= 2 * 2 * size + size


def figures_of(**changes: Any) -> Any:
    """What a client with three test samples answers, with some of it changed."""
    scores = np.array([[2.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    tally = metrics.classes.tally(scores, arrays.softmax(scores), [0, 1, 1])
    whole = {"train": np.array(5), "test": np.array(3), **arrays.under("personal", tally)}
    return codec.encode({**whole, **{name.replace("__", "/"): np.array(value) for name, value in changes.items()}})


@pytest.mark.parametrize(
    "tally",
    [
        b"rubbish", codec.encode({"train": np.array(3)}), figures_of(test=0), figures_of(test=4),
        figures_of(personal__count=4), figures_of(personal__log_loss=np.nan), figures_of(personal__auc=1.5),
        figures_of(personal__confusion=[[2, 0], [0, 2]]), figures_of(personal__confusion=[[1.0, 0.0], [1.0, 1.0]]),
    ],
)  # fmt: skip
def test_figures_that_cannot_be_are_refused_or_left_out(tally: Any) -> None:
    whole = Tallies(Classes(2), tolerate=False)
    whole.put("x", figures_of())
    assert whole.clients["x"].accuracy == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="client 'x'"):
        Tallies(Classes(2), tolerate=False).put("x", tally)
    lenient = Tallies(Classes(2), tolerate=True)
    lenient.put("x", tally)
    assert not lenient.clients


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((fs.AFL, "federation"), "such as fs.FedHiP"),
        ((fs.AFL(ridge=0.0, intercept=False), "table"), "takes a Federation"),
        ((fs.AFL(ridge=0.0, intercept=False), "federation", {"workers": -1}), "workers"),
        ((fs.AFL(ridge=0.0, intercept=False), "federation", {"seed": "abc"}), "seed must be an integer"),
    ],
)
def test_wrong_arguments_of_run_are_named(arguments: tuple[Any, ...], words: str) -> None:
    method, what, *options = arguments
    given = sample_federation() if what == "federation" else fs.load("digits")
    with pytest.raises(ParameterError, match=words):
        fs.run(method, given, **(options[0] if options else {}))  # type: ignore[arg-type]


def test_requests_are_drawn_as_they_are_sent() -> None:
    """A transport must be able to keep a window; the loop must not build all requests at once."""

    class Windowed(InProcess):
        largest = 0

        def ask(self, requests: Iterable[tuple[str, codec.Bytes]], inbox: Any, tick: Any) -> None:
            assert iter(requests) is requests
            super().ask(requests, inbox, tick)

    federation = sample_federation()
    drive(fs.AFL(ridge=0.0, intercept=False), federation.task, Windowed(fs.AFL(ridge=0.0, intercept=False), federation))


class Clock(threading.local):
    """A clock that every thread moves by itself: whose time it is does not depend on the machine."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.01
        return self.now


CLOCK = Clock()


@dataclasses.dataclass(frozen=True)
class Paced(fs.AFL):
    """Asks for the pace, and replies with nothing of it."""

    @property
    def rounds(self) -> int:
        return 6

    @property
    def paced(self) -> bool:
        return True

    def update(self, private: Any, message: Any, site: Any) -> Any:
        paces = np.append(private.get("paces", np.empty(0)), site.pace)
        if len(site.train) == 6:
            CLOCK.now += 3.0 / site.pace  # a client that is fast with large blocks
        return {"paces": paces}, super().update({}, {}, site)[1]


def test_slow_clients_are_told_so_and_nobody_else_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsolve.runtime.client.time", CLOCK)
    x, y = np.eye(6), np.arange(6) % 2
    sizes = {"quick-1": 5, "quick-2": 5, "slow": 6}
    federation = fs.Federation.from_arrays({n: {"train": (x[:k], y[:k])} for n, k in sizes.items()}, classes=2)
    transport = InProcess(Paced(ridge=1.0, intercept=False), federation)
    outcome = drive(Paced(ridge=1.0, intercept=False), federation.task, transport)
    paces = (transport.memory["slow"].pending or transport.memory["slow"].private)["paces"]
    assert paces[0] == 1.0
    assert paces[1] > 1.0
    assert (np.diff(paces) >= 0).all()
    assert arrays.same(outcome.state, fs.run(fs.AFL(ridge=1.0, intercept=False), federation).state)


def test_pace_grows_settles_and_never_oscillates() -> None:
    """A client whose time is its work over its pace comes to rest, where (7) as printed swings."""
    pace, first = Pace(), Pace().after({"a": 1.0, "b": 1.0, "slow": 9.0})
    assert first.of("slow") == 3.0
    assert first.of("a") == 1.0
    factors = []
    for _ in range(40):
        pace = pace.after({"a": 1.0, "b": 1.0, "slow": 9.0 / pace.of("slow")})
        factors.append(pace.of("slow"))
    assert factors == sorted(factors)
    assert factors[-1] == pytest.approx(9.0)
    assert Pace({"gone": 2.0}).after({"a": 1.0, "b": 5.0}).of("gone") == 2.0
    assert Pace().after({}).factors == {}
    assert Pace().after({"a": 0.0, "b": 0.0}).factors == {}
    runaway = Pace()
    for _ in range(100):
        runaway = runaway.after({"a": 1.0, "b": 1.0, "slow": 1e9})
    assert runaway.of("slow") == LARGEST_PACE


@pytest.mark.parametrize("seconds", ["nan", "-1", "soon", "inf"])
def test_impossible_times_are_refused(seconds: str) -> None:
    replies = Replies(Plan(()), 0, tolerate=True)
    replies.put("liar", codec.encode({"x": np.ones(2)}, {"space": "0", "seconds": seconds}))
    replies.put("honest", codec.encode({"x": np.ones(2)}, {"space": "0", "seconds": "0.5"}))
    assert replies.answered == {"honest"}
    assert replies.seconds == {"honest": 0.5}
    assert "seconds" in replies.failed["liar"]


def test_clients_are_evaluated_when_asked_for_and_after_the_last_round() -> None:
    federation, method = sample_federation(), Collecting(ridge=0.0, intercept=False)
    every = drive(method, federation.task, InProcess(method, federation))
    last = drive(method, federation.task, InProcess(method, federation), evaluate_every=2)
    assert [line.accuracy is None for line in every.history] == [False, False]
    assert [line.accuracy is None for line in last.history] == [True, False]
    assert last.history[-1].accuracy == every.history[-1].accuracy
    assert arrays.same(last.state, every.state)


def test_a_round_that_too_few_answered_does_not_count() -> None:
    federation, method = sample_federation(), Spoils(how="nan")
    others = len(federation.clients) - 1
    found = drive(method, federation.task, InProcess(method, federation), tolerate=True, min_clients=others)
    assert set(found.failed) == {"site-2"}
    with pytest.raises(
        DataError, match=r"only 5 of 6 clients answered in round 1, fewer than the 6 .*site-2: its reply"
    ):
        drive(method, federation.task, InProcess(method, federation), tolerate=True, min_clients=others + 1)


def test_a_generator_is_made_once_and_only_for_those_who_draw() -> None:
    """The same draws wherever it is first asked for, also through a copy of the site."""
    seen: list[Any] = []

    @dataclasses.dataclass(frozen=True)
    class Draws(fs.AFL):
        def update(self, private: Any, message: Any, site: Any) -> Any:
            first, copied = site.rng, dataclasses.replace(site, pace=2.0)
            seen.append((first is site.rng, copied.rng is first, float(first.normal())))
            return super().update(private, message, site)

    federation = sample_federation(sizes=(40,))
    fs.run(Draws(), federation, seed=5)
    assert seen == [(True, True, float(derive(5, "update", "site-0", 1).normal()))]
