"""Feature maps that a federation fits to its own training samples, from sums over clients: the same for every split.

A specification may hold maps that are still to be fitted, `standardise` and `patches:...`, anywhere among others. They
are fitted from left to right, each to what the maps before it give.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from fedsolve.arrays import Array, Arrays, accumulate
from fedsolve.errors import DataError
from fedsolve.features import clusters, maps, patches, standard
from fedsolve.features.cache import extract
from fedsolve.features.maps import FeatureMap
from fedsolve.features.patches import Recipe
from fedsolve.progress import Progress
from fedsolve.threads import cores


def unfitted(text: str) -> bool:
    """Whether a specification holds a map that is still to be fitted.

    >>> [unfitted(text) for text in ("standardise+random:512", "patches:6x6x320", "standardise:0.0/1.0", "unit")]
    [True, True, False, False]
    """
    return any(_to_fit(part) for part in maps.parts(text))


def numbered(text: str) -> bool:
    """Whether a specification holds numbers that were fitted: whoever chooses them chooses what features single out.

    >>> numbered("standardise:0.0/1.0+random:8"), numbered("unit")
    (True, False)
    """
    return any(part.partition(":")[0] in (standard.NAME, patches.NAME) for part in maps.parts(text))


def fits(text: str, fitted: str) -> bool:
    """Whether `fitted` is a specification with its maps fitted.

    >>> fits("standardise+random:8", "standardise:0.0/1.0+random:8"), fits("standardise", "unit")
    (True, False)
    """
    wanted, found = maps.parts(text), maps.parts(fitted)
    return len(wanted) == len(found) and all(map(_fits, wanted, found))


def _fits(part: str, fitted: str) -> bool:
    recipe, (name, _, argument) = patches.unfitted(part), fitted.partition(":")
    if recipe is not None:
        return name == patches.NAME and not _to_fit(fitted) and patches.Patches.read(argument).recipe == recipe
    return part == fitted or (part == standard.NAME == name and bool(argument))


def check(text: str) -> None:
    """Refuse a specification whose parts nobody can read, before data are; networks are opened."""
    for part in maps.parts(text):
        if not _to_fit(part):
            maps.parse(part)


def fit(text: str, clients: Iterable[Array], progress: Progress | None = None) -> FeatureMap:
    """The map of a specification, with what is to be fitted in it fitted to the inputs of all clients.

    >>> import numpy as np
    >>> fit("standardise+random:8", [np.array([[1.0], [3.0]]), np.array([[5.0]])]).maps[1]
    RandomProjection(size=8, activation='relu', seed=0)
    """
    inputs, ready = [part for part in clients if len(part)], list[str]()
    names = maps.parts(text)
    for place, part in enumerate(names):
        recipe = patches.unfitted(part)
        if recipe is not None:
            part = str(_fit_patches(recipe, inputs, progress))
        elif part == standard.NAME:
            part = str(standard.fit(inputs))
        ready.append(part)
        if any(map(_to_fit, names[place + 1 :])):
            inputs = [extract(maps.parse(part), each, progress) for each in inputs]
    return maps.parse("+".join(ready))


def _to_fit(part: str) -> bool:
    return part == standard.NAME or patches.unfitted(part) is not None


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
