"""What can go wrong, each as one sentence: the thing, what was wanted, what was got, the way out."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

LONGEST = 500  # characters that are shown of a text of somebody else's


class FedsolveError(Exception):
    """Anything a user can mend. The text is a whole sentence; the command line prints it and exits with 2."""


class ParameterError(FedsolveError, ValueError):
    """A parameter has a value outside its domain."""


class DataError(FedsolveError, ValueError):
    """Data, a message or a file does not have the shape, type or values it must have."""


class SingularError(FedsolveError, ArithmeticError):
    """A linear system has no unique solution."""


class UnknownNameError(FedsolveError, LookupError):
    """A name that is not in the list it is looked up in."""


def unknown(kind: str, name: str, options: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among `options`, with the near matches or, without any, all of them."""
    names = sorted(options)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names)}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")


def plain(text: str) -> str:
    """A text of somebody else's as one line to show: no control characters, so no escapes of a terminal, and not long.

    >>> plain("no room" + chr(27) + "[2J on disk")
    'no room[2J on disk'
    """
    kept = (" " if character.isspace() else character for character in text[:LONGEST])
    return "".join(character for character in kept if unicodedata.category(character)[0] != "C")
