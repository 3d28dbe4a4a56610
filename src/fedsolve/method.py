"""The Method protocol: a frozen dataclass of hyper-parameters with pure functions, in two halves.

The server half never sees data; the client half never sees server state. What one knows of the other is what was sent.
State goes in and comes out; nothing that was given is written to. Everything else that a function may need, the task,
the round, a generator, the client's samples, is in the context it is given: a `Server` or a `Site`.

Where most methods do the same, the protocol has a body that a method may inherit; methods never inherit from methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, softmax
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import ParameterError
from fedsolve.laws import Law
from fedsolve.summary import Summary

Fold: TypeAlias = Literal["sum", "collect"] | Mapping[str, str]
Purpose: TypeAlias = Literal["update", "personalize"]
Workers: TypeAlias = Literal["threads", "processes"]
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Plan:
    """Who takes part in a round, and how their replies are folded into what `aggregate` is given.

    - `fold="sum"`: one mapping, the sum over clients. One copy on the server whatever the number of clients.
    - `fold="collect"`: every reply, under its client's name ("client-03/weight").
    - `fold` a mapping from client to group: a sum for each group, under the group's name.

    Arrays whose names begin with a prefix in `each` are not added up but stay per client, whatever the fold: with
    `each=("head",)`, "head/weight" of client-03 is found under "client-03/head/weight".
    """

    clients: tuple[str, ...]
    fold: Fold = "sum"
    each: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server half computes: the task, the round (0 before the first), and a generator for this call."""

    task: Task
    round: int
    rng: np.random.Generator


class Once(Protocol):
    """How what follows from a message alone is computed: `once(function, message)` is `function(message)`."""

    def __call__(self, function: Callable[[Arrays], _Made], message: Arrays, /) -> _Made:
        """What the function makes of the message; of the same function and message it may be what was made before."""
        ...


def each_time(function: Callable[[Arrays], _Made], message: Arrays, /) -> _Made:
    """What the function makes of the message, computed here and now."""
    return function(message)


@dataclass(frozen=True, slots=True)
class Site:
    """Where the client half computes: the task, the client's training samples, and what the loop knows of it."""

    task: Task
    train: Samples = field(repr=False)
    round: int
    rng: np.random.Generator  # of this call alone
    counted: bool = False  # whether the server has the reply to the client's last update
    pace: float = 1.0  # how many times as much to take on at a time as at first; 1 unless the method is `paced`
    once: Once = each_time  # clients that live in one process and are sent the same share what follows from it


class Personal(NamedTuple):
    """A client's model, the hyper-parameters that were chosen for this client, by name, and what it is unsure of."""

    model: Arrays
    chosen: Mapping[str, float] = MappingProxyType({})
    unsure: tuple[int, ...] = ()  # features whose digits were lost in the client's solve; see Solution.unsure


class Rows(NamedTuple):
    """The rows of features whose moments a client sends: the length that none exceeds, not counting a constant one."""

    longest: float
    ones: bool = False  # whether behind them there is a feature that is always one


class Group(NamedTuple):
    """Clients that a method keeps together: who they are, the model they have in common, and what they have alike."""

    members: tuple[str, ...]
    model: Arrays  # `predict` takes it, whoever of the members has the inputs
    centre: Array | None = None  # what members are grouped by, on average: one row of numbers


@runtime_checkable
class Method(Protocol):
    """What the round loop asks of a method."""

    name: ClassVar[str]  # in the catalogue and on the command line
    paper: ClassVar[str]  # where it is from
    sends: ClassVar[str]  # what a client sends, in words
    laws: ClassVar[tuple[Law, ...]]  # what it promises; see fedsolve.laws
    targets: ClassVar[tuple[str, ...]] = ("classes",)  # the kinds of targets it can learn
    closed_form: ClassVar[bool] = True  # solved, not descended: fast enough to train clients alone beside it
    workers: ClassVar[Workers] = "threads"  # how clients run side by side; torch has one generator per process
    on_device: ClassVar[bool] = False  # whether it trains networks, on the device that `accelerator` names

    def __init_subclass__(cls, **settings: Any) -> None:
        """Every method's docstring lists its parameters, whoever declares them."""
        super().__init_subclass__(**settings)
        parameters.document(cls)

    @property
    def rounds(self) -> int:
        """How many times clients are asked to update, at most: a method that is `done` is not asked again."""
        return 1

    @property
    def paced(self) -> bool:
        """Whether slow clients are told how slow they are, in `Site.pace`."""
        return False

    @property
    def pacing(self) -> str:
        """By which rule they are: "damped" or "printed", FedACnnL's own; see `fedsolve.runtime.pace`."""
        return "damped"

    @property
    def alone(self) -> Mapping[str, object] | None:
        """The settings of `local` that differ from this method in nothing but being alone; None: it is alone itself."""
        return {}

    # --- server half ---
    def init_server(self, server: Server) -> Arrays:
        """The server's state before the first round: empty, unless a method says otherwise."""
        return {}

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """Who of the present `clients` takes part in this round, and how replies fold: all of them, summed."""
        return Plan(tuple(clients))

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """What the server sends to a client, before an update or for personalisation."""
        ...

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """The next state, from the folded replies of those that answered."""
        ...

    def done(self, state: Arrays) -> bool:
        """Whether another round would change nothing, so that the run ends before all `rounds` were run."""
        return False

    def figures(self, state: Arrays) -> Mapping[str, float]:
        """Numbers of the server's state that a reader wants to see; one called "loss" is shown with every round."""
        return {}

    def grouping(self, state: Arrays, clients: Sequence[str]) -> Mapping[str, Group]:
        """The groups that these clients are in, by name: each client in one at most, and no group without a client."""
        return {}

    def warnings(self, state: Arrays, task: Task) -> tuple[str, ...]:
        """What a user should know before trusting the state, one sentence each: features whose digits were lost."""
        return ()

    def inference(self, state: Arrays, task: Task) -> Summary | None:
        """Coefficients with their errors, of the server's state or of a model; None where there are none to show."""
        return None

    def rows(self, message: Arrays, task: Task) -> Rows:
        """What bounds the rows behind a reply, for noise of a stated epsilon; refused where nothing does."""
        raise ParameterError(
            f"noise of a stated epsilon is for methods whose clients send moments of bounded rows, once: afl, fedhip, "
            f"fedprior and apfl; {self.name} sends {self.sends}: choose another method"
        )

    # --- client half ---
    def init_client(self, site: Site) -> Arrays:
        """The client's private state before its first round. It never leaves the client."""
        return {}

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """One round of work: the new private state, and the reply."""
        ...

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """The client's model, and what was chosen for it."""
        ...

    def shared(self, message: Arrays) -> Arrays | None:
        """The one global model that a message for personalisation carries, where the method has one."""
        return None

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """Scores, one row per sample and one column per class; the largest wins."""
        ...

    def probabilities(self, model: Arrays, scores: Array) -> Array:
        """The probability of each class, from scores: their softmax, unless a method knows better."""
        return softmax(scores)
