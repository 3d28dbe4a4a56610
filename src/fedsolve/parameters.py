"""Hyper-parameters, declared once: domain, meaning, how to read one from text, how to refuse a wrong one.

A method is a frozen dataclass whose fields are made with `number`, `flag`, `choice` or `text`; `check` in its
`__post_init__` then refuses every value outside the declared domain, and `assign` builds it from the
`name=value` texts of the command line.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from fedsolve.errors import ParameterError, brief, unknown

_KEY = "fedsolve.parameter"


@dataclass(frozen=True, slots=True)
class Domain:
    """The values a parameter may take, and what it means."""

    doc: str
    kind: str  # "number", "integer", "flag", "choice" or "text"
    low: float = -math.inf
    high: float = math.inf
    auto: bool = False
    choices: tuple[str, ...] = ()
    reader: Callable[[str], object] | None = None  # of a text: raises what is wrong with it
    imports: Callable[[str], bool] | None = None  # of a text: whether it names a module to be imported

    def describe(self) -> str:
        """The domain in words, as it stands in help texts and errors."""
        if self.kind == "flag":
            return "true or false"
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "text":
            return "a text"
        noun = "an integer" if self.kind == "integer" else "a finite number"
        if math.isfinite(self.low) and math.isfinite(self.high):
            noun += f" from {self.low:g} to {self.high:g}"
        elif math.isfinite(self.low):
            noun += f" of at least {self.low:g}"
        elif math.isfinite(self.high):
            noun += f" of at most {self.high:g}"
        return noun + (" or 'auto'" if self.auto else "")

    def holds(self, value: object) -> bool:
        """Whether `value` lies in the domain. Written so that NaN does not."""
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "choice":
            return value in self.choices
        if self.kind == "text":
            return isinstance(value, str)
        if self.auto and value == "auto":
            return True
        if self.kind == "integer" and not isinstance(value, Integral):
            return False
        if isinstance(value, bool) or not isinstance(value, Real):
            return False
        try:
            real = float(value)
        except OverflowError:  # an integer that no float holds
            return False
        return math.isfinite(real) and self.low <= real <= self.high

    def parse(self, text: str) -> object:
        """The value a text stands for; the text itself where it stands for none (`holds` then refuses it)."""
        text = text.strip()
        if self.kind == "flag":
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
                text.lower(), text
            )
        if self.kind in ("choice", "text") or (self.auto and text == "auto"):
            return text
        try:
            return int(text) if self.kind == "integer" else float(text)
        except ValueError:
            return text


def whole(name: str, value: object, low: int) -> int:
    """The integer that `value` is, NumPy's or Python's; refused by `name` where it is none or lies below `low`.

    >>> whole("clients", 20, 1)
    20
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ParameterError(f"{name} must be an integer of at least {low}; got {brief(value)}")
    return int(value)


def number(
    default: float | str,
    doc: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    auto: bool = False,
    integer: bool = False,
) -> Any:
    """A dataclass field for a number from `low` to `high`, or 'auto' where the method can choose it itself."""
    domain = Domain(doc, "integer" if integer else "number", low=low, high=high, auto=auto)
    return field(default=default, metadata={_KEY: domain})


def flag(default: bool, doc: str) -> Any:
    """A dataclass field that is true or false."""
    return field(default=default, metadata={_KEY: Domain(doc, "flag")})


def choice(default: str, choices: tuple[str, ...], doc: str) -> Any:
    """A dataclass field that is one of a few words."""
    return field(default=default, metadata={_KEY: Domain(doc, "choice", choices=choices)})


def text(
    default: str,
    doc: str,
    reader: Callable[[str], object] | None = None,
    imports: Callable[[str], bool] | None = None,
) -> Any:
    """A dataclass field that is a text; `reader` raises a ParameterError with what is wrong with it, where it can.

    `imports` says whether a text names a module of the user's own: such a text is never believed from a file.
    """
    return field(default=default, metadata={_KEY: Domain(doc, "text", reader=reader, imports=imports)})


def declared(owner: object) -> Iterator[tuple[str, object, Domain]]:
    """Name, default and domain of each declared parameter of a dataclass or of one of its instances."""
    if not dataclasses.is_dataclass(owner):
        raise TypeError(f"a method must be a dataclass; got {owner!r}")
    for item in dataclasses.fields(owner):
        if _KEY in item.metadata:
            yield item.name, item.default, item.metadata[_KEY]


def document(cls: type) -> None:
    """Add the declared parameters to a class's docstring, as numpydoc has them, so that `help` shows their meaning.

    It takes classes before `dataclass` does, whose own fields are still attributes.
    """
    text = vars(cls).get("__doc__")
    fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        fields |= vars(base).get("__dataclass_fields__", {})
    fields |= {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)}
    domains = {name: (item.default, item.metadata[_KEY]) for name, item in fields.items() if _KEY in item.metadata}
    if text is None or not domains:
        return
    lines = [inspect.cleandoc(text), "", "Parameters", "----------"]
    for name, (default, domain) in domains.items():
        lines += [f"{name} : {domain.describe()}, default {default!r}", f"    {domain.doc}"]
    cls.__doc__ = "\n".join(lines) + "\n"


def summary(cls: type) -> str:
    """A class's docstring without the parameters that `document` added.

    >>> class Plain:
    ...     "What it is."
    >>> summary(Plain)
    'What it is.'
    """
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\nParameters\n------")[0]


def check(owner: object) -> None:
    """Refuse an instance with a parameter outside its domain, by name. NumPy's numbers become Python's."""
    for name, _, domain in declared(owner):
        value = getattr(owner, name)
        if not domain.holds(value):
            raise ParameterError(
                f"parameter {name!r} of {type(owner).__name__} must be {domain.describe()}; got {brief(value)}"
            )
        if domain.reader is not None:
            try:
                domain.reader(value)
            except ParameterError as error:
                raise ParameterError(f"parameter {name!r} of {type(owner).__name__}: {error}") from error
        if hasattr(value, "item"):
            object.__setattr__(owner, name, value.item())


def values(owner: object) -> dict[str, Any]:
    """The parameters of an instance by name: enough to build it again."""
    return {name: getattr(owner, name) for name, _, _ in declared(owner)}


def imported(owner: object) -> dict[str, str]:
    """The parameters of an instance that name a module to be imported, by name."""
    domains = {name: domain for name, _, domain in declared(owner)}
    texts = {name: value for name, value in values(owner).items() if isinstance(value, str)}
    return {name: text for name, text in texts.items() if (asks := domains[name].imports) and asks(text)}


def assign(cls: type, texts: Mapping[str, object]) -> dict[str, object]:
    """Keyword arguments for `cls` from `name=value` pairs; texts are parsed, other values taken as they are."""
    domains = {name: domain for name, _, domain in declared(cls)}
    for name in texts:
        if name not in domains:
            raise unknown(f"parameter of {cls.__name__}:", name, domains)
    return {n: domains[n].parse(v) if isinstance(v, str) else v for n, v in texts.items()}
