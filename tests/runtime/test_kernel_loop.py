"""Laws of the round loop that show over several rounds: who is told what, what is booked, and how a run goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import arrays, codec
from fedsolve.errors import DataError, ParameterError
from fedsolve.method import Method, Personal, Plan
from fedsolve.rng import derive
from fedsolve.runtime import drive as loop
from fedsolve.runtime.client import Memory, Request, handle
from fedsolve.runtime.drive import Snapshot, drive
from fedsolve.runtime.gather import Plain
from fedsolve.runtime.inbox import Failure
from fedsolve.runtime.pace import LARGEST_PACE, Pace


@dataclasses.dataclass(frozen=True)
class Tally(Method):
    """Clients count their updates and send one; the server's state is the number of the round and the sum."""

    name = "tally"
    paper = "none"
    sends = "a one"
    laws = ()
    asked: tuple[str, ...] = ("abc", "abc", "abc")  # who takes part in each round, by letter
    paced: bool = False
    greeting: bool = True  # whether the first message says something

    @property
    def rounds(self) -> int:
        return len(self.asked)

    def init_server(self, server: Any) -> Any:
        return {"round": np.array(server.round), "sum": np.array(0.0), "draw": server.rng.normal(size=1)}

    def plan(self, state: Any, clients: Any) -> Plan:
        return Plan(tuple(name for name in clients if name in self.asked[int(state["round"])]))

    def message(self, state: Any, client: str, purpose: Any) -> Any:
        if purpose == "update" and not self.greeting:
            return {}
        return {"sum": state["sum"], "for": np.array([("personalize", "update").index(purpose), len(client)])}

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        total = state["sum"] + replies["one"]
        return {"round": np.array(server.round), "sum": total, "draw": server.rng.normal(size=1)}

    def figures(self, state: Any) -> Mapping[str, float]:
        return {"loss": float(state["sum"])}

    def init_client(self, site: Any) -> Any:
        return {"updates": np.array(0), "first": site.rng.normal(size=1)}

    def update(self, private: Any, message: Any, site: Any) -> Any:
        return {**private, "updates": private["updates"] + 1}, {"one": np.array(1.0)}

    def personalize(self, private: Any, message: Any, site: Any) -> Personal:
        width, classes = site.train.inputs.shape[1], site.task.classes
        return Personal({"weight": np.zeros((width, classes)), "updates": private["updates"]}, {"round": site.round})

    def predict(self, model: Any, inputs: Any, task: Any) -> Any:
        return inputs @ model["weight"]


def federation(names: Iterable[str] = "abc", test: bool = True) -> fs.Federation:
    x, y = np.eye(4), np.arange(4) % 2
    parts = {"train": (x, y), "test": (x, y)} if test else {"train": (x, y)}
    return fs.Federation.from_arrays({name: parts for name in names}, classes=2)


class Post:
    """A transport to clients in this process that writes down all requests, and loses some answers on their way."""

    def __init__(self, method: Method, data: fs.Federation, lost: Iterable[tuple[str, int, str]] = ()) -> None:
        self.method, self.data, self.lost = method, data, set(lost)
        self.memory: dict[str, Memory] = {}
        self.log: list[tuple[str, Request]] = []
        self.sizes: dict[tuple[int, str], int] = {}  # bytes sent, by round and kind
        self.up: dict[int, int] = {}

    def clients(self) -> list[str]:
        return sorted(self.data.clients, reverse=True)  # the order must not matter

    def ask(self, requests: Iterable[tuple[str, codec.Bytes]], inbox: Any, tick: Any) -> None:
        for done, (name, data) in enumerate(requests, 1):
            request = Request.read(data)
            self.log.append((name, request))
            key = request.round, request.kind
            self.sizes[key] = self.sizes.get(key, 0) + len(data)
            memory, answer = handle(
                self.method, self.data.task, self.data.clients[name], self.memory.get(name), request
            )
            self.memory[name] = memory
            gone = (name, request.round, request.kind) in self.lost
            if request.kind == "update" and not gone:
                self.up[request.round] = self.up.get(request.round, 0) + len(answer)
            inbox.put(name, Failure(f"lost in round {request.round}, {request.kind}") if gone else answer)
            tick(done)

    def told(self, name: str, kind: str) -> dict[int, bool]:
        """By round: whether the client was told that its last reply had arrived."""
        return {request.round: request.accepted for who, request in self.log if (who, request.kind) == (name, kind)}


