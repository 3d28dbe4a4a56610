"""What can go wrong, each as one sentence: the thing, what was wanted, what was got, the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


class PrecisionWarning(UserWarning):
    """Digits of the data were lost in the sums, so that a solution may be wrong. The text names the features."""


def unknown(kind: str, name: str, options: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among `options`, with the near matches or, without any, all of them."""
    names = sorted(options)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names)}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")
