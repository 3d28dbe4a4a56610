"""The papers' results tables and figures as experiments, one file per paper, with the papers' values beside ours.

Each recipe has two scales: `paper`, the settings of the paper, for those who have its data, weights and time; and
`here`, what two cores can do in a quarter of an hour: other backbones, fewer rounds, fewer samples, one seed. What
differs is in the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedsolve.errors import unknown
from fedsolve.reproduce import afl, apfl, fedacnnl, fedapa, fedhip
from fedsolve.reproduce.recipe import FIGURES, SCALES, Builder, Cell, FilledTable, Recipe, Scale
from fedsolve.reproduce.run import distinct, drawable, lacking, reproduce

__all__ = [
    "ALL",
    "FIGURES",
    "RECIPES",
    "SCALES",
    "Cell",
    "FilledTable",
    "Recipe",
    "Scale",
    "chosen",
    "create",
    "distinct",
    "drawable",
    "lacking",
    "reproduce",
    "summaries",
]

ALL = "all"  # stands for every recipe
RECIPES: Mapping[str, Builder] = {
    **afl.RECIPES,
    **fedhip.RECIPES,
    **apfl.RECIPES,
    **fedapa.RECIPES,
    **fedacnnl.RECIPES,
}


def create(name: str, scale: str = "here") -> Recipe:
    """The recipe of a name at a scale.

    >>> create("afl-3").title
    'AFL, table 3: taking the ridge out again (RI)'
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return RECIPES[name](name, "paper" if scale == "paper" else "here")


def chosen(name: str, scale: str = "here") -> list[Recipe]:
    """The recipe of a name, or every one for "all".

    >>> [recipe.name for recipe in chosen("fedhip-2")]
    ['fedhip-2']
    """
    return [create(each, scale) for each in (RECIPES if name == ALL else (name,))]


def summaries() -> Iterator[tuple[str, str]]:
    """The name and the title of every recipe.

    >>> next(summaries())
    ('afl-1', 'AFL, table 1: accuracy on the official test set, 100 clients')
    """
    for name in RECIPES:
        yield name, create(name).title