def test_a_client_whose_reply_was_lost_is_told_so_when_it_is_asked_again_however_late() -> None:
    """b's reply is lost in round 1, and b is not asked in round 2: in round 3 it must still hear of it."""
    method = Tally(asked=("abc", "ac", "abc", "abc"))
    post = Post(method, federation(), lost=[("b", 1, "update")])
    found = drive(method, federation().task, post, tolerate=True)
    assert post.told("b", "update") == {1: True, 3: False, 4: True}
    assert post.told("b", "evaluate") == {1: False, 2: False, 3: True, 4: True}
    for name in "ac":
        assert post.told(name, "update") == dict.fromkeys([1, 2, 3, 4], True)
    assert found.state["sum"] == 2 + 2 + 3 + 3
    # What never arrived never happened: b's own count is that of the replies the server has.
    assert {name: int(post.memory[name].private["updates"]) for name in "abc"} == {"a": 4, "b": 2, "c": 4}
    assert [line.missing for line in found.history] == [("b",), ("b",), (), ()]
    assert found.failed == {"b": "lost in round 1, update"}


def test_clients_that_were_never_asked_are_missing_but_have_lost_nothing() -> None:
    method = Tally(asked=("ab", "abc"))
    post = Post(method, federation())
    found = drive(method, federation().task, post)
    assert post.told("c", "update") == {2: True}
    assert [line.missing for line in found.history] == [("c",), ()]
    assert not found.failed


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_a_run_that_goes_on_from_a_snapshot_asks_and_books_as_if_it_had_never_stopped(stop: int) -> None:
    method = Tally(asked=("abc", "ac", "abc", "ab"))
    data, kept = federation(), list[Snapshot]()
    whole = Post(method, data, lost=[("b", 1, "update")])
    straight = drive(method, data.task, whole, seed=3, tolerate=True, keep=kept.append)
    assert [snapshot.round for snapshot in kept] == [1, 2, 3]  # behind the last round there is nothing to go on to
    assert kept[1].lost == {"b"}
    assert kept[2].lost == frozenset()
    first, saved = Post(method, data, lost=[("b", 1, "update")]), list[Snapshot]()

    def keep(snapshot: Snapshot) -> None:
        saved.append(snapshot)
        if snapshot.round == stop:
            raise KeyboardInterrupt

    if stop:
        with pytest.raises(KeyboardInterrupt):
            drive(method, data.task, first, seed=3, tolerate=True, keep=keep)
    snapshot = saved[-1] if saved else None
    second = Post(method, data, lost=[("b", 1, "update")])
    second.memory = first.memory
    resumed = drive(method, data.task, second, seed=3, tolerate=True, resume=snapshot)
    assert arrays.same(resumed.state, straight.state)
    written = [(name, dataclasses.replace(request, message={})) for name, request in first.log + second.log]
    assert written == [(name, dataclasses.replace(request, message={})) for name, request in whole.log]

    def lines(history: Any) -> Any:
        return [dataclasses.replace(line, seconds=0.0) for line in history]

    assert lines(resumed.history) == lines(straight.history)
    if snapshot:
        assert all(resumed.seconds[name] >= before for name, before in snapshot.seconds.items())


