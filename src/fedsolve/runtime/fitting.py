"""The rounds in which sites fit a feature map, as a method: it adds up what clients tell, and trains no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, Float, take, under
from fedsolve.data.samples import Samples
from fedsolve.data.task import Task
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import clusters, columns, columnsums, maps, patches, vocabulary
from fedsolve.features.cells import Cells
from fedsolve.features.patches import Recipe
from fedsolve.laws import Law
from fedsolve.method import Fold, Method, Personal, Plan, Purpose, Server, Site

NAME = "fit"


class Stages(Protocol):
    """How one kind of map is fitted in rounds."""

    @property
    def fold(self) -> Fold:
        """How what clients tell is folded."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds it takes."""
        ...

    def check(self, inputs: tuple[int, ...]) -> None:
        """Refuse inputs of a shape that the map does not take."""
        ...

    def message(self, state: Arrays) -> Arrays:
        """What clients are told of what is fitted so far."""
        ...

    def told(self, message: Arrays, train: Samples) -> Arrays:
        """What a client tells in this round."""
        ...

    def look(self, reply: Arrays, width: int) -> None:
        """Refuse what no client with inputs of so many columns tells."""
        ...

    def advance(self, state: Arrays, replies: Arrays) -> Arrays:
        """What the replies of this round give."""
        ...

    def fitted(self, state: Arrays, names: Sequence[str]) -> str:
        """The map in words, once all rounds are over; `names` are those of the inputs' columns."""
        ...


@dataclass(frozen=True)
class _Patches:
    """Filters from the federation's own patches: sums in every round."""

    recipe: Recipe
    fold: Fold = "sum"

    @property
    def rounds(self) -> int:
        return self.recipe.rounds

    def check(self, inputs: tuple[int, ...]) -> None:
        self.recipe.channels(inputs)

    def message(self, state: Arrays) -> Arrays:
        return state

    def told(self, message: Arrays, train: Samples) -> Arrays:
        return clusters.sums(self.recipe, message, train.inputs)

    def look(self, reply: Arrays, width: int) -> None:
        """Sums of another layout than those of most are left out where they are added."""

    def advance(self, state: Arrays, replies: Arrays) -> Arrays:
        return clusters.advance(self.recipe, state, replies)

    def fitted(self, state: Arrays, names: Sequence[str]) -> str:
        return str(clusters.fitted(self.recipe, state))


@dataclass(frozen=True)
class _Columns:
    """Means, levels and holes of a table's columns, then deviations. Levels are not added like numbers."""

    cell: int  # rows of all sites together below which a level has no column of its own
    told_from: int  # rows of a site from which on it names a level
    fold: Fold = "collect"
    rounds: int = columnsums.ROUNDS

    def check(self, inputs: tuple[int, ...]) -> None:
        if len(inputs) != 1:
            raise DataError(f"{columns.NAME} takes tables; these inputs have the shape {inputs}")

    def message(self, state: Arrays) -> Arrays:
        return {"origin": state["origin"]} if "origin" in state else {}

    def told(self, message: Arrays, train: Samples) -> Arrays:
        found = _sums(message, train)[0]
        return columnsums.merged(found, self.told_from) if "origin" not in message else found

    def look(self, reply: Arrays, width: int) -> None:
        columnsums.check(reply, width)

    def advance(self, state: Arrays, replies: Arrays) -> Arrays:
        clients = sorted({name.partition("/")[0] for name in replies})
        total = reduce(columnsums.added, (take(client, replies) for client in clients))
        if "squares" in total:
            return {**state, **total}
        return {**under("total", total), "origin": columnsums.means(total)}

    def fitted(self, state: Arrays, names: Sequence[str]) -> str:
        width = len(state["origin"])
        known = names or [str(place + 1) for place in range(width)]
        return str(columnsums.fitted(known, take("total", state), {"squares": state["squares"]}, self.cell))


@dataclass(frozen=True)
class _Told:
    """The same from sums alone, with the levels that clients named beforehand."""

    cell: int
    words: str
    fold: Fold = "sum"
    rounds: int = columnsums.ROUNDS

    @property
    def vocabulary(self) -> vocabulary.Words:
        return vocabulary.words(self.words)

    def check(self, inputs: tuple[int, ...]) -> None:
        _Columns(self.cell, 1).check(inputs)

    def message(self, state: Arrays) -> Arrays:
        return _Columns(self.cell, 1).message(state)

    def told(self, message: Arrays, train: Samples) -> Arrays:
        found, names = _sums(message, train)
        if "origin" not in message:
            return vocabulary.counted_in(found, names, self.vocabulary)
        return vocabulary.squared_in(found)

    def look(self, reply: Arrays, width: int) -> None:
        """Nobody sees a reply; their sum is looked at."""

    def advance(self, state: Arrays, replies: Arrays) -> Arrays:
        if "squares" in replies:
            return {**state, "squares": replies["squares"][:, None]}
        total = vocabulary.total(self.vocabulary, replies)
        return {**under("total", total), "origin": columnsums.means(total)}

    def fitted(self, state: Arrays, names: Sequence[str]) -> str:
        return _Columns(self.cell, 1).fitted(state, names)


