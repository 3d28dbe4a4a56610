"""Where networks compute: a device, chosen for what runs inside `on`, as the number of BLAS threads is.

A device belongs to a machine and not to a method: models, messages and feature spaces know nothing of it, and what was
trained on one loads on any other. It is the CPU unless somebody says otherwise, since bits there are those of any
machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

from fedsolve.errors import ParameterError, unknown

NAMES = ("auto", "cpu", "cuda", "mps")
VARIABLE = "FEDSOLVE_DEVICE"
_CURRENT: ContextVar[str] = ContextVar("device", default="")


def current() -> str:
    """The device of what runs now: that of the innermost `on`, else what FEDSOLVE_DEVICE says, else the CPU.

    >>> with on("cpu") as device:
    ...     current() == device == "cpu"
    True
    """
    return _CURRENT.get() or find()


@contextmanager
def on(device: str) -> Iterator[str]:
    """Inside, networks compute on this device; its own name is told, where `auto` was asked for."""
    found = find(device)
    before = _CURRENT.set(found)
    try:
        yield found
    finally:
        _CURRENT.reset(before)


def find(device: str | None = None) -> str:
    """The device that a name stands for, if it is there: `auto` is the first of cuda, mps and cpu that is.

    >>> find("cpu")
    'cpu'
    """
    name = device or os.environ.get(VARIABLE) or "cpu"
    if name == "cpu":
        return name
    if name not in NAMES:
        raise unknown("device", name, NAMES)
    there = _there()
    if name == "auto":
        return there[0]
    if name not in there:
        raise ParameterError(f"device {name!r} is not there; torch finds {', '.join(there)}: choose one, or auto")
    return name


def chosen(device: str | None, method: str, trains: bool) -> str | None:
    """The device of a run, or None for a method that trains no network, for which none can be asked for."""
    if trains:
        return find(device)
    if device not in (None, "auto", "cpu"):
        if device not in NAMES:
            raise unknown("device", device, NAMES)
        raise ParameterError(f"device {device!r} is for methods that train networks; {method} solves, on the CPU")
    return None


@lru_cache(maxsize=1)
def _there() -> tuple[str, ...]:
    """The devices of this machine, the fastest first."""
    try:
        import torch
    except ModuleNotFoundError as missing:
        raise ParameterError("gradient methods need torch: pip install 'fedsolve[torch]'") from missing
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return (*(name for name, there in found.items() if there), "cpu")
