from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsolve as fs
from fedsolve import methods, parameters
from fedsolve.errors import ParameterError, UnknownNameError
from fedsolve.parameters import Domain


@dataclass(frozen=True)
class Knobs:
    alpha: float | str = parameters.number("auto", "a weight", low=0, auto=True)
    ridge: float = parameters.number(1.0, "a ridge", low=0.5, high=2.0)
    steps: int = parameters.number(3, "how many", low=1, integer=True)
    centred: bool = parameters.flag(False, "whether")
    loss: str = parameters.choice("square", ("square", "logistic"), "which")
    free: object = None  # not declared, so not checked

    def __post_init__(self) -> None:
        parameters.check(self)


NUMBERS = st.one_of(st.integers(-10, 10), st.floats(allow_nan=True, allow_infinity=True))


@given(NUMBERS, st.floats(-5, 5), st.floats(0, 5))
def test_a_number_lies_in_its_domain_just_when_it_is_finite_and_between(value: Any, low: float, span: float) -> None:
    domain = Domain("", "number", low=low, high=low + span)
    assert domain.holds(value) == (math.isfinite(value) and low <= value <= low + span)
    assert Domain("", "integer", low=low, high=low + span).holds(value) == (
        isinstance(value, int) and low <= value <= low + span
    )


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_from_its_text(value: float) -> None:
    assert Domain("", "number").parse(repr(value)) == value
    assert Domain("", "number").parse(f"  {value!r} ") == value


@given(st.integers())
def test_an_integer_is_read_from_its_text(value: int) -> None:
    found = Domain("", "integer").parse(str(value))
    assert found == value
    assert isinstance(found, int)


@given(st.text(max_size=6), st.sampled_from(["number", "integer", "flag", "choice"]), st.booleans())
def test_a_text_that_stands_for_nothing_is_refused_and_never_crashes(text: str, kind: str, auto: bool) -> None:
    domain = Domain("", kind, auto=auto, choices=("a", "b"))
    found = domain.parse(text)
    if isinstance(found, str):
        wanted = (kind == "choice" and found in ("a", "b")) or (
            auto and kind in ("number", "integer") and found == "auto"
        )
        assert domain.holds(found) == wanted


@pytest.mark.parametrize("value", [True, False, math.nan, math.inf, -math.inf, "1", None, [1.0], 1j])
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_no_number_is(kind: str, value: object) -> None:
    assert not Domain("", kind).holds(value)
    assert not Domain("", kind, auto=True).holds(value)


def test_auto_counts_only_where_it_is_allowed() -> None:
    assert Domain("", "number", auto=True).holds("auto")
    assert not Domain("", "number").holds("auto")
    assert Domain("", "number").parse("auto") == "auto"


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("Yes", True), ("1", True), ("FALSE", False), ("no", False), ("0", False), ("maybe", "maybe")],
)
def test_flags_are_read_from_words(text: str, value: object) -> None:
    assert Domain("", "flag").parse(text) is value or value == "maybe"
    assert Domain("", "flag").holds(Domain("", "flag").parse(text)) == isinstance(value, bool)


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_flag_is_true_or_false_and_nothing_else(value: object) -> None:
    assert not Domain("", "flag").holds(value)


