"""What a site has spent of its privacy, by the data it was spent on: releases about the same records add up."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsolve import disk
from fedsolve.errors import DataError, ParameterError
from fedsolve.privacy.account import LARGEST_EPSILON, composed, epsilon_of, mu_of
from fedsolve.texts import read_json

FORMAT = 1


@dataclass(frozen=True)
class Budget:
    """A file with what was spent, for its owner alone, and the epsilon that all releases about the same data may reach.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget(Path(folder) / "spent.json", limit=2.0)
    ...     round(budget.spend("3f1a", mu_of(1.0, 1e-5)), 2), round(budget.spend("3f1a", mu_of(1.0, 1e-5)), 2)
    (1.0, 1.47)
    """

    path: Path
    limit: float  # epsilon
    delta: float = 1e-5  # at which it is counted

    def __post_init__(self) -> None:
        if not 0 < self.limit <= LARGEST_EPSILON:
            raise ParameterError(
                f"a limit of epsilon is a number above 0, at most {LARGEST_EPSILON:g}; got {self.limit!r}"
            )
        mu_of(self.limit, self.delta)  # refuses what is no delta

    def spent(self, data: str) -> float:
        """The epsilon of all releases so far about the data with this digest."""
        return epsilon_of(self._read().get(data, 0.0), self.delta)

    def spend(self, data: str, mu: float) -> float:
        """Note a release of this mu before anything is sent, and say the epsilon in all; refused beyond the limit."""
        if not 0 < mu < math.inf:
            raise ParameterError(f"the mu of a release is a number above 0; got {mu!r}")
        disk.private_folder(self.path.parent)
        with disk.alone(self.path):  # two that read the same file would each forget what the other spent
            before = self._read()
            after = {**before, data: composed([before.get(data, 0.0), mu])}
            total = epsilon_of(after[data], self.delta)
            if not total <= self.limit * (1.0 + 1e-9):
                raise DataError(
                    f"it would have spent epsilon {total:.3g} on these data, and its limit is {self.limit:g}: "
                    f"{epsilon_of(before.get(data, 0.0), self.delta):.3g} are spent; only its owner can raise the limit"
                )
            content = {"format": FORMAT, "mu": after}
            disk.write_bytes(self.path, json.dumps(content).encode() + b"\n")
        return total

    def _read(self) -> dict[str, float]:
        """The mu by data; a file that cannot be read is no empty one, or whoever damages it could ask again."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DataError(
                f"cannot read {self.path}, where spent privacy is noted: {error.strerror or error}"
            ) from error
        content = read_json(data, str(self.path))
        known = content.get("mu") if isinstance(content, dict) and content.get("format") == FORMAT else None
        if not isinstance(known, dict) or not all(map(_is_mu, known.values())):
            raise DataError(f"{self.path} is not a note of spent privacy of format {FORMAT}; restore it from a copy")
        return {name: float(mu) for name, mu in known.items()}


def _is_mu(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf
