"""Laws of the inboxes: what is counted, what is refused, and that merging is putting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsolve import arrays, codec, metrics
from fedsolve.data.task import Classes
from fedsolve.errors import DataError
from fedsolve.method import Plan
from fedsolve.runtime.inbox import Failure, Replies, Tallies


def reply(named: dict[str, Any], space: str = "7", **head: str) -> memoryview:
    return codec.encode({name: np.asarray(array) for name, array in named.items()}, {"space": space, **head})


def inbox(*, tolerate: bool = True, fold: Any = "sum", each: tuple[str, ...] = (), witness: Any = None) -> Replies:
    return Replies(Plan((), fold, each), 7, tolerate, witness)


ANSWERS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["two", "three", "late", "nan", "empty"])), max_size=6)


def answer(client: int, kind: str) -> Any:
    if kind == "late":
        return Failure(f"late by {client}")
    arrays: dict[str, Any] = {"empty": {}, "nan": {"a": [np.nan, 1.0]}}.get(
        kind, {"a": np.full(2 if kind == "two" else 3, 2.0**client), "head/w": [1.0]}
    )
    return reply(arrays, seconds=f"{client}.5")


@given(ANSWERS, st.integers(0, 6), st.sampled_from(["sum", "collect", "groups"]), st.sampled_from([(), ("head",)]))
def test_merging_inboxes_is_putting_into_one(answers: Any, cut: int, fold: Any, each: tuple[str, ...]) -> None:
    """Whatever the clients answer: sums, who answered, who failed and why, seconds, bytes."""
    answers = list({f"c{client}": (client, kind) for client, kind in answers}.items())
    fold = {f"c{client}": f"g{client % 2}" for client in range(6)} if fold == "groups" else fold
    whole = inbox(fold=fold, each=each)
    left, right = whole.empty(), whole.empty()
    for number, (name, (client, kind)) in enumerate(answers):
        whole.put(name, answer(client, kind))
        (left if number < cut else right).put(name, answer(client, kind))
    left.merge(right)
    found, wanted = left.folded(), whole.folded()
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])
    assert (left.answered, left.failed, left.seconds, left.received) == (
        whole.answered, whole.failed, whole.seconds, whole.received,
    )  # fmt: skip
    assert whole.answered.isdisjoint(whole.failed)
    assert whole.answered | whole.failed.keys() == {name for name, _ in answers}


def test_bytes_are_counted_for_replies_that_carry_something() -> None:
    replies = inbox()
    full, empty = reply({"a": [1.0]}), reply({})
    replies.put("x", full)
    assert replies.received == len(full)
    silent = inbox()
    silent.put("x", empty)
    assert silent.received == 0
    assert silent.answered == {"x"}
    assert silent.folded() == {}
    assert inbox().received == 0
    assert inbox().folded() == {}


def test_seconds_are_those_that_clients_tell() -> None:
    replies = inbox()
    replies.put("x", reply({"a": [1.0]}, seconds="0"))
    replies.put("y", reply({"a": [1.0]}))
    replies.put("z", reply({"a": [1.0]}, seconds="1.25"))
    assert replies.seconds == {"x": 0.0, "z": 1.25}


@pytest.mark.parametrize("space", ["8", "", None])
def test_another_space_or_none_is_refused(space: str | None) -> None:
    head = {} if space is None else {"space": space}
    replies = inbox()
    replies.put("x", codec.encode({"a": np.ones(1)}, head))
    assert replies.failed == {"x": f"its feature space is {space}, not the server's 7"}
    assert not replies.answered


def test_a_witness_sees_every_reply_before_it_is_added_and_may_refuse_it() -> None:
    seen: list[tuple[str, float]] = []

    def witness(client: str, arrays: Any) -> None:
        seen.append((client, float(arrays["a"][0])))
        if client == "bad":
            raise DataError("not in the book")

    replies = inbox(witness=witness)
    for part, (client, value) in (
        (replies, ("x", 1.0)),
        (replies.empty(), ("bad", 5.0)),
        (replies.empty(), ("y", 2.0)),
    ):
        part.put(client, reply({"a": [value]}))
        if part is not replies:
            replies.merge(part)
    replies.put("spoilt", reply({"a": [np.nan]}))
    assert seen == [("x", 1.0), ("bad", 5.0), ("y", 2.0)]
    assert replies.failed["bad"] == "not in the book"
    assert replies.folded()["a"] == 3.0


def test_most_clients_decide_the_layout_and_the_others_are_told_what_differs() -> None:
    replies = inbox(each=("head",))
    for client, size in (("a", 3), ("b", 2), ("c", 3), ("d", 1)):
        replies.put(client, reply({"w": np.ones(size), "head/v": np.ones(1)}))
    folded = replies.folded()
    np.testing.assert_array_equal(folded["w"], [2.0, 2.0, 2.0])
    assert set(folded) == {"w", "a/head/v", "c/head/v"}
    assert replies.answered == {"a", "c"}
    assert (
        replies.failed["b"] == "its reply has head/v <f8[1], w <f8[2] where those of most have head/v <f8[1], w <f8[3]"
    )
    assert set(replies.failed) == {"b", "d"}
    strict = inbox(tolerate=False)
    for client, size in (("a", 3), ("b", 2), ("c", 3)):
        strict.put(client, reply({"w": np.ones(size)}))
    with pytest.raises(DataError, match=r"client 'b': its reply has w <f8\[2\]"):
        strict.folded()


@pytest.mark.parametrize("fold", ["sum", {"a": "g", "b": "g"}])
def test_every_group_is_held_to_the_layout_of_most(fold: Any) -> None:
    groups = {"a": "g0", "b": "g1", "c": "g1"}
    replies = inbox(fold=groups if fold != "sum" else fold)
    for client, size in (("a", 2), ("b", 3), ("c", 2)):
        replies.put(client, reply({"w": np.ones(size)}))
    assert {name: float(array.sum()) for name, array in replies.folded().items()} == (
        {"w": 4.0} if fold == "sum" else {"g0/w": 2.0, "g1/w": 2.0}
    )
    assert set(replies.failed) == {"b"}


def test_where_every_reply_is_collected_layouts_may_differ() -> None:
    replies = inbox(fold="collect")
    for client, size in (("b", 2), ("a", 3)):
        replies.put(client, reply({"w": np.ones(size)}))
    folded = replies.folded()
    assert list(folded) == ["a/w", "b/w"]
    assert {name: len(array) for name, array in folded.items()} == {"a/w": 3, "b/w": 2}
    assert not replies.failed


def test_what_was_sent_stays_what_was_sent() -> None:
    """Sums are the inbox's own: neither a reply nor an inbox that was merged is written to."""
    first = reply({"a": [1.0]})
    replies, other = inbox(), inbox()
    replies.put("x", first)
    other.put("y", reply({"a": [2.0]}))
    replies.merge(other)
    assert codec.decode(first)["a"] == 1.0
    assert replies.folded()["a"] == 3.0


