"""The types of functions that long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]  # what is going on, done, of how many
Tick: TypeAlias = Callable[[int], None]  # how many are done
