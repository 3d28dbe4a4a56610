"""The contract is tested too: every planted defect must be caught, by the check that is meant to catch it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve import parameters
from fedsolve.checks import CheckError, check_method
from fedsolve.families.ridge import linear
from fedsolve.laws import EqualsAmongEquals, StaysAtStart
from fedsolve.methods.afl import AFL


@dataclass(frozen=True)
class Sound(AFL):
    """AFL itself: the planted defects differ from it in one line. (Methods never inherit from methods; defects may.)"""


def test_the_sound_method_passes() -> None:
    check_method(Sound())


class WritesState(Sound):
    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        replies["count"][...] = 0
        return super().aggregate(state, {**replies, "count": np.array(5)}, server)


class SetsStateInPlace(Sound):
    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        state["seen"] = np.array(1)
        return super().aggregate(state, replies, server)


SMUGGLED: dict[str, Any] = {}


class SmugglesThroughAGlobal(Sound):
    """The client reads what the server left in memory: impossible over a network."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        SMUGGLED["calls"] = SMUGGLED.get("calls", 0) + 1
        private, reply = super().update(private, message, site)
        return private, {**reply, "cross": reply["cross"] * SMUGGLED["calls"]}


@dataclass(frozen=True)
class KeepsStateOnItself(Sound):
    memory: dict[str, Any] = field(default_factory=dict, compare=False)

    def update(self, private: Any, message: Any, site: Any) -> Any:
        self.memory["calls"] = self.memory.get("calls", 0) + 1
        private, reply = super().update(private, message, site)
        return private, {**reply, "cross": reply["cross"] * self.memory["calls"]}


class GlobalRandomness(Sound):
    def update(self, private: Any, message: Any, site: Any) -> Any:
        private, reply = super().update(private, message, site)
        return private, {**reply, "cross": reply["cross"] + 1e-9 * np.random.rand()}  # noqa: NPY002


class SendsSamples(Sound):
    def plan(self, state: Any, clients: Any) -> Any:
        return fs.Plan(tuple(clients), "collect")

    def update(self, private: Any, message: Any, site: Any) -> Any:
        return {}, {**linear.moments(site).arrays(), "labels": site.train.labels}

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        names = {name.partition("/")[0] for name in replies}
        total = {part: sum(replies[f"{n}/{part}"] for n in names) for part in ("triangle", "cross", "count")}
        return super().aggregate(state, {name: np.asarray(array) for name, array in total.items()}, server)


class HalfPrecision(Sound):
    def update(self, private: Any, message: Any, site: Any) -> Any:
        private, reply = super().update(private, message, site)
        return private, {**reply, "triangle": reply["triangle"].astype(np.float32).astype(np.float64)}


class NormalisesDataInPlace(Sound):
    def update(self, private: Any, message: Any, site: Any) -> Any:
        inputs = site.train.inputs
        inputs /= 2.0
        return super().update(private, message, site)


class AcceptsNaN(Sound):
    def update(self, private: Any, message: Any, site: Any) -> Any:
        clean = fs.Samples(np.nan_to_num(site.train.inputs), site.train.labels)
        return super().update(private, message, replace(site, train=clean))


class WritesToTheMessage(Sound):
    def personalize(self, private: Any, message: Any, site: Any) -> Any:
        message["weight"][...] *= 1.0
        return fs.Personal(message)


class ReturnsAScalar(Sound):
    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        return {**super().aggregate(state, replies, server), "rcond": replies["count"] + np.array(1)}


