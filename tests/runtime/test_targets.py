"""A run begins only where the method learns the kind of target that the task has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import fedsolve as fs
from fedsolve.checks import sample_federation
from fedsolve.errors import ParameterError
from fedsolve.methods import CATALOGUE, classes
from fedsolve.runtime.drive import drive
from fedsolve.runtime.inprocess import InProcess


@dataclass(frozen=True)
class Numbers(fs.AFL):
    name: ClassVar[str] = "numbers-only"
    targets: ClassVar[tuple[str, ...]] = ("numbers",)


@dataclass(frozen=True)
class Both(fs.AFL):
    name: ClassVar[str] = "both"
    targets: ClassVar[tuple[str, ...]] = ("numbers", "classes")


class Silent(InProcess):
    def ask(self, requests: Iterable[tuple[str, Any]], inbox: Any, tick: Any) -> None:
        pytest.fail("a client was asked")


def test_a_method_for_other_targets_is_refused_by_name_before_any_client_is_asked() -> None:
    federation = sample_federation()
    with pytest.raises(ParameterError, match="'numbers-only' learns numbers; the target of this task is classes"):
        fs.run(Numbers(), federation)
    with pytest.raises(ParameterError, match="choose a method whose targets include 'classes'"):
        drive(Numbers(), federation.task, Silent(Numbers(), federation))


def test_a_method_for_several_targets_runs_on_each_of_them() -> None:
    federation = sample_federation()
    assert fs.run(Both(), federation).accuracy == fs.run(fs.AFL(ridge=0.0, intercept=False), federation).accuracy


@pytest.mark.parametrize("cls", [cls for name in CATALOGUE for cls in classes(name)], ids=lambda cls: cls.__name__)
def test_every_method_of_the_catalogue_learns_classes_but_for_the_linear_mixed_model(cls: type[fs.Method]) -> None:
    assert ("classes" in cls.targets) == (cls is not fs.Mixed)