# --- figures


def tally(right: int, count: int = 4) -> dict[str, Any]:
    """Of a model that answers so many of its samples of class 0 rightly, and calls the others class 1."""
    scores = np.where(np.arange(count)[:, None] < right, [[1.0, 0.0]], [[0.0, 1.0]])
    return metrics.classes.tally(scores, arrays.softmax(scores), np.zeros(count, int))


def figures(personal: int | None = 3, shared: int | None = None, **changes: Any) -> memoryview:
    whole: dict[str, Any] = {"train": np.array(5), "test": np.array(4)}
    for whose, right in (("personal", personal), ("shared", shared)):
        whole |= arrays.under(whose, tally(right)) if right is not None else {}
    whole |= {name.replace("__", "/"): value for name, value in changes.items()}
    return codec.encode({name: np.array(value) for name, value in whole.items() if value is not None})


def test_figures_become_shares_of_the_test_samples() -> None:
    tallies = Tallies(Classes(2), tolerate=False)
    tallies.put("x", figures(3, 0, chosen__ridge=0.5))
    tallies.put("y", figures(4, personal__auc=0.75))
    tallies.put("z", figures(None, test=0))
    tallies.put("w", figures(0, personal__auc=0.0))
    assert tallies.clients["w"].metrics["auc"] == 0.0
    assert (tallies.clients["x"].accuracy, tallies.clients["x"].shared) == (0.75, 0.0)
    assert (tallies.clients["x"].train, tallies.clients["x"].test) == (5, 4)
    assert tallies.clients["x"].chosen == {"ridge": 0.5}
    assert (tallies.clients["y"].accuracy, tallies.clients["y"].shared) == (1.0, None)
    assert tallies.clients["y"].metrics["auc"] == 0.75
    assert (tallies.clients["z"].accuracy, tallies.clients["z"].test) == (None, 0)
    assert tallies.sums["personal"]["confusion"].tolist() == [[7, 5], [0, 0]]
    assert tallies.sums["shared"]["count"] == 4
    assert "auc" not in tallies.sums["personal"]


