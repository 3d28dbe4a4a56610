"""Certificates that are renewed: the server's under the authority that sites know, and, more rarely, the authority.

A new certificate of the server needs nothing at the sites. A new authority is made known first: the server's ca.crt
holds the old one and the new one, each site takes that file in, and only then the server's certificate is of the new
one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedsolve import disk
from fedsolve.deploy import certificates
from fedsolve.deploy.files import read_env, split_address, write
from fedsolve.deploy.invite import write_invitation
from fedsolve.errors import DataError

KEY, CERTIFICATE = "ca.key", "ca.crt"  # in the authority's folder
NEXT_KEY, NEXT_CERTIFICATE = "next.key", "next.crt"  # of the one that is being made known


def rotate(folder: Path, authority: Path) -> datetime:
    """At the server: a new key and certificate under the same authority; until when it holds."""
    key, ca = certificates.read_authority(authority / KEY, authority / CERTIFICATE)
    if ca not in certificates.read_all(folder / CERTIFICATE):
        raise DataError(
            f"{authority / CERTIFICATE} is not the authority that sites know, in {folder / CERTIFICATE}; name its "
            "folder with --ca"
        )
    if ca.not_valid_after_utc < datetime.now(UTC):
        raise DataError(f"{authority / CERTIFICATE} has ended itself; make another: --authority")
    server_key, server = certificates.server_certificate(key, ca, _host(folder))
    _install(folder, certificates.certificate_text(server), certificates.key_text(server_key))
    return server.not_valid_after_utc


def install(folder: Path, certificate: Path, key: Path) -> datetime:
    """At the server: take a certificate in that another authority of the sites' ca.crt made; until when it holds."""
    chain = certificates.read_all(certificate)
    secret = certificates.check_server(chain, key, certificates.read_all(folder / CERTIFICATE), _host(folder))
    _install(folder, "".join(map(certificates.certificate_text, chain)), certificates.key_text(secret))
    return chain[0].not_valid_after_utc


def next_authority(folder: Path, authority: Path) -> datetime | None:
    """At the server: make a new authority known, or, where that was done, have it sign from now on.

    Returns until when the new one holds where it has just been made; nothing where it took the old one's place.
    """
    old = certificates.read_all(folder / CERTIFICATE)
    fresh_key, fresh = authority / NEXT_KEY, authority / NEXT_CERTIFICATE
    if not fresh.exists():
        key, ca = certificates.authority()
        write(fresh_key, certificates.key_text(key), secret=True)
        both = [each for each in old if each.not_valid_after_utc > datetime.now(UTC)] + [ca]
        _write_authority(folder, both)
        write(fresh, certificates.certificate_text(ca))  # last, so that whoever is interrupted begins again
        return ca.not_valid_after_utc
    _, ca = certificates.read_authority(fresh_key, fresh)
    fresh_key.replace(authority / KEY)
    write(authority / CERTIFICATE, certificates.certificate_text(ca))
    _write_authority(folder, [*(each for each in old if each != ca), ca])
    rotate(folder, authority)
    fresh.unlink()
    return None


def take(folder: Path, path: Path) -> str:
    """At a site: trust the authorities in a file of the server's, if one of them is trusted already; the fingerprint.

    All sites must read the same one, which is compared as that of the peers is.
    """
    told, known = certificates.read_all(path), certificates.read_all(folder / CERTIFICATE)
    if not any(each in known for each in told):
        raise DataError(
            f"{path} has no authority that this site knows ({folder / CERTIFICATE}): a new one comes with the old one, "
            "or somebody wants to stand in for the server"
        )
    disk.write_bytes(folder / CERTIFICATE, "".join(map(certificates.certificate_text, told)).encode(), public=True)
    return certificates.authority_fingerprint(told)


def _host(folder: Path) -> str:
    return split_address(read_env(folder / "server.env").get("ADDRESS", ""))[0]


def _install(folder: Path, certificate: str, key: str) -> None:
    """The key first: whoever is interrupted in between does it again."""
    disk.write_bytes(folder / "server.key", key.encode())
    disk.write_bytes(folder / "server.crt", certificate.encode(), public=True)
    write_invitation(folder)


def _write_authority(folder: Path, authorities: list[certificates.Certificate]) -> None:
    text = "".join(map(certificates.certificate_text, authorities))
    disk.write_bytes(folder / CERTIFICATE, text.encode(), public=True)
    write_invitation(folder)
