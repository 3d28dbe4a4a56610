"""One run in one or several trackers. One that fails does not spoil the run: it is said once, and the run goes on.

What can be refused is refused before the run begins: a library that is not there, a place that cannot be written to.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias

from fedsolve.errors import FedsolveError, StorageError, TrackingWarning, plain
from fedsolve.records import Round
from fedsolve.result import Result
from fedsolve.tracking import figures
from fedsolve.tracking.figures import Scalar

End: TypeAlias = Literal["finished", "failed", "stopped"]


class Sink(Protocol):
    """A run in a tracker."""

    def settings(self, values: Mapping[str, Scalar]) -> None:
        """Keep the settings, by name."""

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Keep the figures of a round."""

    def result(self, values: Mapping[str, float], place: str) -> None:
        """Keep the figures of the result, and where it lies; "" where it is not on disk."""

    def close(self, end: End) -> None:
        """The run is over."""


class Tracker(Protocol):
    """What keeps runs: `MLflow`, `TensorBoard`, `WandB`, or one of your own."""

    def open(self, name: str) -> Sink:
        """A new run that is shown by this name."""


class Log:
    """What tells trackers of a run; `fs.run` calls it after each round.

    Inside the `with`, a tracker that fails is said once (a `TrackingWarning`, or by `say`) and not asked again.

    >>> import fedsolve as fs
    >>> class Printed:
    ...     def open(self, name): return self
    ...     def settings(self, values): print("alpha is", values["set.alpha"])
    ...     def round(self, number, values): print("round", number, values["missing"])
    ...     def result(self, values, place): print(values["final/rounds"], "round in", place or "memory")
    ...     def close(self, end): print(end)
    >>> federation = fs.load("digits").split(fs.dirichlet(0.1), clients=5)
    >>> with Log(Printed()) as log:
    ...     result = fs.run(fs.FedHiP(alpha=20), federation, on_round=log)
    ...     log.end(result)
    round 1 0.0
    alpha is 20
    1.0 round in memory
    finished
    """

    def __init__(self, *trackers: Tracker, name: str = "run", say: Callable[[str], None] | None = None) -> None:
        self._trackers, self._name = trackers, name
        self._say = say or (lambda sentence: warnings.warn(sentence, TrackingWarning, stacklevel=4))
        self._open: list[tuple[Tracker, Sink]] = []
        self._started = False

    def __enter__(self) -> Log:
        for tracker in self._trackers:
            try:
                self._open.append((tracker, tracker.open(self._name)))
            except Exception as error:
                self._close("failed")
                if isinstance(error, FedsolveError):
                    raise
                kind = type(tracker).__name__
                raise StorageError(f"{kind} cannot begin a run: {type(error).__name__}: {plain(str(error))}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._close("finished" if error is None else "failed" if isinstance(error, Exception) else "stopped")

    def start(self, settings: Mapping[str, Any]) -> None:
        """Tell the settings of the run, once: those of the first call count."""
        if not self._started:
            self._started = True
            values = figures.of_settings(settings)
            self._tell(lambda sink: sink.settings(values))

    def __call__(self, line: Round, of: int) -> None:
        """Tell of a round that is over."""
        values = figures.of_round(line)
        self._tell(lambda sink: sink.round(line.round, values))

    def end(self, result: Result, place: str | Path = "") -> None:
        """Tell the final figures, where the result was saved, and its settings if nobody did before."""
        self.start(result.settings)
        values, where = figures.of_result(result), str(Path(place).absolute()) if place else ""
        self._tell(lambda sink: sink.result(values, where))

    def _close(self, end: End) -> None:
        self._tell(lambda sink: sink.close(end))
        self._open = []

    def _tell(self, tell: Callable[[Sink], None]) -> None:
        """Whatever a tracker's library raises, the run is worth more than its record there."""
        for tracker, sink in list(self._open):
            try:
                tell(sink)
            except Exception as error:  # noqa: BLE001
                self._open.remove((tracker, sink))
                self._say(
                    f"{type(tracker).__name__} failed and is told no more of this run, which goes on: "
                    f"{type(error).__name__}: {plain(str(error))}"
                )
