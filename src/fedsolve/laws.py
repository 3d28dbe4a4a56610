"""What a method may promise, as values in its own file: `laws = (SplitInvariant(), Equals("fedavg", mu=0.0))`.

A law says what must hold; `fedsolve.checks` knows how to find out. A law of your own is a class like these, with a
function registered at `fedsolve.checks.laws.hold`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


class Law:
    """The base of all laws: a promise, with its words."""

    def __str__(self) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(self).__name__).lower()


@dataclass(frozen=True)
class SplitInvariant(Law):
    """The global model does not depend on how the same data are spread over clients."""


@dataclass(frozen=True)
class OthersSplitInvariant(Law):
    """A client's model does not depend on how the data of the other clients are spread over them."""


@dataclass(frozen=True)
class OrderFree(Law):
    """The order in which replies arrive changes nothing but rounding."""


@dataclass(frozen=True)
class OneModel(Law):
    """Every client's model is the global model."""


@dataclass(frozen=True)
class SendsNothing(Law):
    """Not a byte travels in either direction."""


@dataclass(frozen=True, init=False)
class _Under(Law):
    """A law that holds under some settings of the method, given as keywords."""

    settings: tuple[tuple[str, Any], ...]

    def __init__(self, **settings: Any) -> None:
        object.__setattr__(self, "settings", tuple(settings.items()))

    @property
    def _words(self) -> str:
        return "".join(f" at {name}={value}" for name, value in self.settings)


@dataclass(frozen=True, init=False)
class _LikeAnother(_Under):
    """A law that holds the method against another one of the catalogue."""

    other: str

    def __init__(self, other: str, **settings: Any) -> None:
        super().__init__(**settings)
        object.__setattr__(self, "other", other)


@dataclass(frozen=True, init=False)
class Equals(_LikeAnother):
    """Under these settings it is another method of the catalogue, bit for bit: the server's state and every model."""

    def __str__(self) -> str:
        return f"equals {self.other}{self._words}"


@dataclass(frozen=True, init=False)
class SharesWith(_LikeAnother):
    """Under these settings the server's state, and so all that travels, is another method's, bit for bit."""

    def __str__(self) -> str:
        return f"shares with {self.other}{self._words}"


@dataclass(frozen=True, init=False)
class EqualsAmongEquals(_LikeAnother):
    """Under these settings, and where all clients have as many samples, its global model is another method's.

    Up to rounding: where one method takes plain means and the other means by samples.
    """

    def __str__(self) -> str:
        return f"equals {self.other} among clients of equal size{self._words}"


@dataclass(frozen=True, init=False)
class TrainsAlone(_Under):
    """Under these settings, or in a federation of `clients`, every client's model is that of training alone."""

    clients: int | None

    def __init__(self, clients: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        object.__setattr__(self, "clients", clients)

    def __str__(self) -> str:
        return f"trains alone{'' if self.clients is None else f' with {self.clients} client'}{self._words}"


@dataclass(frozen=True, init=False)
class StaysAtStart(_Under):
    """Under these settings the global model stays the first one, up to the rounding of means."""

    def __str__(self) -> str:
        return f"stays at its start{self._words}"
