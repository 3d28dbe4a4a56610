"""A method that says it is done is not asked again: `rounds` is a limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import parameters
from fedsolve.checks import sample_federation
from fedsolve.families.ridge import linear
from fedsolve.laws import Law
from fedsolve.result import Round
from fedsolve.runtime.checkpoint import Checkpoint


@dataclass(frozen=True)
class Patient(fs.Method):
    """Least squares, again and again, until it has been solved `enough` times."""

    name: ClassVar[str] = "patient"
    paper: ClassVar[str] = "an example"
    sends: ClassVar[str] = "moments"
    laws: ClassVar[tuple[Law, ...]] = ()
    rounds: int = parameters.number(10, "rounds at most", low=1, integer=True)
    enough: int = parameters.number(3, "rounds", low=1, integer=True)

    def __post_init__(self) -> None:
        parameters.check(self)

    def message(self, state: Any, client: str, purpose: str) -> Any:
        return {name: state[name] for name in ("weight", "solved") if name in state}

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        total = fs.Moments.from_arrays({name: replies[name] for name in ("triangle", "cross", "count")})
        return {"weight": fs.solve(total, 1.0).weights, "solved": np.array(state.get("solved", 0) + 1)}

    def done(self, state: Any) -> bool:
        return int(state["solved"]) >= self.enough

    def update(self, private: Any, message: Any, site: Any) -> Any:
        asked = np.array(private.get("asked", 0) + 1)
        return {"asked": asked}, {**linear.moments(site).arrays(), "asked": asked}

    def personalize(self, private: Any, message: Any, site: Any) -> fs.Personal:
        return fs.Personal({"weight": message["weight"]})

    def predict(self, model: Any, inputs: Any, task: fs.Task) -> Any:
        return linear.scores(model, inputs)


class Stop(Exception):
    """What a user's Ctrl-C stands for here."""


def plain(result: fs.Result) -> list[Round]:
    return [replace(line, seconds=0.0) for line in result.history]


def test_the_run_ends_when_the_method_is_done() -> None:
    lines: list[int] = []
    result = fs.run(Patient(), sample_federation(), on_round=lambda line, rounds: lines.append(line.round))
    assert lines == [1, 2, 3]
    assert result.rounds == 3
    assert int(result.state["solved"]) == 3
    assert result.json()["rounds"] == 3
    fs.check_method(Patient())


@pytest.mark.parametrize(("rounds", "enough"), [(1, 3), (3, 3), (2, 9)])
def test_the_limit_holds_where_it_is_never_done(rounds: int, enough: int) -> None:
    assert fs.run(Patient(rounds=rounds, enough=enough), sample_federation()).rounds == rounds


def test_the_last_round_is_evaluated_and_its_model_sent_once_more() -> None:
    result = fs.run(Patient(), sample_federation(), evaluate_every=100)
    assert [line.accuracy is None for line in result.history] == [True, True, False]
    assert result.history[0].bytes_down == 0
    assert result.history[2].bytes_down > 1.9 * result.history[1].bytes_down


def test_a_run_that_was_stopped_ends_where_the_whole_one_does(tmp_path: Path) -> None:
    def stop(line: Round, rounds: int) -> None:
        if line.round == 3:
            raise Stop

    federation = sample_federation()
    whole = fs.run(Patient(enough=4), federation)
    with pytest.raises(Stop):
        fs.run(Patient(enough=4), federation, on_round=stop, checkpoint=Checkpoint(tmp_path, every=1))
    found = fs.run(Patient(enough=4), federation, checkpoint=Checkpoint(tmp_path, resume=True))
    assert plain(found) == plain(whole)
    assert found.rounds == 4
    ended = Checkpoint(tmp_path, every=1)
    fs.run(Patient(enough=2), federation, checkpoint=ended)
    assert ended.asked_for()[1] == 1  # behind round 1; behind the last round there is a result, and no checkpoint
    assert fs.run(Patient(enough=2), federation, checkpoint=Checkpoint(tmp_path, resume=True)).rounds == 2
