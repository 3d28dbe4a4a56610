"""Laws of parameters at the edges: no bounds at all, choices that look like numbers, the kinds that others read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsolve import parameters
from fedsolve.errors import ParameterError
from fedsolve.parameters import Domain


@dataclass(frozen=True)
class Free:
    share: float = parameters.number(0.0, "any number")
    steps: int = parameters.number(0, "any integer", integer=True)
    own: bool = parameters.flag(True, "whether")
    level: str = parameters.choice("1", ("1", "02"), "which")
    words: str = parameters.text("", "any text")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_without_bounds_every_finite_number_is_in_the_domain(value: float) -> None:
    assert Domain("", "number").holds(value)
    assert all(domain.holds(value) for name, _, domain in parameters.declared(Free) if name == "share")


@given(st.integers(-(2**63), 2**63))
def test_without_bounds_every_integer_is_in_the_domain(value: int) -> None:
    assert Domain("", "integer").holds(value)
    assert all(domain.holds(value) for name, _, domain in parameters.declared(Free) if name == "steps")


@pytest.mark.parametrize("text", ["1", "02", " 02 "])
def test_words_that_look_like_numbers_stay_words(text: str) -> None:
    assert parameters.assign(Free, {"level": text, "words": text}) == {"level": text.strip(), "words": text.strip()}


def test_the_kinds_are_those_that_are_declared() -> None:
    assert [domain.kind for _, _, domain in parameters.declared(Free)] == [
        "number", "integer", "flag", "choice", "text",
    ]  # fmt: skip
    assert {key for field in fields(Free) for key in field.metadata} == {"fedsolve.parameter"}


@pytest.mark.parametrize("value", [3, 4, np.int64(3)])
def test_whole_numbers_become_pythons(value: Any) -> None:
    number = parameters.whole("clients", value, 3)
    assert (number, type(number)) == (int(value), int)


@pytest.mark.parametrize("value", [True, 3.0, "3", None, 2, np.int64(-1), np.float64(4)])
def test_what_is_no_whole_number_or_too_small_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"clients must be an integer of at least 3; got "):
        parameters.whole("clients", value, 3)


def test_a_docstring_lists_the_parameters_of_the_class_and_of_what_it_is_made_of() -> None:
    @dataclass(frozen=True)
    class Base:
        depth: int = parameters.number(2, "layers of it", low=1, integer=True)

    class Own(Base):
        """What it is.

        And more.
        """

        share: float = parameters.number(0.5, "how much of it", low=0, high=1)
        other = 7

    class Silent(Base):
        pass

    class Plain:
        """Without parameters."""

    for cls in (Own, Silent, Plain):
        parameters.document(cls)
    assert (Own.__doc__ or "").splitlines() == [
        "What it is.",
        "",
        "And more.",
        "",
        "Parameters",
        "----------",
        "depth : an integer of at least 1, default 2",
        "    layers of it",
        "share : a finite number from 0 to 1, default 0.5",
        "    how much of it",
    ]
    assert (Own.__doc__ or "").endswith("\n")
    assert vars(Silent).get("__doc__") is None
    assert Plain.__doc__ == "Without parameters."


def test_a_summary_is_the_docstring_without_the_parameters_that_were_added() -> None:
    class Method:
        """What it does.

        And how.
        """

        share: float = parameters.number(0.5, "a share")

    class Bare:
        pass

    parameters.document(Method)
    assert "share : a finite number, default 0.5" in (Method.__doc__ or "")
    assert parameters.summary(Method) == "What it does.\n\nAnd how."
    assert parameters.summary(Bare) == ""