@pytest.mark.parametrize(
    ("domain", "text"),
    [
        (Domain("", "flag"), "true or false"),
        (Domain("", "choice", choices=("a", "b")), "one of a, b"),
        (Domain("", "number"), "a finite number"),
        (Domain("", "number", low=0), "a finite number of at least 0"),
        (Domain("", "number", high=2.5), "a finite number of at most 2.5"),
        (Domain("", "integer", low=1, high=9), "an integer from 1 to 9"),
        (Domain("", "number", low=0, auto=True), "a finite number of at least 0 or 'auto'"),
    ],
)
def test_domains_describe_themselves(domain: Domain, text: str) -> None:
    assert domain.describe() == text


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("alpha", -1.0, "a finite number of at least 0 or 'auto'; got -1.0"),
        ("alpha", math.nan, "got nan"),
        ("alpha", math.inf, "got inf"),
        ("alpha", True, "got True"),
        ("alpha", "automatic", "got 'automatic'"),
        ("ridge", 0.4, "a finite number from 0.5 to 2; got 0.4"),
        ("ridge", 2.1, "got 2.1"),
        ("ridge", "auto", "got 'auto'"),
        ("steps", 0, "an integer of at least 1; got 0"),
        ("steps", 2.0, "got 2.0"),
        ("centred", 1, "true or false; got 1"),
        ("loss", "hinge", "one of square, logistic; got 'hinge'"),
        ("loss", None, "got None"),
    ],
)
def test_check_names_the_parameter_and_the_class(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(ParameterError) as error:
        Knobs(**{name: value})
    assert str(error.value).startswith(f"parameter {name!r} of Knobs must be ")
    assert wanted in str(error.value)


@pytest.mark.parametrize("value", [[1], {"a": 1}, {1}])
def test_values_that_cannot_be_compared_are_refused_too(value: Any) -> None:
    for name in ("alpha", "ridge", "steps", "centred", "loss"):
        with pytest.raises(ParameterError, match=f"parameter '{name}' of Knobs"):
            Knobs(**{name: value})


def test_bounds_belong_to_the_domain() -> None:
    assert Knobs(alpha=0, ridge=0.5, steps=1) == Knobs(alpha=0.0, ridge=0.5, steps=1)
    assert Knobs(ridge=2.0).ridge == 2.0


def test_declared_gives_name_default_and_domain_in_order_and_skips_other_fields() -> None:
    found = list(parameters.declared(Knobs))
    assert [(name, default) for name, default, _ in found] == [
        ("alpha", "auto"), ("ridge", 1.0), ("steps", 3), ("centred", False), ("loss", "square"),
    ]  # fmt: skip
    assert [domain.doc for _, _, domain in found] == ["a weight", "a ridge", "how many", "whether", "which"]
    with pytest.raises(TypeError, match="must be a dataclass"):
        list(parameters.declared(object()))


@given(
    st.floats(0, 1e300), st.floats(0.5, 2.0), st.integers(1, 99), st.booleans(), st.sampled_from(["square", "logistic"])
)
def test_values_build_the_same_instance_again(alpha: float, ridge: float, steps: int, centred: bool, loss: str) -> None:
    made = Knobs(alpha, ridge, steps, centred, loss)
    assert Knobs(**parameters.values(made)) == made
    texts = {name: str(value) for name, value in parameters.values(made).items()}
    assert Knobs(**parameters.assign(Knobs, texts)) == made  # type: ignore[arg-type]


def test_assign_parses_texts_and_takes_other_values_as_they_are() -> None:
    texts = {"alpha": "auto", "ridge": "1e0", "steps": " 7", "centred": "yes", "loss": "logistic"}
    found = parameters.assign(Knobs, texts)
    assert found == {"alpha": "auto", "ridge": 1.0, "steps": 7, "centred": True, "loss": "logistic"}
    assert isinstance(found["steps"], int)
    assert parameters.assign(Knobs, {"steps": 2.5}) == {"steps": 2.5}  # refused by check, with its name


@pytest.mark.parametrize(
    ("name", "hint"), [("alhpa", "'alpha'"), ("step", "'steps'"), ("zzz", "known: alpha, centred")]
)
def test_assign_refuses_unknown_names_with_near_matches(name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        parameters.assign(Knobs, {name: "1"})
    assert "Knobs" in str(error.value)
    assert repr(name) in str(error.value)
    assert hint in str(error.value)


def test_assign_does_not_set_fields_that_are_not_parameters() -> None:
    with pytest.raises(UnknownNameError, match="'free'"):
        parameters.assign(Knobs, {"free": "1"})


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "abc", "", "true", "1,5"])
def test_every_number_of_every_method_refuses_nonsense_by_name(text: str) -> None:
    for name in methods.CATALOGUE:
        cls = methods.method_class(name)
        for parameter, _, domain in parameters.declared(cls):
            if domain.kind in ("number", "integer"):
                with pytest.raises(ParameterError, match=f"parameter '{parameter}' of {cls.__name__}"):
                    fs.create(name, {parameter: text})


def test_the_defaults_of_every_method_lie_in_their_domains() -> None:
    for name in methods.CATALOGUE:
        for parameter, default, domain in parameters.declared(methods.method_class(name)):
            assert domain.holds(default), (name, parameter)
            assert domain.doc


def test_an_unknown_method_is_named_with_near_matches() -> None:
    with pytest.raises(UnknownNameError, match="unknown method 'fedhipp'; did you mean 'fedhip'"):
        fs.create("fedhipp")


def test_numbers_of_numpy_become_those_of_python() -> None:
    twenty, half, two = (cast(Any, number) for number in (np.int64(20), np.float32(0.5), np.int64(2)))
    method = fs.FedHiP(alpha=twenty, beta=half, intercept=False)
    assert (type(method.alpha), type(method.beta)) == (int, float)
    assert method == fs.FedHiP(alpha=20, beta=0.5, intercept=False)
    assert fs.classes(two) == fs.classes(2)


def test_texts_are_read_when_they_are_set() -> None:
    def even(text: str) -> None:
        if len(text) % 2:
            raise ParameterError("its length is odd")

    @dataclass(frozen=True)
    class Spelled:
        words: str = parameters.text("abba", "an even text", even)

        def __post_init__(self) -> None:
            parameters.check(self)

    assert Spelled("ab").words == "ab"
    assert parameters.assign(Spelled, {"words": "42"}) == {"words": "42"}
    with pytest.raises(ParameterError, match="parameter 'words' of Spelled: its length is odd"):
        Spelled("abc")
    with pytest.raises(ParameterError, match="'words' of Spelled must be a text; got 3"):
        Spelled(3)  # type: ignore[arg-type]