def test_the_books_of_a_round_are_those_of_the_bytes() -> None:
    """What went up in each round; what went down with updates, and once more with the last evaluation."""
    method = Tally(asked=("abc", "ab", "abc"))
    post = Post(method, federation(), lost=[("a", 2, "update")])
    found = drive(method, federation().task, post, tolerate=True)
    assert [line.bytes_up for line in found.history] == [post.up[number] for number in (1, 2, 3)]
    down = [post.sizes[number, "update"] for number in (1, 2, 3)]
    assert [line.bytes_down for line in found.history] == [down[0], down[1], down[2] + post.sizes[3, "evaluate"]]
    assert [line.round for line in found.history] == [1, 2, 3]
    assert [line.loss for line in found.history] == [3.0, 4.0, 7.0]
    assert all(line.seconds > 0 for line in found.history)
    assert sum(line.seconds for line in found.history) == pytest.approx(sum(found.seconds.values()), rel=0.2, abs=0.05)
    assert set(found.seconds) == {"clients", "server", "evaluate"}
    assert all(spent > 0 for spent in found.seconds.values())


def test_a_request_without_a_message_carries_nothing_and_counts_nothing() -> None:
    method = Tally(asked=("abc", "abc"), greeting=False)
    post = Post(method, federation())
    found = drive(method, federation().task, post)
    assert [line.bytes_down for line in found.history] == [0, post.sizes[2, "evaluate"]]


def test_server_and_clients_draw_from_their_own_places_of_the_seed_tree() -> None:
    method, data = Tally(asked=("abc",)), federation()
    post, found = Post(method, data), []
    for seed in (0, 7):
        post = Post(method, data)
        found.append(drive(method, data.task, post, seed=seed))
        assert found[-1].state["draw"] == derive(seed, "aggregate", 1).normal(size=1)
        assert post.memory["a"].private["first"] == derive(seed, "client", "a").normal(size=1)
        assert {request.seed for _, request in post.log} == {seed}
    assert arrays.same(drive(method, data.task, Post(method, data)).state, found[0].state)  # 0 unless told otherwise
    start = drive(dataclasses.replace(method, asked=()), data.task, Post(method, data), seed=7)
    assert start.state["draw"] == derive(7, "server").normal(size=1)
    assert start.state["round"] == 0


