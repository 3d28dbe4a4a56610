"""What a site decides by itself, whoever asks: its split, the least it answers from, and how long an answer may take.

The server chooses the method and the features. If it also chose the split, it could make a site train on one sample,
whose sums are that sample, or compare two splits that differ in one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.data.task import Target
from fedsolve.errors import DataError, ParameterError

OWN = "own"  # as the share of test samples in a job: each site's own


class Refusal(DataError):
    """Why a site does not answer: a sentence for the server, and what more only the site itself may read."""

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details


@dataclass(frozen=True)
class Policy:
    """The rules of one site.

    >>> Policy.of({"test": "0.25", "min_class": ""}).test
    0.25
    """

    test: float | str = 0.2  # the share of its data that it tests on, or "official" or "global"
    split_seed: int = 0  # decides which samples these are
    min_samples: int = 5  # with fewer training samples it does not answer
    min_class: int = 5  # nor with fewer of a class that it has
    min_cell: int = 3  # a level of a column that fewer training samples have is not named to anybody
    deadline: float = 1800.0  # seconds that an answer may take
    allow_splits: bool = False  # whether it answers under a second split of data it has answered for

    def __post_init__(self) -> None:
        if isinstance(self.test, str):
            if self.test not in ("official", "global"):
                raise ParameterError(f"TEST must be a share from 0 to 1, official or global; got {self.test!r}")
        elif not 0 <= self.test < 1:
            raise ParameterError(f"TEST must be a share from 0 up to but not including 1; got {self.test!r}")
        for name, low in (("split_seed", 0), ("min_samples", 1), ("min_class", 1), ("min_cell", 1)):
            if not getattr(self, name) >= low:
                raise ParameterError(f"{name.upper()} must be at least {low}; got {getattr(self, name)!r}")
        if not 0 < self.deadline < math.inf:
            raise ParameterError(f"DEADLINE must be a number of seconds above 0; got {self.deadline!r}")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Policy:
        """From texts under the names of the fields; what is missing or empty is as by default."""
        values = {name: str(config[name]).strip() for name in _READERS if str(config.get(name, "")).strip()}
        try:
            return cls(**{name: _READERS[name](text) for name, text in values.items()})
        except ParameterError:
            raise
        except ValueError as error:
            settings = ", ".join(f"{name.upper()}={text}" for name, text in values.items())
            raise ParameterError(f"the site's settings {settings} cannot be read: {error}") from error

    def check_test(self, asked: object) -> None:
        """Refuse a job that asks for another share of test samples than the site's own."""
        if asked not in (OWN, self.test):
            raise Refusal(
                f"it decides by itself what it tests on, which is {self.test}; the server asks for "
                f"{str(asked)[:40]!r}: leave out --test"
            )

    def check_counts(self, labels: NDArray[Any], target: Target) -> None:
        """Refuse to answer from too few training samples, or with too few of a class: their sums would be records."""
        if not len(labels) >= self.min_samples:
            raise Refusal(
                f"it has fewer than {self.min_samples} training samples, and answers from no fewer",
                f"{len(labels)} training samples; MIN_SAMPLES in site.env is {self.min_samples}",
            )
        if target.kind == "numbers":
            return
        counts = np.bincount(labels, minlength=target.count)
        small = np.flatnonzero((counts > 0) & (counts < self.min_class))
        if len(small):
            names = ", ".join(f"{target.names[c] if target.names else c} ({counts[c]})" for c in small[:20])
            raise Refusal(
                f"it has a class with fewer than {self.min_class} training samples, and answers for no smaller one",
                f"classes with few training samples: {names}; MIN_CLASS in site.env is {self.min_class}: leave out "
                "their rows or merge the classes",
            )


def _share(text: str) -> float | str:
    return text if text in ("official", "global") else float(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise ValueError(f"wanted yes or no; got {text!r}")
    return text.lower() == "yes"


_READERS: dict[str, Any] = {
    "test": _share,
    "split_seed": int,
    "min_samples": int,
    "min_class": int,
    "min_cell": int,
    "deadline": float,
    "allow_splits": _flag,
}
