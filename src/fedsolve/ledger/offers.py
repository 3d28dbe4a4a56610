"""A file that is offered to a ledger, after a look at it and before it touches anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsolve.errors import DataError, FedsolveError
from fedsolve.ledger.contribution import Contribution, read_bytes, sender
from fedsolve.ledger.terms import Terms
from fedsolve.ledger.validate import Census, examine


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A file after a look at it: its contribution and what that says of itself, or the reason for a refusal."""

    client: str
    size: int  # bytes of the file
    contribution: Contribution | None = None
    census: Census | None = None
    reason: str = ""


def read_offer(terms: Terms, path: Path) -> Offer:
    """What a file offers to the federation of those terms. A machine that cannot read raises a `StorageError`."""
    try:
        data = read_bytes(path)
    except DataError as error:
        return Offer(path.stem, 0, reason=str(error))
    try:
        contribution = Contribution.read(data, terms, str(path))
        return Offer(contribution.client, len(data), contribution, examine(terms, contribution.arrays))
    except FedsolveError as error:
        return Offer(sender(data, path.stem), len(data), reason=str(error))