def test_time_is_booked_under_what_it_was_spent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only the parts of a round move on."""
    now = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    @dataclasses.dataclass(frozen=True)
    class Busy(Tally):
        def plan(self, state: Any, clients: Any) -> Plan:
            now[0] += 1.0
            return super().plan(state, clients)

        def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
            now[0] += 10.0
            return super().aggregate(state, replies, server)

    class Far(Post):
        def ask(self, requests: Iterable[tuple[str, codec.Bytes]], inbox: Any, tick: Any) -> None:
            super().ask(requests, inbox, tick)
            now[0] += 100.0 if self.log[-1][1].kind == "update" else 1000.00000449

    method = Busy(asked=("abc", "abc"))
    found = drive(method, federation().task, Far(method, federation()))
    assert found.seconds == pytest.approx({"server": 22.0, "clients": 200.0, "evaluate": 2000.000009})
    assert [line.seconds for line in found.history] == [1111.000004, 1111.000004]  # to the microsecond


def test_the_shared_model_is_that_of_a_message_for_personalisation() -> None:
    @dataclasses.dataclass(frozen=True)
    class Sharing(Tally):
        def shared(self, message: Any) -> Any:
            return {"weight": np.zeros((4, 2)), "for": message["for"]}

    data = federation(["aa", "b"])
    for lost, client in (([], "aa"), ([(name, 1, "evaluate") for name in data.clients], "")):
        method = Sharing(asked=(("aa", "b"),))  # type: ignore[arg-type]
        found = drive(method, data.task, Post(method, data, lost), tolerate=True)
        assert found.shared is not None
        np.testing.assert_array_equal(found.shared["for"], [False, len(client)])


@pytest.mark.parametrize(("share", "count"), [(1.0, 10), (0.999, 10), (0.5, 5), (0.26, 3), (0.04, 1), (1e-9, 1)])
def test_the_share_that_takes_part_is_drawn_anew_each_round_in_sorted_order(share: float, count: int) -> None:
    names = "abcdefghij"
    method, data = Tally(asked=(names,) * 8), federation(names)
    asked = []
    for _ in range(2):
        post = Post(method, data)
        found = drive(method, data.task, post, seed=1, participation=share)
        rounds = [[n for n, r in post.log if (r.round, r.kind) == (number, "update")] for number in range(1, 9)]
        assert all(len(drawn) == count and drawn == sorted(set(drawn)) for drawn in rounds)
        assert [set(line.missing) for line in found.history] == [set(names) - set(drawn) for drawn in rounds]
        asked.append(rounds)
        if count < 10:
            draws = [derive(1, "participation", number).choice(10, count, replace=False) for number in range(1, 9)]
            assert rounds == [[names[i] for i in sorted(draw)] for draw in draws]
        assert {n for n, r in post.log if r.kind == "evaluate"} == set(names)
    assert asked[0] == asked[1]
    assert len({tuple(drawn) for drawn in asked[0]}) > 1 or count == 10


@pytest.mark.parametrize("every", [True, 0, -1, 1.0, "1", None])
def test_evaluating_every_so_many_rounds_wants_a_positive_integer(every: Any) -> None:
    with pytest.raises(ParameterError, match="eval-every must be an integer of at least 1"):
        drive(Tally(), federation().task, Post(Tally(), federation()), evaluate_every=every)


@pytest.mark.parametrize(("every", "rounds"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_clients_are_evaluated_after_every_so_many_rounds_and_the_last(every: int, rounds: list[int]) -> None:
    method = Tally(asked=("abc",) * 5)
    post = Post(method, federation())
    found = drive(method, federation().task, post, evaluate_every=every)
    assert sorted({request.round for _, request in post.log if request.kind == "evaluate"}) == rounds
    assert [line.round for line in found.history if line.accuracy is not None] == rounds
    assert list(found.clients) == ["a", "b", "c"]
    assert found.clients["a"].chosen == {"round": 5.0}


def test_what_failed_is_listed_with_its_last_reason_and_replies_before_figures() -> None:
    method = Tally(asked=("abc", "abc"))
    lost = [("a", 1, "update"), ("a", 1, "evaluate"), ("b", 1, "evaluate"), ("c", 2, "update"), ("c", 1, "update")]
    found = drive(method, federation().task, Post(method, federation(), lost), tolerate=True)
    assert found.failed == {
        "a": "lost in round 1, update",
        "b": "lost in round 1, evaluate",
        "c": "lost in round 2, update",
    }
    assert set(found.clients) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("least", "words"), [(1, "no client answered in round 2"), (0, "no client answered in round 2")]
)
def test_a_round_without_answers_stops_the_run_with_three_reasons(least: int, words: str) -> None:
    names = "abcd"
    method = Tally(asked=(names, names))
    post = Post(method, federation(names), [(name, 2, "update") for name in names])
    with pytest.raises(DataError) as error:
        drive(method, federation(names).task, post, tolerate=True, min_clients=least)
    reasons = "; ".join(f"{name}: lost in round 2, update" for name in "abc")
    assert str(error.value) == f"no client answered in round 2 ({reasons})"


def test_a_round_that_nobody_was_asked_in_has_no_reasons() -> None:
    method = Tally(asked=("abc", ""))
    with pytest.raises(DataError) as error:
        drive(method, federation().task, Post(method, federation()))
    assert str(error.value) == "no client answered in round 2"


def test_where_nobody_is_there_nobody_is_drawn() -> None:
    class Empty(Post):
        def clients(self) -> list[str]:
            return []

    for share in (0.5, 1.0):
        with pytest.raises(DataError, match=r"^no client answered in round 1$"):
            drive(Tally(), federation().task, Empty(Tally(), federation()), participation=share)


def test_just_enough_clients_are_enough_and_one_fewer_is_named() -> None:
    method = Tally(asked=("abc",))
    lost = [("b", 1, "update")]
    drive(method, federation().task, Post(method, federation(), lost), tolerate=True, min_clients=2)
    with pytest.raises(DataError) as error:
        drive(method, federation().task, Post(method, federation(), lost), tolerate=True, min_clients=3)
    assert str(error.value) == (
        "only 2 of 3 clients answered in round 1, fewer than the 3 that are wanted (b: lost in round 1, update)"
    )


def test_reports_and_progress_tell_of_every_round() -> None:
    method = Tally(asked=("abc", "ab"))
    reports: list[tuple[int, int]] = []
    ticks: list[tuple[str, int, int]] = []
    drive(
        method,
        federation().task,
        Post(method, federation()),
        on_round=lambda line, total: reports.append((line.round, total)),
        progress=lambda *event: ticks.append(event),
    )
    assert reports == [(1, 2), (2, 2)]
    assert ticks == [
        *(("round 1: clients answering", done, 3) for done in (1, 2, 3)),
        *(("round 1: personal models", done, 3) for done in (1, 2, 3)),
        *(("round 2: clients answering", done, 2) for done in (1, 2)),
        *(("round 2: personal models", done, 3) for done in (1, 2, 3)),
    ]


def test_a_gathering_stands_between_the_loop_and_the_transport_for_updates_alone() -> None:
    kinds: list[str] = []

    class Listening(Plain):
        def gather(self, transport: Any, requests: Any, replies: Any, tick: Any) -> None:
            listed = list(requests)
            kinds.extend(Request.read(data).kind for _, data in listed)
            super().gather(transport, iter(listed), replies, tick)

    method = Tally(asked=("abc",))
    found = drive(method, federation().task, Post(method, federation()), gathering=Listening())
    assert kinds == ["update"] * 3
    assert found.state["sum"] == 3.0


def test_clients_that_are_sent_the_same_are_sent_the_same_bytes() -> None:
    """Encoded once for all; once more for a client that hears something else."""

    @dataclasses.dataclass(frozen=True)
    class Broadcast(Tally):
        def message(self, state: Any, client: str, purpose: Any) -> Any:
            return {"sum": state["sum"]}

    class Holding(Post):
        def ask(self, requests: Iterable[tuple[str, codec.Bytes]], inbox: Any, tick: Any) -> None:
            listed = list(requests)
            self.held = [*getattr(self, "held", []), *(data for _, data in listed)]
            super().ask(iter(listed), inbox, tick)

    method = Broadcast(asked=("abc", "abc"))
    post = Holding(method, federation(), [("c", 1, "update")])
    drive(method, federation().task, post, tolerate=True)
    distinct = {id(data) for data in post.held}
    # round 1: one update; one evaluation for a and b, one for c; round 2: likewise, and one evaluation for all
    assert len(distinct) == 1 + 2 + 2 + 1
    assert len(post.held) == 12


def test_the_pace_goes_out_with_updates_and_not_with_evaluations() -> None:
    class Slow(Post):
        def ask(self, requests: Iterable[tuple[str, codec.Bytes]], inbox: Any, tick: Any) -> None:
            for name, data in requests:
                request = Request.read(data)
                self.log.append((name, request))
                if request.kind == "update":
                    head = {"space": f"{self.data.task.space:x}", "seconds": "9.0" if name == "a" else "1.0"}
                    inbox.put(name, codec.encode({"one": np.array(1.0)}, head))

    method = Tally(asked=("abc", "abc", "abc"), paced=True)
    post = Slow(method, federation())
    drive(method, federation().task, post)
    paces = {(who, r.round, r.kind): r.pace for who, r in post.log}
    assert [paces["a", number, "update"] for number in (1, 2, 3)] == [1.0, 3.0, 9.0]
    assert {paces["b", number, "update"] for number in (1, 2, 3)} == {1.0}
    assert {pace for (_, _, kind), pace in paces.items() if kind == "evaluate"} == {1.0}


# --- pace


def test_who_takes_the_median_or_less_keeps_its_pace_and_the_rest_grows_by_the_root() -> None:
    pace = Pace({"a": 2.0, "d": 5.0}).after({"a": 4.0, "b": 1.0, "c": 1.0, "e": 0.5})
    assert pace.factors == {"a": 4.0, "d": 5.0}
    assert Pace().after({"a": 0.4, "b": 0.1, "c": 0.1}).factors == {"a": 2.0}
    assert Pace().after({"a": 1.0, "b": 0.0, "c": 0.0}).factors == {}  # no median to be behind
    assert LARGEST_PACE == 1e6


# --- the client's side


def request(kind: Any = "update", **changes: Any) -> Request:
    return Request(kind, 1, 0, federation().task.described, {"sum": np.array(0.0)}, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "destroy"}, "nobody knows how to 'destroy'"),
        ({"kind": None}, "kind"),
        ({"pace": "0.0"}, "a pace of 0.0"),
        ({"pace": "nan"}, "pace 'nan'"),
        ({"pace": "inf"}, "pace 'inf'"),
        ({"pace": "quick"}, "quick"),
        ({"pace": None}, "pace"),
        ({"round": "one"}, "one"),
        ({"round": None}, "round"),
        ({"seed": None}, "seed"),
        ({"space": None}, "space"),
        ({"accepted": None}, "accepted"),
    ],
)
def test_a_request_whose_head_is_wrong_is_refused(changes: dict[str, str | None], words: str) -> None:
    message, head = codec.read(request().write())
    head |= {name: text for name, text in changes.items() if text is not None}
    head = {name: text for name, text in head.items() if changes.get(name, "") is not None}
    with pytest.raises(DataError, match=rf"request without a proper head: .*{words}"):
        Request.read(codec.encode(message, head))


def test_damaged_bytes_are_no_request_and_a_plain_one_takes_nothing_for_lost() -> None:
    with pytest.raises(DataError, match=r"^request is damaged"):
        Request.read(b"rubbish")
    plain = Request("update", 1, 0, "", {})
    assert (plain.accepted, plain.pace) == (True, 1.0)


def test_a_client_begins_as_one_that_the_server_knows_nothing_of() -> None:
    seen: list[tuple[bool, int, float]] = []

    @dataclasses.dataclass(frozen=True)
    class Beginning(Tally):
        def init_client(self, site: Any) -> Any:
            seen.append((site.counted, site.round, site.pace))
            return super().init_client(site)

    data = federation()
    memory, _ = handle(Beginning(), data.task, data.clients["a"], None, request(pace=2.0))
    handle(Beginning(), data.task, data.clients["a"], memory, request())
    assert seen == [(False, 1, 2.0)]


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("pace", [1.0, 1.0000000000000002, 1e6])
def test_a_request_gives_back_what_it_was_written_from(accepted: bool, pace: float) -> None:
    written = dataclasses.replace(request("evaluate"), round=12, seed=5, accepted=accepted, pace=pace)
    again = Request.read(written.write())
    assert dataclasses.replace(again, message={}) == dataclasses.replace(written, message={})


def test_a_request_carries_these_very_arrays_or_not() -> None:
    mine = request()
    assert mine.carries(mine.message)
    assert mine.carries(dict(mine.message))
    assert not mine.carries({"sum": np.array(0.0)})
    assert not mine.carries({})
    assert not mine.carries({**mine.message, "other": np.array(0.0)})
    two = dataclasses.replace(mine, message={**mine.message, "other": np.array(1.0)})
    assert not two.carries(mine.message)
    assert not two.carries({**two.message, "other": np.array(1.0)})


def test_a_memory_survives_arrays_with_its_model_or_without() -> None:
    private, pending, model = ({"w": np.array(value)} for value in (1.0, 2.0, 3.0))
    for memory in (
        Memory(private),
        Memory(private, True),
        Memory(private, False, pending),
        Memory(private, True, {}),
        Memory(private, True, pending, model),
        Memory({}, False, None, model),
    ):
        again = Memory.from_arrays(memory.arrays())
        assert again.counted is memory.counted
        assert (again.pending is None) == (memory.pending is None)
        for name in ("private", "pending", "model"):
            assert arrays.same(getattr(again, name) or {}, getattr(memory, name) or {})
        assert Memory.from_arrays(memory.arrays(with_model=False)).model is None
        assert Memory.from_arrays({n: a for n, a in memory.arrays().items() if "model" not in n}).model is None


def test_a_memory_settles_once_and_only_where_something_is_pending() -> None:
    private, pending = {"w": np.array(1.0)}, {"w": np.array(2.0)}
    waiting = Memory(private, True, pending, model={"m": np.array(0)})
    taken, dropped = waiting.settled(True), waiting.settled(False)
    assert (taken.private, taken.counted, taken.pending) == (pending, True, None)
    assert (dropped.private, dropped.counted, dropped.pending) == (private, True, None)
    assert not Memory(private, False, pending).settled(False).counted
    still = Memory(private, False)
    assert still.settled(True) is still
    assert still.settled(False) is still


@pytest.mark.parametrize("paced", [False, True])
def test_seconds_stand_beside_the_reply_where_the_method_asks_and_always_take_the_same_room(paced: bool) -> None:
    data = federation()
    _, answer = handle(Tally(paced=paced), data.task, data.clients["a"], None, request())
    reply, head = codec.read(answer)
    assert set(reply) == {"one"}
    assert ("seconds" in head) == paced
    if paced:
        assert len(head["seconds"]) == 15
        assert 0 <= float(head["seconds"]) < 60
    assert head["space"] == f"{data.task.space:x}"


def test_figures_are_of_the_test_samples_and_a_shared_model_that_is_the_same_is_assessed_once() -> None:
    data, calls = federation(), list[str]()

    @dataclasses.dataclass(frozen=True)
    class Sharing(Tally):
        how: str = "part"

        def shared(self, message: Any) -> Any:
            copy = {"w": message["w"], "own": np.array(1)}
            return {"part": {"w": message["w"]}, "whole": message, "equal": copy, "none": None}[self.how]

        def personalize(self, private: Any, message: Any, site: Any) -> Personal:
            whole = message if self.how == "whole" else {"w": message["w"], "own": np.array(1)}
            return Personal(whole, {"ridge": 3})

        def predict(self, model: Any, inputs: Any, task: Any) -> Any:
            return inputs @ model["w"]

    def assess(method: Any, model: Any, test: Any, task: Any) -> Any:
        calls.append("a model")
        return {"correct": np.array(len(calls))}

    message = {"w": np.zeros((4, 2))}
    final = dataclasses.replace(request("evaluate"), message=message)
    for how, times in (("part", 2), ("whole", 1), ("equal", 2), ("none", 1)):
        calls.clear()
        memory, answer = handle(Sharing(how=how), data.task, data.clients["a"], None, final, assess)
        tally = codec.decode(answer)
        assert len(calls) == times
        assert [tally[name].item() for name in ("train", "test", "chosen/ridge")] == [4, 4, 3.0]
        assert tally["personal/correct"] == 1
        assert ("shared/correct" in tally) == (how != "none")
        if how != "none":
            assert tally["shared/correct"] == times
        assert memory.model is not None
        assert memory.pending is None
    calls.clear()
    nobody = federation(test=False)
    _, answer = handle(Sharing(), nobody.task, nobody.clients["a"], None, final, assess)
    assert set(codec.decode(answer)) == {"train", "test", "chosen/ridge"}
    assert not calls


def test_a_tally_counts_the_samples_whose_largest_score_is_the_right_one() -> None:
    data = federation()
    _, answer = handle(Tally(), data.task, data.clients["a"], None, request("evaluate"))
    confusion = codec.decode(answer)["personal/confusion"]
    assert np.trace(confusion) == 2  # all scores are alike: the first class, right for half


def test_update_and_personalisation_of_a_client_know_whether_it_was_counted() -> None:
    seen: list[tuple[str, bool, int, float]] = []

    @dataclasses.dataclass(frozen=True)
    class Watching(Tally):
        def update(self, private: Any, message: Any, site: Any) -> Any:
            seen.append(("update", site.counted, site.round, float(site.rng.normal())))
            return super().update(private, message, site)

        def personalize(self, private: Any, message: Any, site: Any) -> Personal:
            seen.append(("personalize", site.counted, site.round, float(site.rng.normal())))
            return super().personalize(private, message, site)

    data, memory = federation(), None
    steps = [
        ("update", 1, True),
        ("evaluate", 1, False),
        ("update", 2, True),
        ("evaluate", 2, True),
        ("update", 3, True),
    ]
    for kind, number, accepted in steps:
        asked = dataclasses.replace(request(kind), round=number, accepted=accepted)
        memory, _ = handle(Watching(), data.task, data.clients["a"], memory, asked)
    assert [entry[:3] for entry in seen] == [
        ("update", False, 1), ("personalize", False, 1), ("update", False, 2), ("personalize", True, 2),
        ("update", True, 3),
    ]  # fmt: skip
    assert [entry[3] for entry in seen] == [float(derive(0, step, "a", number).normal()) for step, _, number, _ in seen]


def test_a_result_tells_of_all_test_samples_what_they_themselves_say() -> None:
    rng = np.random.default_rng(4)
    names = ("calm", "ill", "well")
    parts = {}
    for client, (train, test) in {"a": (30, 9), "b": (40, 17)}.items():
        labels = rng.integers(3, size=train + test)
        inputs = rng.normal(size=(train + test, 4)) + np.eye(3, 4)[labels]
        parts[client] = {"train": (inputs[:train], labels[:train]), "test": (inputs[train:], labels[train:])}
    wards = fs.Federation.from_arrays(parts, class_names=names)
    result = fs.run(fs.FedHiP(alpha=3.0, beta=1.0, intercept=False), wards)
    answers = {client: result.models[client].predict(wards.clients[client].test.inputs) for client in parts}
    truth = np.concatenate([wards.clients[client].test.labels for client in parts])
    every = np.concatenate(list(answers.values()))
    confusion = np.zeros((3, 3), dtype=int)
    np.add.at(confusion, (truth, every), 1)
    commonest = [np.bincount(wards.clients[client].train.labels).argmax() for client in parts]
    constant = [(wards.clients[c].test.labels == answer).sum() for c, answer in zip(parts, commonest, strict=True)]
    assert result.confusion == tuple(map(tuple, confusion.tolist()))
    assert result.task == {"kind": "classes", "count": 3, "names": list(names)}
    recalls = [np.mean(every[truth == label] == label) for label in range(3)]
    balanced = {"mean": result.metrics["balanced_accuracy"].mean, "pooled": float(np.mean(recalls))}
    assert result.metrics["balanced_accuracy"].pooled == pytest.approx(balanced["pooled"])
    assert result.history[-1].metrics["balanced_accuracy"] == pytest.approx(balanced)
    assert result.baseline["accuracy"] == pytest.approx(sum(constant) / len(truth))
    assert result.shared is not None and result.shared.owner == "global"
    assert result.server.keys() >= {"rank", "rcond"}
    assert result.seconds.total >= result.seconds.clients > 0