class RidgeOfConfiguredClients(Sound):
    """Clients add a ridge each, and the server takes off what six of them would have added, whoever answered."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        own = linear.moments(site)
        return {}, fs.Moments.from_gram(own.gram + np.eye(own.features), own.cross, own.count).arrays()

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        total = fs.Moments.from_arrays(replies)
        without = fs.Moments.from_gram(total.gram - 6 * np.eye(total.features), total.cross, total.count)
        return super().aggregate(state, without.arrays(), server)


class RemembersWhoWasAsked(Sound):
    """Divides by the number of clients that were asked: wrong as soon as a reply is lost."""

    def plan(self, state: Any, clients: Any) -> Any:
        SMUGGLED["asked"] = len(clients)
        return fs.Plan(tuple(clients))

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        return super().aggregate(state, {**replies, "cross": replies["cross"] / SMUGGLED["asked"]}, server)


class GuessesOnly(Sound):
    def predict(self, model: Any, inputs: Any, task: Any) -> Any:
        return np.zeros((len(inputs), model["weight"].shape[1]))


class RidgePerClient(Sound):
    """Every client adds the ridge, so that it grows with the number of clients."""

    def update(self, private: Any, message: Any, site: Any) -> Any:
        own = linear.moments(site)
        return {}, fs.Moments.from_gram(own.gram + np.eye(own.features), own.cross, own.count).arrays()


class ScoresAsProbabilities(Sound):
    """Scores of least squares need not sum to one."""

    def probabilities(self, model: Any, scores: Any) -> Any:
        return scores


class FigureThatIsAnArray(Sound):
    def figures(self, state: Any) -> Any:
        return {"weight": state["weight"]}


class UnfairBaseline(Sound):
    @property
    def alone(self) -> Any:
        return {"alpha": 20.0}


class AloneAndYetSending(Sound):
    @property
    def alone(self) -> Any:
        return None


class Grouped(Sound):
    """Nothing is wrong with it: two groups, by the last character of a name, with the model of all."""

    def grouping(self, state: Any, clients: Any) -> Any:
        groups = self.every_group(state, clients)
        return {name: group for name, group in groups.items() if group.members}

    def every_group(self, state: Any, clients: Any) -> dict[str, fs.Group]:
        parts = {str(rest): tuple(name for name in clients if ord(name[-1]) % 2 == rest) for rest in (0, 1)}
        return {name: fs.Group(members, self.shared(state) or {}, np.ones(2)) for name, members in parts.items()}


def test_a_sound_method_with_groups_passes() -> None:
    check_method(Grouped())


class InTwoGroups(Grouped):
    def grouping(self, state: Any, clients: Any) -> Any:
        groups = super().grouping(state, clients)
        return {name: group._replace(members=(*group.members, clients[0])) for name, group in groups.items()}


class GroupsStrangers(Grouped):
    def grouping(self, state: Any, clients: Any) -> Any:
        return {"0": fs.Group(("site-0", "nobody"), self.shared(state) or {})}


class GroupsThoseWhoLeft(Grouped):
    """Tells of all it ever saw, whoever is asked about."""

    def grouping(self, state: Any, clients: Any) -> Any:
        return super().grouping(state, [f"site-{number}" for number in range(6)])


class GroupOfNobody(Grouped):
    def grouping(self, state: Any, clients: Any) -> Any:
        return {**super().grouping(state, clients), "2": fs.Group((), self.shared(state) or {})}


class GroupsThatAllLeft(Grouped):
    """Also tells of groups of which nobody is asked about."""

    def grouping(self, state: Any, clients: Any) -> Any:
        return self.every_group(state, clients)


class GroupsByOrder(Grouped):
    """The first half of whoever is asked about."""

    def grouping(self, state: Any, clients: Any) -> Any:
        model, half = self.shared(state), (len(clients) + 1) // 2
        parts = {"0": tuple(clients[:half]), "1": tuple(clients[half:])}
        return {name: fs.Group(members, model or {}) for name, members in parts.items() if members}


class GroupModelThatCannotPredict(Grouped):
    def grouping(self, state: Any, clients: Any) -> Any:
        groups = super().grouping(state, clients)
        spoilt = {name: array[..., :-1] for name, array in (self.shared(state) or {}).items() if array.ndim}
        return {name: group._replace(model=spoilt) for name, group in groups.items()}


class CentreThatIsATable(Grouped):
    def grouping(self, state: Any, clients: Any) -> Any:
        groups = super().grouping(state, clients)
        return {name: group._replace(centre=np.ones((2, 2))) for name, group in groups.items()}


class GroupOutsideItsFolder(Grouped):
    def grouping(self, state: Any, clients: Any) -> Any:
        return {f"../{name}": group for name, group in super().grouping(state, clients).items()}


class SortsTheState(Grouped):
    def grouping(self, state: Any, clients: Any) -> Any:
        state["weight"].sort()
        return super().grouping(state, clients)


@dataclass(frozen=True)
class UncheckedParameter(Sound):
    mu: float = parameters.number(0.1, "a number that nobody checks", low=0)

    def __post_init__(self) -> None:
        pass


@dataclass
class NotFrozen:
    """Nothing of a method but the name."""

    name = "not-frozen"
    laws: tuple[Any, ...] = ()
    rounds: int = 1


class ClaimsToStay(Sound):
    laws = (StaysAtStart(ridge=5.0),)


class ClaimsToBeAnother(Sound):
    laws = (EqualsAmongEquals("afl", ridge=1.0),)

    def aggregate(self, state: Any, replies: Any, server: Any) -> Any:
        return super().aggregate(state, {**replies, "cross": 1.01 * replies["cross"]}, server)


class DoneAsAnArray(Sound):
    def done(self, state: Any) -> Any:
        return state["count"] > 0


class DoneWhenAskedAgain(Sound):
    """Who asks a second time, after a restart, is told otherwise."""

    def done(self, state: Any) -> Any:
        SMUGGLED["asked"] = SMUGGLED.get("asked", 0) + 1
        return SMUGGLED["asked"] % 2 == 0


class ClaimsAnUnknownLaw(Sound):
    laws = ("perfect",)  # type: ignore[assignment]


DEFECTS: list[tuple[type, str]] = [
    (WritesState, "writes_to_nothing"),
    (SetsStateInPlace, "writes_to_nothing"),
    (SmugglesThroughAGlobal, "same_seed_same_bits"),
    (KeepsStateOnItself, "no_hidden_state"),
    (GlobalRandomness, "global generator"),
    (SendsSamples, "replies_say_nothing_of_size"),
    (HalfPrecision, "law split-invariant"),
    (NormalisesDataInPlace, "writes_to_nothing"),
    (AcceptsNaN, "bad_data_is_refused"),
    (WritesToTheMessage, "writes_to_nothing"),
    (ReturnsAScalar, "survives_bytes"),
    (RidgeOfConfiguredClients, "law split-invariant"),
    (RemembersWhoWasAsked, "lost_replies_are_not_there"),
    (GuessesOnly, "better_than_guessing"),
    (RidgePerClient, "law split-invariant"),
    (ScoresAsProbabilities, "figures_and_probabilities_are_numbers"),
    (FigureThatIsAnArray, "figures_and_probabilities_are_numbers"),
    (UnfairBaseline, "training_alone_is_a_fair_baseline"),
    (AloneAndYetSending, "training_alone_is_a_fair_baseline"),
    (InTwoGroups, "groups_are_of_the_clients"),
    (GroupsStrangers, "groups_are_of_the_clients"),
    (GroupsThoseWhoLeft, "groups_are_of_the_clients: asked about"),
    (GroupOfNobody, "groups_are_of_the_clients"),
    (GroupsThatAllLeft, "groups_are_of_the_clients: a group has no member"),
    (GroupsByOrder, "depends on who is asked about"),
    (GroupModelThatCannotPredict, "does not give one finite score per class"),
    (CentreThatIsATable, "is not one row of finite numbers"),
    (GroupOutsideItsFolder, "a group must have a name that a client could have"),
    (SortsTheState, "writes_to_nothing"),
    (DoneAsAnArray, "the_state_says_when_it_is_done"),
    (DoneWhenAskedAgain, "the_state_says_when_it_is_done"),
    (UncheckedParameter, "parameters_are_checked"),
    (NotFrozen, "frozen_value"),
    (ClaimsToStay, "law stays at its start at ridge=5.0"),
    (ClaimsToBeAnother, "law equals afl among clients of equal size at ridge=1.0"),
    (ClaimsAnUnknownLaw, "'perfect'"),
]


@pytest.mark.parametrize(("defect", "caught_by"), DEFECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_planted_defects_are_caught(defect: type, caught_by: str) -> None:
    with pytest.raises(CheckError) as error:
        check_method(defect())
    assert caught_by in str(error.value)
