"""Who takes part in a round: shares, and shares that are drawn anew."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.errors import ParameterError
from fedsolve.runtime.turnout import Turnout

NAMES = [f"c{number:02}" for number in range(20)]


def test_a_share_between_two_is_a_whole_number_of_clients_each_as_likely() -> None:
    rng = np.random.default_rng(0)
    drawn = [Turnout.of("0.6-1").draw(NAMES, rng) for _ in range(9000)]
    sizes = Counter(map(len, drawn))
    assert sorted(sizes) == list(range(12, 21))
    assert max(abs(count / 1000 - 1) for count in sizes.values()) < 0.12  # four deviations
    assert all(each == sorted(set(each)) for each in drawn)
    seen = Counter(name for each in drawn for name in each)
    assert max(abs(count / (9000 * 0.8) - 1) for count in seen.values()) < 0.03


def test_one_share_asks_as_many_in_every_round() -> None:
    rng = np.random.default_rng(0)
    assert {len(Turnout.of(0.5).draw(NAMES, rng)) for _ in range(20)} == {10}
    assert Turnout.of(1.0).draw(NAMES[::-1], rng) == NAMES
    assert len(Turnout.of(0.01).draw(NAMES, rng)) == 1
    assert Turnout.of("0.3-0.3") == Turnout.of(0.3)


@pytest.mark.parametrize("wrong", [0, -0.5, 1.5, "1-0.6", "0-1", "many", "0.5-", True, "0.2-0.3-0.4", float("nan")])
def test_what_is_no_share_is_refused(wrong: object) -> None:
    with pytest.raises(ParameterError, match="participation must be a share"):
        Turnout.of(wrong)  # type: ignore[arg-type]


def test_rounds_of_a_run_differ_in_who_is_asked_and_runs_do_not() -> None:
    pytest.importorskip("torch")
    federation = fs.load("digits").split(fs.iid(), clients=10, seed=0)
    method = fs.FedAvg(model="lr", rounds=6, epochs=1)
    first, second = (fs.run(method, federation, participation="0.3-1", evaluate_every=6) for _ in range(2))
    missing = [line.missing for line in first.history]
    assert len({len(each) for each in missing}) > 1 and all(len(each) <= 7 for each in missing)
    assert missing == [line.missing for line in second.history]
    assert first.settings["participation"] == "0.3-1"
