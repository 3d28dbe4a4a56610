"""Whether a contribution may speak for its client now: by its signature, and by its number. Others are replays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedsolve.data.federation import check_name
from fedsolve.errors import DataError
from fedsolve.ledger.contribution import Contribution
from fedsolve.ledger.entries import Departed, Entry
from fedsolve.ledger.terms import Terms


def check_signature(contribution: Contribution, terms: Terms, keys: Mapping[str, str]) -> None:
    """Refuse what is not signed by its client's key, where a ledger has keys."""
    if not keys:
        return
    from fedsolve.ledger.signing import is_signed

    client = contribution.client
    if client not in keys:
        raise DataError(f"{client!r} has no key here, and others have; `fedsolve ledger trust` takes its public key")
    if not is_signed(contribution.words(terms), contribution.signature, keys[client]):
        raise DataError(f"it is not signed with the key of {client!r}; `fedsolve ledger contribute --key` signs")


def check_newer(contribution: Contribution, last: Entry | Departed | None) -> None:
    """Refuse what is not newer than the last contribution of its client, be that one in or taken out."""
    if last is None or contribution.sequence > last.sequence:
        return
    where = "is in with" if isinstance(last, Entry) else "was taken out, and its last contribution had"
    raise DataError(
        f"not newer: its number is {contribution.sequence}, and {contribution.client!r} {where} number "
        f"{last.sequence}; make a new contribution, or let this one in with `fedsolve ledger readmit`"
    )


def public_keys(keys: Mapping[str, Path]) -> dict[str, str]:
    """The public keys of clients in files."""
    if not keys:
        return {}
    from fedsolve.ledger.signing import read_public

    for client in keys:
        check_name(client)
    return {client: read_public(file) for client, file in keys.items()}
