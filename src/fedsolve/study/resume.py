"""Going on with a run that was stopped: its checkpoint says what it was, and nothing else goes on in its place."""

from __future__ import annotations

from dataclasses import asdict, replace

from fedsolve import parameters
from fedsolve.errors import DataError
from fedsolve.runtime.checkpoint import Checkpoint
from fedsolve.study.experiment import Settings, method_of


def check_same(checkpoint: Checkpoint, stored: Settings, settings: Settings) -> None:
    """Refuse settings that are not those that a checkpoint was written with, and name what differs."""
    before, now = _resolved(stored), _resolved(settings)
    if stored.method != settings.method:
        before, now = {"method": stored.method}, {"method": settings.method}
    differences = [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in before | now
        if before.get(name) != now.get(name)
    ]
    if differences:
        raise DataError(
            f"{checkpoint.path} belongs to another run: {'; '.join(differences[:3])}; leave out what differs, or run "
            "anew without --resume"
        )


def _resolved(settings: Settings) -> dict[str, object]:
    """Settings by name, with the values that the method's parameters really have."""
    method = method_of(settings)
    plain = asdict(replace(settings, set={}, rounds=method.rounds))
    del plain["set"]
    values = {f"set {name}": value for name, value in parameters.values(method).items() if name != "rounds"}
    return plain | values
