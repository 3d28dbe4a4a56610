"""Which sites were in which sums: two exact sums over nearly the same sites disclose what stands between them.

Statistics of the same data are the same in every run, so the sum over ten sites less the sum over nine of them is the
tenth's. Sites keep the rosters of the sums that they helped to unmask, by what was summed, and help with no sum that
would single somebody out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from fedsolve.errors import DataError, brief
from fedsolve.texts import read_json

_ALONE = 1 - 1e-9  # of a site's direction lies among those of the sums: it follows from them


def check_difference(earlier: Iterable[Collection[str]], counted: Collection[str], quorum: int) -> None:
    """Refuse a sum over `counted` that differs from an earlier one by fewer sites than a quorum, unless by none.

    Neither may any site's part follow from all of the sums together, as that of q does from abc, def and abcdefq.

    >>> check_difference([["a", "b", "c"]], ["a", "b", "c"], 3)
    >>> check_difference([["a", "b", "c", "d"]], ["a", "b", "c"], 3)
    Traceback (most recent call last):
    fedsolve.errors.DataError: the sum would differ from an earlier one over the same data by 1 site (d), and ...
    """
    rosters = {frozenset(roster) for roster in (*earlier, counted)}
    for roster in rosters - {frozenset(counted)}:
        apart = sorted(roster ^ frozenset(counted))
        if len(apart) < quorum:
            raise DataError(
                f"the sum would differ from an earlier one over the same data by {len(apart)} "
                f"site{'s' * (len(apart) != 1)} ({', '.join(apart)}), and the difference would disclose what they "
                f"sent; it must be none, or at least {quorum}: run again with the sites of the earlier one"
            )
    names = sorted(frozenset().union(*rosters))
    single = _singled_out([[name in roster for name in names] for roster in sorted(rosters, key=sorted)])
    if single:
        raise DataError(
            f"the part of {names[single[0]]!r} would follow from this sum and earlier ones over the same data; run "
            "again with the sites of an earlier one"
        )


def _singled_out(rosters: Sequence[Sequence[bool]]) -> list[int]:
    """The sites whose part is a combination of the sums: their unit vector lies in the span of the rosters."""
    matrix = np.array(rosters, dtype=np.float64)
    _, values, directions = np.linalg.svd(matrix, full_matrices=False)
    basis = directions[values > 1e-9 * values[0]]
    return np.flatnonzero((basis**2).sum(axis=0) > _ALONE).tolist()


@dataclass(frozen=True, slots=True)
class Journal:
    """Rosters of earlier sums, by what was summed: a digest of the data, and what was made of it."""

    sums: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=lambda: MappingProxyType({}))

    def check(self, data: str, counted: Collection[str], quorum: int) -> None:
        """Refuse a sum of these data that would single somebody out; see `check_difference`."""
        check_difference(self.sums.get(data, ()), counted, quorum)

    def noted(self, data: str, counted: Collection[str]) -> Journal:
        """The journal with one sum more.

        >>> Journal().noted("d", ["b", "a"]).sums["d"]
        (('a', 'b'),)
        """
        known, roster = self.sums.get(data, ()), tuple(sorted(counted))
        return self if roster in known else Journal(MappingProxyType({**self.sums, data: (*known, roster)}))

    def to_text(self) -> str:
        """The journal as a text, which `from_text` reads."""
        return json.dumps({data: list(map(list, rosters)) for data, rosters in self.sums.items()})

    @classmethod
    def from_text(cls, text: str | bytes) -> Journal:
        """The inverse of `to_text`, for texts that anybody may have written."""
        content = read_json(text, "the journal of sums")
        if not isinstance(content, dict):
            raise DataError(f"the journal of sums must be rosters by name; got {brief(content)}")
        for rosters in content.values():
            lists = rosters if isinstance(rosters, list) else [None]
            if not all(isinstance(roster, list) and all(isinstance(n, str) for n in roster) for roster in lists):
                raise DataError(f"the journal of sums must hold lists of names; got {brief(rosters)}")
        return cls(MappingProxyType({data: tuple(map(tuple, rosters)) for data, rosters in content.items()}))
