"""Networks and methods of a user's own, written package.module:name.

The module is one that Python finds, or one in the current folder. Methods are named so on the command line alone, never
by a file: somebody else may have written it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedsolve.errors import ParameterError


def attribute(spec: str, whose: str) -> object:
    """What a text of the form package.module:name stands for; `whose` begins the sentence that says it cannot be had.

    >>> attribute("math:pi", "parameter 'model'")
    3.141592653589793
    """
    name, _, member = spec.partition(":")
    try:
        with current_folder():
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # a module that theirs imports
            raise _unimportable(spec, name, whose, error) from error
        raise ParameterError(
            f"{whose}: cannot find {spec!r}: there is no module {error.name!r}, neither installed nor in the "
            f"current folder; run fedsolve in the folder where it lies, or add that folder to PYTHONPATH"
        ) from error
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise _unimportable(spec, name, whose, error) from error
    if not hasattr(module, member):
        where = getattr(module, "__file__", None) or name
        raise ParameterError(f"{whose}: cannot find {spec!r}: {where} has no {member!r}")
    return getattr(module, member)


def _unimportable(spec: str, name: str, whose: str, error: Exception) -> ParameterError:
    return ParameterError(f"{whose}: cannot import {name!r} for {spec!r} ({type(error).__name__}: {error})")


@contextmanager
def current_folder() -> Iterator[None]:
    """Look for modules in the current folder first, as `python -m` does and an installed command does not."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        if "" in sys.path:  # the module may have changed the path itself
            sys.path.remove("")
