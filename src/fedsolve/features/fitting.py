"""Feature maps that a federation fits to its own training samples, from sums over clients: the same for every split.

A specification may hold maps that are still to be fitted, `standardise` and `patches:...` anywhere among others, and
`columns` before them, for tables. They are fitted from left to right, each to what the maps before it give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedsolve.arrays import Array, Arrays, accumulate
from fedsolve.errors import DataError, ParameterError
from fedsolve.features import clusters, columns, columnsums, maps, patches, standard
from fedsolve.features.cache import extract
from fedsolve.features.cells import Cells
from fedsolve.features.maps import FeatureMap
from fedsolve.features.patches import Recipe
from fedsolve.progress import Progress
from fedsolve.threads import cores


def unfitted(text: str) -> bool:
    """Whether a specification holds a map that is still to be fitted.

    >>> [unfitted(text) for text in ("standardise+random:512", "patches:6x6x320", "columns", "standardise:0.0/1.0")]
    [True, True, True, False]
    """
    return any(maps.to_fit(part) for part in maps.parts(text))


def numbered(text: str) -> bool:
    """Whether a specification holds numbers that were fitted: whoever chooses them chooses what features single out.

    >>> numbered("standardise:0.0/1.0+random:8"), numbered("unit")
    (True, False)
    """
    return any(part.partition(":")[0] in (standard.NAME, patches.NAME, columns.NAME) for part in maps.parts(text))


def fits(text: str, fitted: str) -> bool:
    """Whether `fitted` is a specification with its maps fitted.

    >>> fits("standardise+random:8", "standardise:0.0/1.0+random:8"), fits("standardise", "unit")
    (True, False)
    """
    wanted, found = maps.parts(text), maps.parts(fitted)
    return len(wanted) == len(found) and all(map(_fits, wanted, found))


def _fits(part: str, fitted: str) -> bool:
    recipe, (name, _, argument) = patches.unfitted(part), fitted.partition(":")
    if columns.unfitted(part) is not None:
        return name == columns.NAME and not maps.to_fit(fitted)
    if recipe is not None:
        return name == patches.NAME and not maps.to_fit(fitted) and patches.Patches.read(argument).recipe == recipe
    return part == fitted or (part == standard.NAME == name and bool(argument))


def check(text: str) -> None:
    """Refuse a specification whose parts nobody can read, before data are; networks are opened."""
    for part in maps.parts(text):
        if not maps.to_fit(part):
            maps.parse(part)


def fit(text: str, clients: Iterable[Array | Cells], progress: Progress | None = None) -> FeatureMap:
    """The map of a specification, with what is to be fitted in it fitted to the inputs of all clients.

    Clients may be gone through several times. What holds texts or empty cells is for `columns`, which stands first.

    >>> import numpy as np
    >>> fit("standardise+random:8", [np.array([[1.0], [3.0]]), np.array([[5.0]])]).maps[1]
    RandomProjection(size=8, activation='relu', seed=0)
    """
    names, ready, inputs = maps.parts(text), list[str](), clients
    cell = columns.unfitted(names[0])
    if cell is not None:
        ready, names = [str(columnsums.fit(clients, cell))], names[1:]
    if ready and any(map(maps.to_fit, names)):
        inputs = [extract(maps.parse(ready[0]), each, progress) for each in clients]
    for place, part in enumerate(names):
        recipe = patches.unfitted(part)
        if columns.unfitted(part) is not None:
            raise ParameterError(f"{columns.NAME} takes a table as it is, so it stands first; got {text[:80]!r}")
        if recipe is not None:
            part = str(_fit_patches(recipe, _arrays(inputs), progress))
        elif part == standard.NAME:
            part = str(standard.fit(_arrays(inputs)))
        ready.append(part)
        if any(map(maps.to_fit, names[place + 1 :])):
            inputs = [extract(maps.parse(part), each, progress) for each in inputs]
    return maps.parse("+".join(ready))


@dataclass(frozen=True)
class Taken:
    """Clients' rows of one table, each taken when it is its turn, so that they are not all in memory twice."""

    inputs: Array | Cells
    rows: Sequence[NDArray[np.int64]]

    def __iter__(self) -> Iterator[Array | Cells]:
        return (self.inputs[rows] for rows in self.rows)


def _arrays(clients: Iterable[Array | Cells]) -> list[Array]:
    return [np.asarray(part) for part in clients if len(part)]


def _fit_patches(recipe: Recipe, clients: Sequence[Array], progress: Progress | None) -> patches.Patches:
    """The rounds of a recipe over inputs that are all within reach, clients side by side."""
    if not clients:
        raise DataError(f"{patches.NAME} needs training pictures, and there are none")
    state: Arrays = {}
    with ThreadPoolExecutor(cores()) as pool:
        for number in range(1, recipe.rounds + 1):
            total = None
            told = pool.map(partial(clusters.sums, recipe, state), clients)
            for done, reply in enumerate(told, start=1):
                total = accumulate(total, reply)
                if progress:
                    progress(f"{patches.NAME}, round {number} of {recipe.rounds}", done, len(clients))
            state = clusters.advance(recipe, state, total or {})
    return clusters.fitted(recipe, state)
