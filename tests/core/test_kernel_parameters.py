"""Laws of parameters at the edges: no bounds at all, choices that look like numbers, the kinds that others read."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsolve import parameters
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
