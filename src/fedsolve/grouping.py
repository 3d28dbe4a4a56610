"""The groups of a run as its result has them: members and centre of each, and its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsolve.arrays import Arrays
from fedsolve.data.task import Task
from fedsolve.errors import DataError
from fedsolve.method import Group, Method
from fedsolve.model import Model
from fedsolve.resultfile import check_groups

LARGEST_CENTRES = 50_000  # numbers of all centres together that result.json shows


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Who is in a group, and what members are grouped by, on average; no centre where it would be a large file."""

    members: tuple[str, ...]
    centre: tuple[float, ...] = ()

    def json(self) -> dict[str, Any]:
        """As it stands in result.json."""
        return {"members": list(self.members), **({"centre": list(self.centre)} if self.centre else {})}

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> GroupResult:
        """The inverse of `json`."""
        return cls(tuple(entry["members"]), tuple(entry.get("centre", ())))


def groups_of(
    method: Method, task: Task, state: Arrays, clients: tuple[str, ...]
) -> tuple[dict[str, GroupResult], dict[str, Model]]:
    """The groups that a method says these clients are in, checked as a reader would, and the model of each."""
    told = method.grouping(state, clients)
    centres = sum(np.size(group.centre) for group in told.values() if group.centre is not None)
    groups = {name: GroupResult(tuple(g.members), _centre(g, centres <= LARGEST_CENTRES)) for name, g in told.items()}
    try:
        check_groups({name: group.json() for name, group in groups.items()}, clients)
    except DataError as error:
        raise DataError(f"what `grouping` of method {method.name!r} returns cannot be used: {error}") from error
    return groups, {name: Model(method, task, group.model, f"group {name}") for name, group in told.items()}


def _centre(group: Group, shown: bool) -> tuple[float, ...]:
    return () if group.centre is None or not shown else tuple(np.ravel(group.centre).tolist())
