"""What a run had taken and reached after each round."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve.course import AXES, course

numbers = st.integers(0, 10**12)
lines = st.lists(st.tuples(st.floats(0, 1e6), numbers, numbers), max_size=8)


@given(lines)
def test_what_all_rounds_took_is_the_sum_of_what_each_took(parts: list[tuple[float, int, int]]) -> None:
    history = [
        {"round": n, "seconds": s, "bytes_up": up, "bytes_down": down} for n, (s, up, down) in enumerate(parts, 1)
    ]
    stands = course(history)
    assert [stand.round for stand in stands] == list(range(1, len(parts) + 1))
    assert [stand.seconds for stand in stands] == pytest.approx(list(accumulate(s for s, _, _ in parts)))
    assert [stand.bytes for stand in stands] == list(accumulate(up + down for _, up, down in parts))
    for stand in stands:
        assert [stand.at(axis) for axis in AXES] == [stand.round, stand.seconds, stand.bytes]


def test_the_last_stand_of_a_run_is_its_result() -> None:
    federation = fs.load("digits").split(fs.dirichlet(0.3), clients=4)
    result = fs.run(fs.create("deepafl", {"blocks": 2, "width": 8}), federation)
    content = result.json()
    last = course(content["history"])[-1]
    assert last.round == content["rounds"] > 2
    assert last.bytes == content["bytes"]["up"] + content["bytes"]["down"]
    assert last.seconds == pytest.approx(sum(line.seconds for line in result.history))
    for name, spread in result.metrics.items():
        told = {part: value for part, value in (("mean", spread.mean), ("pooled", spread.pooled)) if value is not None}
        assert last.figures[name] == pytest.approx(told)


@pytest.mark.parametrize(
    "line",
    [{"accuracy": 0.5}, {"metrics": {"accuracy": 0.5}}, {"metrics": {"accuracy": {"mean": 0.5, "pooled": None}}}],
)
def test_both_formats_have_the_same_mean(line: dict[str, Any]) -> None:
    (stand,) = course([{"round": 1, **line}])
    assert stand.figures == {"accuracy": {"mean": 0.5}}
    assert stand.seconds is None
    assert stand.bytes is None


def test_what_one_round_does_not_tell_is_unknown_from_there_on() -> None:
    history = [{"round": n, "bytes_up": 1, "bytes_down": 1, **({} if n == 2 else {"seconds": 1.0})} for n in (1, 2, 3)]
    assert [stand.seconds for stand in course(history)] == [1.0, None, None]
    assert [stand.bytes for stand in course(history)] == [2, 4, 6]
    assert [dict(stand.figures) for stand in course(history)] == [{}, {}, {}]  # nobody evaluated
