"""What can go wrong, each as one sentence: the thing, what was wanted, what was got, the way out."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable

# Controls of a terminal (C0, C1), breaks of lines, what turns the direction of a text, and halves of characters.
CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_BREAKS = re.compile(r"[\t-\r\x85\u2028\u2029]+")
_CONTROL = re.compile(f"[{CONTROLS}]")
_LONGEST = 500  # characters of a stranger's text that are shown


class FedsolveError(Exception):
    """Anything a user can mend. The text is a whole sentence; the command line prints it and exits with 2."""


class ParameterError(FedsolveError, ValueError):
    """A parameter has a value outside its domain."""


class DataError(FedsolveError, ValueError):
    """Data, a message or a file does not have the shape, type or values it must have."""


class StorageError(FedsolveError, OSError):
    """The machine cannot do it now: a full disk, a file that may not be written, a device that fails, a held lock."""


class SingularError(FedsolveError, ArithmeticError):
    """A linear system has no unique solution."""


class UnknownNameError(FedsolveError, LookupError):
    """A name that is not in the list it is looked up in."""


class PrecisionWarning(UserWarning):
    """Digits of the data were lost in the sums, so that a solution may be wrong. The text names the features."""


class LevelWarning(UserWarning):
    """Rows that are predicted have levels, or empty cells, that training had not. The text names the columns."""


class TrackingWarning(UserWarning):
    """A tracker failed during a run, which went on without it. The text says which, and why."""


def unknown(kind: str, name: str, options: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among `options`, with the near matches or, without any, all of them."""
    names = sorted(options)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names)}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")


def plain(text: str, longest: int = _LONGEST) -> str:
    r"""A stranger's text as it may be shown: one line, nothing that a terminal obeys, and not endless.

    >>> plain("no disk\nleft \x1b[31mhere")
    'no disk left [31mhere'
    """
    shown = text[: longest + 1]
    if not shown.isprintable():
        shown = _CONTROL.sub("", _BREAKS.sub(" ", shown))
    return shown if len(text) <= longest else shown[: longest - 3] + "..."


class _Brief(reprlib.Repr):
    """Representations that stay short, however long or deep a value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxlong, self.maxother = 3, 200, 60, 200

    def repr_int(self, value: int, level: int) -> str:
        """Python writes no integers of thousands of digits, and says so by an error."""
        return super().repr_int(value, level) if value.bit_length() < 4096 else "an integer of thousands of digits"


def brief(value: object) -> str:
    """A value as errors show it: its representation, short however long or deep it is.

    >>> brief([[[[[[1]]]]]]), len(brief("a" * 10**6))
    ('[[[...]]]', 200)
    """
    return _Brief().repr(value)
