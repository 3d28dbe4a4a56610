"""Lists in the settings of a comparison are a grid: every value with every other.

Values may hold commas themselves (`mlp:128,64`, `random:512,relu`). So a text with commas is a list only where the
whole of it is no value; a list with semicolons is one in any case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from fedsolve import methods, parameters
from fedsolve.data import partition
from fedsolve.errors import FedsolveError, ParameterError
from fedsolve.features import fitting
from fedsolve.method import Method
from fedsolve.study.experiment import class_of
from fedsolve.study.settings import AUTO, Settings


def values(text: str, is_value: Callable[[str], bool]) -> list[str]:
    """The values in a text, each once.

    >>> values("1,5,20", str.isdigit), values("mlp:128,64", lambda text: text.startswith("mlp:"))
    (['1', '5', '20'], ['mlp:128,64'])
    >>> values("random:8,relu; unit", lambda text: False)
    ['random:8,relu', 'unit']
    """
    parts = text.split(";") if ";" in text else [text] if is_value(text) else text.split(",")
    found = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise ParameterError(f"a list of values has at least one; got {text!r}")
    return found


def bases(base: Settings, clients: str | None, splits: str | None, features: str | None) -> list[Settings]:
    """The settings of data, split and features that a comparison is made on: all combinations.

    >>> [(each.clients, each.partition) for each in bases(Settings(), "5,10", "iid,shards:2", None)]
    [(5, 'iid'), (5, 'shards:2'), (10, 'iid'), (10, 'shards:2')]
    """
    counts = [None] if clients is None else [_whole(text) for text in values(clients, str.isdigit)]
    ways = [base.partition] if splits is None else values(splits, _is_partition)
    maps = [base.features] if features is None else values(features, _is_map)
    return [
        replace(base, clients=base.clients if count is None else count, partition=way, features=each)
        for count, way, each in itertools.product(counts, ways, maps)
    ]


def _whole(text: str) -> int:
    if not text.isdigit():
        raise ParameterError(f"clients are whole numbers separated by commas; got {text!r}")
    return int(text)


def _is_partition(text: str) -> bool:
    return text == AUTO or _passes(lambda: partition.parse(text))


def _is_map(text: str) -> bool:
    return _passes(lambda: fitting.check(text))


def _passes(look: Callable[[], object]) -> bool:
    try:
        look()
    except FedsolveError:
        return False
    return True


def grid(assignments: Mapping[str, str], names: Sequence[str]) -> Iterator[dict[str, str]]:
    """All combinations of the values of parameters, each as for one comparison; `names` are the methods compared.

    >>> list(grid({"fedhip.alpha": "1,5", "rounds": "3"}, ["fedhip"]))
    [{'fedhip.alpha': '1', 'rounds': '3'}, {'fedhip.alpha': '5', 'rounds': '3'}]
    """
    lists = {key: values(text, _accepted(key, names)) for key, text in assignments.items()}
    for chosen in itertools.product(*lists.values()):
        yield dict(zip(lists, chosen, strict=True))


def _accepted(key: str, names: Sequence[str]) -> Callable[[str], bool]:
    """Whether a text as a whole is a value of a parameter, of some method that has it."""
    whose, _, name = key.rpartition(".")
    known = [each for each in ([whose] if whose else [*names, "local"]) if ":" in each or each in methods.CATALOGUE]
    kinds: list[type[Method]] = [kind for each in known for kind in _classes(each)]
    takers = [kind for kind in kinds if name in {each for each, _, _ in parameters.declared(kind)}]

    def is_value(text: str) -> bool:
        return any(_passes(partial(_made, kind, name, text)) for kind in takers)

    return is_value if takers else lambda text: True  # refused later, with those that there are


def _made(kind: type[Method], name: str, text: str) -> Method:
    return kind(**parameters.assign(kind, {name: text}))


def _classes(name: str) -> list[type[Method]]:
    return list(methods.classes(name)) if name in methods.CATALOGUE else [class_of(name)]