def _cells(samples: Samples) -> Cells:
    inputs: Any = samples.inputs
    return inputs if isinstance(inputs, Cells) else Cells.numbered(inputs)


def _sums(message: Arrays, train: Samples) -> tuple[Arrays, tuple[str, ...]]:
    """What a client's columns sum up to in this round, without rounding, and their names."""

    def tell(part: Samples) -> tuple[Arrays, tuple[str, ...]]:
        cells = _cells(part)
        told = columnsums.squared(cells, _origin(message, cells)) if "origin" in message else columnsums.counted(cells)
        return told, cells.names

    return train.fold(tell, lambda left, right: (columnsums.added(left[0], right[0]), left[1]))


def _origin(message: Arrays, cells: Cells) -> Float:
    """The means that were sent, which must be those of the columns."""
    origin = message["origin"]
    if origin.shape != (len(cells.names),) or origin.dtype != np.float64 or not np.isfinite(origin).all():
        raise DataError(f"{columns.NAME}: the means that were sent are not those of {len(cells.names)} columns")
    return origin


def _stages(text: str, told_from: int = 1, words: str = "") -> Stages:
    """How the map that a specification begins with is fitted; refuses what sites cannot fit."""
    first, *rest = maps.parts(text)
    recipe, cell = patches.unfitted(first), columns.unfitted(first)
    if (recipe is None and cell is None) or any(map(maps.to_fit, rest)):
        raise ParameterError(
            f"sites fit one map in a run, patches:... or columns, and it stands first; got {text[:80]!r}: give others "
            "fitted, as the features of a model of such a run are written"
        )
    if recipe is not None:
        return _Patches(recipe)
    return _Told(cast(int, cell), words) if words else _Columns(cast(int, cell), told_from)


@dataclass(frozen=True)
class Fitting(Method):
    """Sums over the clients' training samples, as many rounds as the map takes."""

    name: ClassVar[str] = NAME
    paper: ClassVar[str] = "see fedsolve.features.clusters and fedsolve.features.columnsums"
    sends: ClassVar[str] = "sums over patches of its pictures and the features they give; or sums and levels of columns"
    laws: ClassVar[tuple[Law, ...]] = ()
    targets: ClassVar[tuple[str, ...]] = ("classes", "numbers")

    features: str = parameters.text("patches", "the map to be fitted, first of those that follow it", _stages)
    told_from: int = parameters.number(1, "rows from which on a client names a level", low=1, integer=True)
    words: str = parameters.text("", "levels of a table's columns that clients named beforehand, for secure sums")

    def __post_init__(self) -> None:
        parameters.check(self)

    @property
    def stages(self) -> Stages:
        """How its map is fitted."""
        return _stages(self.features, self.told_from, self.words)

    @property
    def needs_words(self) -> bool:
        """Whether levels must be named before what clients tell can be added up."""
        return isinstance(self.stages, _Columns)

    def with_words(self, told: Mapping[str, str], task: Task) -> Fitting:
        """The same with the levels that clients named."""
        names = task.feature_names or [str(place + 1) for place in range(task.inputs[0])]
        return replace(self, words=vocabulary.joined(told, names))

    def named(self, samples: Samples) -> str:
        """What a client names beforehand of its columns."""
        found, names = _sums({}, samples)
        return vocabulary.named_in(columnsums.merged(found, self.told_from), names)

    @property
    def rounds(self) -> int:
        """As many as the map takes."""
        return self.stages.rounds

    def check(self, inputs: tuple[int, ...]) -> None:
        """Refuse inputs of a shape that the map does not take."""
        self.stages.check(inputs)

    def look(self, reply: Arrays, task: Task) -> None:
        """Refuse what no client tells in any round."""
        self.stages.look(reply, task.inputs[0])

    def fitted(self, state: Arrays, task: Task) -> str:
        """The specification with the fitted map in it, once all rounds are over."""
        _, *rest = maps.parts(self.features)
        return "+".join([self.stages.fitted(state, task.feature_names), *rest])

    def init_server(self, server: Server) -> Arrays:
        """Nothing is fitted yet. Inputs that the map does not take are refused here."""
        self.check(server.task.inputs)
        return {}

    def plan(self, state: Arrays, clients: Sequence[str]) -> Plan:
        """All of them, folded as the map takes it."""
        return Plan(tuple(clients), self.stages.fold)

    def message(self, state: Arrays, client: str, purpose: Purpose) -> Arrays:
        """What is fitted so far."""
        return self.stages.message(state)

    def aggregate(self, state: Arrays, replies: Arrays, server: Server) -> Arrays:
        """What the replies of this round give."""
        return self.stages.advance(state, replies)

    def update(self, private: Arrays, message: Arrays, site: Site) -> tuple[Arrays, Arrays]:
        """What is told in this round."""
        return {}, self.stages.told(message, site.train)

    def personalize(self, private: Arrays, message: Arrays, site: Site) -> Personal:
        """Nothing: there is no model."""
        return Personal({})

    def predict(self, model: Arrays, inputs: Array, task: Task) -> Array:
        """No answer before another."""
        return np.zeros((len(inputs), task.outputs))