@pytest.mark.parametrize(
    "changes",
    [
        {"personal__count": 5}, {"personal__confusion": [[5, -1], [0, 0]]}, {"personal__confusion": [[5, 0], [0, 0]]},
        {"test": 0}, {"test": -1}, {"test": 5}, {"train": None}, {"test": None}, {"personal__confusion": None},
        {"personal__wrong": 1}, {"test": [1, 2]}, {"test": np.inf}, {"test": np.nan}, {"chosen__ridge": [1.0, 2.0]},
        {"personal__log_loss": np.nan}, {"personal__brier": -1.0}, {"personal__auc": 1.01}, {"personal__auc": -0.01},
        {"personal__auc": np.nan}, {"shared__count": 4}, {"baseline__count": 4},
    ],
)  # fmt: skip
def test_figures_that_cannot_be_are_refused_by_name_or_noted(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError) as error:
        Tallies(Classes(2), tolerate=False).put("x", figures(**changes))
    assert str(error.value).startswith("client 'x': its figures")
    lenient = Tallies(Classes(2), tolerate=True)
    lenient.put("x", figures(**changes))
    assert lenient.failed == {"x": str(error.value).removeprefix("client 'x': ")}
    assert not lenient.clients and not lenient.sums


def test_figures_of_other_classes_are_refused() -> None:
    with pytest.raises(DataError, match="its figures of 3 classes must hold"):
        Tallies(Classes(3), tolerate=False).put("x", figures())


def test_inboxes_for_figures_merge_and_keep_their_kind() -> None:
    strict, lenient = Tallies(Classes(2), tolerate=False), Tallies(Classes(2), tolerate=True)
    with pytest.raises(DataError, match="client 'x': gone"):
        strict.empty().put("x", Failure("gone"))
    other = lenient.empty()
    other.put("x", Failure("gone"))
    lenient.put("z", figures(1))
    other.put("y", figures(4))
    lenient.merge(other)
    assert lenient.failed == {"x": "gone"}
    assert set(lenient.clients) == {"y", "z"}
    assert lenient.sums["personal"]["confusion"].tolist() == [[5, 3], [0, 0]]
    with pytest.raises(TypeError, match="cannot merge Replies into Tallies"):
        lenient.merge(inbox())
    with pytest.raises(TypeError, match="cannot merge Tallies into Replies"):
        inbox().merge(lenient)


def test_damaged_bytes_are_called_by_what_they_should_have_been() -> None:
    replies, tallies = inbox(), Tallies(Classes(2), tolerate=True)
    replies.put("x", b"rubbish")
    tallies.put("x", b"rubbish")
    assert replies.failed["x"].startswith("its reply is damaged")
    assert tallies.failed["x"].startswith("its figures ")
