"""Clients on devices that are not equally fast, emulated: seconds are computed from what was measured, nobody sleeps.

A client's seconds of work are its CPU seconds here times how many times slower its device is; its transfer is the bytes
that it was sent and sent over its bandwidth. Clients work at the same time, each on a device of its own, so a round is
over when the last of them is done, and the others wait. CPU seconds do not depend on who computes beside, so neither
does the emulated clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsolve.errors import ParameterError, brief
from fedsolve.records import Times
from fedsolve.rng import derive
from fedsolve.runtime.stopwatch import Work

MBIT = (
    100.0  # what a wired line of a home or an office carries; a device 16 times slower has 6, as on a weak mobile one
)
SLOWEST = 1e6
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?")
_FORM = "slow:4,16, or with shares of the clients slow:4@0.2,16@0.1, and behind it ;mbit=100 where that is not 100"


@dataclass(frozen=True, slots=True)
class Device:
    """The machine of a client beside this one, and its line. Without more words: this one, and no line at all.

    >>> Device(slower=4.0, mbit=8.0).times(Work(seconds=0.5, down=1_000_000, up=500_000))
    Times(compute=2.0, waiting=0.0, transfer=1.5)
    """

    slower: float = 1.0
    mbit: float = math.inf  # megabits in a second, both ways together

    def times(self, work: Work) -> Times:
        """The seconds that work takes on it."""
        return Times(compute=self.slower * work.seconds, transfer=8e-6 * (work.down + work.up) / self.mbit)


HERE = Device()


def lap(work: Mapping[str, Work], devices: Mapping[str, Device] | None = None) -> tuple[dict[str, Times], float]:
    """The seconds of clients that work at the same time and wait for the last of them, and how long that takes.

    Clients that have no device are on machines like this one.

    >>> lap({"a": Work(1.0), "b": Work(1.0)}, {"b": Device(slower=4.0)})
    ({'a': Times(compute=1.0, waiting=3.0, transfer=0.0), 'b': Times(compute=4.0, waiting=0.0, transfer=0.0)}, 4.0)
    """
    busy = {client: (devices or {}).get(client, HERE).times(done) for client, done in work.items()}
    last = max((times.busy for times in busy.values()), default=0.0)
    return {client: times + Times(waiting=last - times.busy) for client, times in busy.items()}, last


@dataclass(frozen=True, slots=True)
class Devices:
    """Which share of the clients is how many times slower than this machine; the others are as fast as it.

    Without `shares`, each of `slow` and the fast ones are as many: of (4, 16) a third each. Who is slow is drawn by the
    seed of the run. The fast have a line of `mbit` megabits in a second, and who is 4 times slower one of a quarter.

    >>> Devices((4, 16)).slower([f"client-{number}" for number in range(6)], seed=0)
    {'client-0': 16.0, 'client-1': 1.0, 'client-2': 16.0, 'client-3': 4.0, 'client-4': 1.0, 'client-5': 4.0}
    >>> str(Devices((4, 16), shares=(0.2, 0.1), mbit=20)), Devices.of("slow:4,16") == Devices((4, 16))
    ('slow:4@0.2,16@0.1;mbit=20', True)
    """

    slow: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    mbit: float = MBIT

    def __post_init__(self) -> None:
        for name in ("slow", "shares"):
            values = getattr(self, name)
            if not isinstance(values, Sequence) or isinstance(values, str) or not all(map(_is_number, values)):
                raise ParameterError(
                    f"{name} of devices must be numbers, as in fs.Devices((4, 16)); got {brief(values)}"
                )
            object.__setattr__(self, name, tuple(map(float, values)))
        if not all(1 < times <= SLOWEST for times in self.slow) or len(set(self.slow)) < len(self.slow):
            raise ParameterError(
                f"devices must be more than once and at most {SLOWEST:g} times slower, each another number of times; "
                f"got {_list(self.slow)}"
            )
        if self.shares and len(self.shares) != len(self.slow):
            raise ParameterError(
                f"devices must all have a share or none; got {len(self.slow)} of them and {len(self.shares)} shares"
            )
        if not all(share > 0 for share in self.shares) or not sum(self.shares) <= 1 + 1e-9:
            raise ParameterError(
                f"shares of slow devices must be above 0 and at most 1 together; got {_list(self.shares)}"
            )
        if not _is_number(self.mbit) or not 0 < self.mbit < math.inf:
            raise ParameterError(f"mbit of devices must be a number of megabits above 0; got {brief(self.mbit)}")
        object.__setattr__(self, "mbit", float(self.mbit))

    @classmethod
    def of(cls, words: Devices | str) -> Devices:
        """The devices that words stand for, as `str` writes them.

        >>> Devices.of("slow:4,16;mbit=50").mbit
        50.0
        """
        if isinstance(words, Devices):
            return words
        if not isinstance(words, str):
            raise ParameterError(f"devices must be as in fs.Devices((4, 16)) or a text as {_FORM}; got {brief(words)}")
        parts = [part.strip() for part in words.split(";")]
        slow = [part for part in parts if part.startswith("slow:")]
        lines = [part for part in parts if part.startswith("mbit=")]
        if len(slow) > 1 or len(lines) > 1 or [*slow, *lines] != parts:
            raise ParameterError(f"devices must be as in {_FORM}; got {words!r}")
        try:
            pairs = [each.split("@") for each in slow[0].removeprefix("slow:").split(",")] if slow else []
            times = tuple(_read(pair[0]) for pair in pairs)
            shares = tuple(_read("@".join(pair[1:])) for pair in pairs if pair[1:])
            mbit = _read(lines[0].removeprefix("mbit=")) if lines else MBIT
        except ValueError:
            raise ParameterError(f"devices must be as in {_FORM}; got {words!r}") from None
        return cls(times, shares, mbit)

    def __str__(self) -> str:
        shares = [f"@{_written(share)}" for share in self.shares] or [""] * len(self.slow)
        each = [f"{_written(times)}{share}" for times, share in zip(self.slow, shares, strict=True)]
        line = [f"mbit={_written(self.mbit)}"] if self.mbit != MBIT or not each else []
        return ";".join([*(["slow:" + ",".join(each)] if each else []), *line])

    def slower(self, clients: Sequence[str], seed: int) -> dict[str, float]:
        """How many times slower each client is: by the seed and the names, whatever their order.

        Of n clients, a share s is s n of them, to the nearest whole number but for what others leave.
        """
        names = sorted(clients)
        shares = self.shares or (1 / (len(self.slow) + 1),) * len(self.slow)
        ends = [sum(shares[: place + 1]) for place in range(len(shares))]
        drawn = derive(seed, "devices").permutation(len(names))
        kinds = {}
        for place, number in enumerate(drawn):
            behind = [times for times, end in zip(self.slow, ends, strict=True) if (place + 0.5) / len(names) < end]
            kinds[names[number]] = behind[0] if behind else 1.0
        return {name: kinds[name] for name in names}

    def assigned(self, clients: Sequence[str], seed: int) -> dict[str, Device]:
        """The device of each client: a slow one has a line that is as much slower."""
        return {name: Device(times, self.mbit / times) for name, times in self.slower(clients, seed).items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read(text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(text)
    return float(text)


def _written(value: float) -> str:
    """The shortest text that is read as this very number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
