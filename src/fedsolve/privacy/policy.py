"""What a site decides by itself, whoever asks: its split, the least it answers from, how, and for what.

The server chooses the method and the features, among those that the site allows. If it also chose the split, it could
make a site train on one sample, whose sums are that sample, or compare two splits that differ in one. If it chose how
sums travel, it could ask a site in plain that answers under a secure sum alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsolve.data.large import Large
from fedsolve.data.samples import Samples
from fedsolve.data.table import Table
from fedsolve.data.target import Numbers, Target
from fedsolve.errors import DataError, ParameterError, plain
from fedsolve.features import maps
from fedsolve.privacy.account import LARGEST_EPSILON
from fedsolve.privacy.disclose import Rules, report

MODES = ("plain", "secure", "noisy")
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
    min_persons: int = 1  # with fewer persons it does not answer, where its data name them
    max_parameters: float | None = None  # where sums are seen as they are: the most features for each sample
    max_leverage: float | None = None  # ... and how much alone a sample may stand, at most 1
    allow_methods: tuple[str, ...] = ()  # by name; empty: any
    allow_maps: tuple[str, ...] = ()  # feature maps by name, as in unit, random; empty: any
    allow_columns: tuple[str, ...] = ()  # of its table, beside the target; empty: any
    privacy: str = "plain"  # the least it answers under: plain, secure (a secure sum) or noisy (with an epsilon)
    quorum: int = 3  # the fewest sites in a secure sum
    epsilon_max: float | None = None  # that all answers about the same data may spend

    def __post_init__(self) -> None:
        if isinstance(self.test, str):
            if self.test not in ("official", "global"):
                raise ParameterError(f"TEST must be a share from 0 to 1, official or global; got {self.test!r}")
        elif not 0 <= self.test < 1:
            raise ParameterError(f"TEST must be a share from 0 up to but not including 1; got {self.test!r}")
        for name, low in _LEAST.items():
            if not getattr(self, name) >= low:
                raise ParameterError(f"{name.upper()} must be at least {low}; got {getattr(self, name)!r}")
        for name, high in (("max_parameters", math.inf), ("max_leverage", 1.0), ("epsilon_max", LARGEST_EPSILON)):
            value = getattr(self, name)
            if value is not None and not 0 < value <= high:
                raise ParameterError(f"{name.upper()} must be above 0 and at most {high:g}, or empty; got {value!r}")
        if self.privacy not in MODES:
            raise ParameterError(f"PRIVACY must be {', '.join(MODES[:-1])} or {MODES[-1]}; got {self.privacy!r}")
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

    def words(self) -> str:
        """What the server's operator is told of it: how it answers, and its share of test samples.

        >>> Policy(privacy="secure").words()
        'secure, quorum 3, test 0.2'
        """
        quorum = f", quorum {self.quorum}" if self.privacy == "secure" else ""
        return f"{self.privacy}{quorum}, test {self.test}"

    def admit(
        self, method: str, features: str, *, quorum: int = 0, epsilon: float | None = None, thin: bool = False
    ) -> None:
        """Refuse what is asked for before data are read; no method: a map is fitted, which the site itself names."""
        if thin and self.privacy != "plain":
            raise Refusal(
                f"its privacy is {self.privacy}, and thin replies are rows under a rotation, neither sums of several "
                "sites nor noisy: leave out thin=true"
            )
        self.check_mode(quorum=quorum, epsilon=epsilon)
        if method:
            self.check_job(method, features)

    def checked(self, table: Table) -> Table:
        """The site's table, refused if it has columns that are not given away, or too few persons."""
        self.check_columns(table.feature_names)
        self.check_persons(None if table.person is None else len(np.unique(table.person)))
        return table

    def checked_stream(self, table: Large) -> Large:
        """The same for a table that is streamed."""
        self.check_columns(table.roles.features)
        self.check_persons(table.persons(self.min_persons))
        return table

    def check_samples(self, samples: Samples, target: Target, names: Sequence[str] | None) -> None:
        """Refuse to answer from too few; and with sums that disclose too much, where `names` of their features are."""
        self.check_counts(samples, target)
        if names is not None:
            self.check_disclosure(samples, target, names, ones=True)

    def check_job(self, method: str, features: str) -> None:
        """Refuse a method or a feature map that the site does not list; nothing of either was looked at before."""
        if self.allow_methods and method not in self.allow_methods:
            raise Refusal(
                f"it answers to {_listed(self.allow_methods)}; the server asks for {plain(method, 40)!r}",
                f"ALLOW_METHODS in site.env is {','.join(self.allow_methods)}",
            )
        names = [part.partition(":")[0] for part in maps.parts(features)]
        strange = [name for name in names if name not in (*self.allow_maps, "identity")]
        if self.allow_maps and strange:
            raise Refusal(
                f"it takes the feature maps {_listed(self.allow_maps)}; the server asks for {plain(strange[0], 40)!r}",
                f"ALLOW_MAPS in site.env is {','.join(self.allow_maps)}",
            )

    def check_columns(self, columns: Iterable[str]) -> None:
        """Refuse a table with columns that the site does not list: it is the site's to drop them."""
        strange = [name for name in columns if name not in self.allow_columns]
        if self.allow_columns and strange:
            raise Refusal(
                "its table has columns that it does not give away",
                f"ALLOW_COLUMNS in site.env does not list {_listed(strange[:20])}: leave them out with DROP",
            )

    def check_mode(self, *, quorum: int, epsilon: float | None) -> None:
        """Refuse to answer with less privacy than the site wants: the server has no say in it.

        `quorum` is that of a secure sum, or 0 where sums are asked for as they are; `epsilon` that of the noise which
        sites add, where they do.
        """
        if self.privacy == "secure" and not quorum:
            raise Refusal("it answers under a secure sum alone; the server asks for its sums as they are: use --secure")
        if self.privacy == "noisy" and epsilon is None:
            raise Refusal("it answers with noise alone; the server asks for its sums as they are: use --epsilon")
        if quorum and quorum < self.quorum:
            raise Refusal(
                f"it takes part in secure sums of at least {self.quorum} sites; the server asks for sums of {quorum}"
            )
        if epsilon is not None and self.epsilon_max is not None and not epsilon <= self.epsilon_max:
            raise Refusal(f"it spends epsilon {self.epsilon_max:g} at most; the server asks for {epsilon:g}")

    @property
    def rules(self) -> Rules:
        """What its sums may disclose at most where they are seen as they are."""
        return Rules(self.min_class, self.min_persons, self.max_parameters, self.max_leverage)

    def check_persons(self, persons: int | None) -> None:
        """Refuse to answer from too few persons, where the data name them."""
        if persons is not None and persons < self.min_persons:
            raise Refusal(
                f"its samples are of fewer than {self.min_persons} persons, and it answers from no fewer",
                f"{persons} persons; MIN_PERSONS in site.env is {self.min_persons}",
            )

    def check_disclosure(self, samples: Samples, target: Target, names: Sequence[str], *, ones: bool) -> None:
        """Refuse sums that would disclose more of single records than the site allows; off, unless it says how much."""
        if self.max_parameters is None and self.max_leverage is None:
            return
        broken = report(samples, target, ones=ones, names=names, rules=self.rules).refusals()
        if broken:
            raise Refusal(
                "its sums would disclose single records, and it does not answer in plain",
                f"{'; '.join(broken)}: `fedsolve disclose` says more, MAX_PARAMETERS and MAX_LEVERAGE in site.env what "
                "it allows",
            )

    def check_test(self, asked: object) -> None:
        """Refuse a job that asks for another share of test samples than the site's own."""
        if asked not in (OWN, self.test):
            raise Refusal(
                f"it decides by itself what it tests on, which is {self.test}; the server asks for "
                f"{str(asked)[:40]!r}: leave out --test"
            )

    def told(self, target: Target, labels: NDArray[Any]) -> Target:
        """The target as the site describes it: numbers with rough units, where it has samples enough to tell them."""
        return self.told_fitted(target.fitted([labels]), len(labels))

    def told_fitted(self, fitted: Target, samples: int) -> Target:
        """The same where the target knows its units already, from so many samples."""
        if not isinstance(fitted, Numbers):
            return fitted
        return fitted.rough() if samples >= max(2, self.min_samples) else Numbers(fitted.names)

    def check_counts(self, samples: Samples, target: Target) -> None:
        """Refuse to answer from too few training samples, or with too few of a class: their sums would be records."""
        if not len(samples) >= self.min_samples:
            raise Refusal(
                f"it has fewer than {self.min_samples} training samples, and answers from no fewer",
                f"{len(samples)} training samples; MIN_SAMPLES in site.env is {self.min_samples}",
            )
        if target.kind == "numbers":
            return
        counts = samples.fold(lambda part: np.bincount(part.labels, minlength=target.count), np.add)
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


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(plain(name, 60) for name in names)


_LEAST = {"split_seed": 0, "min_samples": 1, "min_class": 1, "min_cell": 1, "min_persons": 1, "quorum": 2}
_READERS: dict[str, Any] = {
    "test": _share,
    "split_seed": int,
    "min_samples": int,
    "min_class": int,
    "min_cell": int,
    "deadline": float,
    "allow_splits": _flag,
    "min_persons": int,
    "max_parameters": float,
    "max_leverage": float,
    "allow_methods": _names,
    "allow_maps": _names,
    "allow_columns": _names,
    "privacy": str,
    "quorum": int,
    "epsilon_max": float,
}
