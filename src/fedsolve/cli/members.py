"""`fedsolve deploy join`, `add`, `remove`, `rotate`: who takes part, and by which keys and certificates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedsolve.errors import DataError, ParameterError

Server = Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder, as in trial/server.")]
PATIENCE = 120.0  # seconds that a SuperLink has to start


def join_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder, as in sites/ward-a.")],
    peers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Pin the keys of all sites, from the server's peers.json.", show_default=False
        ),
    ] = None,
    invitation: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A site that comes later: make its folder from the server's invitation.json.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="With --invitation: what the site is called.", show_default=False)] = "",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Of the site's node. Default: one that is free.", show_default=False),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of site.env, as in DATA=/srv/ward.csv. Repeat for more.",
            show_default=False,
        ),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Trust the authorities in the server's ca.crt, after `deploy rotate --authority`.",
            show_default=False,
        ),
    ] = None,
) -> None:  # fmt: skip
    """At a site: make its keys, and a card for the server; with --peers, pin the keys of the other sites.

    Before secure sums, all sites compare the fingerprint of what they pinned by telephone, not by way of the server.
    A site that comes later begins with the server's invitation and a name.
    """
    from fedsolve import deploy
    from fedsolve.privacy.credentials import PEERS, read_peers, roster_fingerprint

    if sum(each is not None for each in (peers, invitation, authority)) > 1:
        raise ParameterError("--peers, --invitation and --authority are three things; give one")
    if bool(name) != (invitation is not None):
        raise ParameterError("--invitation and --name go together: the server's file, and what this site is called")
    if authority is not None:
        fingerprint = deploy.take(folder, authority)
        typer.echo(f"{folder} trusts the authorities in {authority}; all sites must read the same: {fingerprint}")
        typer.echo("the node uses them when it is started again")
        return
    settings = _settings(assign or [])
    if invitation:
        card = deploy.accept(folder, invitation, name, port=port, settings=settings)
    else:
        card = deploy.join(folder, port=port, settings=settings)
    if peers is None:
        typer.echo(f"{card.name}: keys are in {folder}, and stay there")
        typer.echo(f"give {folder / deploy.CARD} to the server; fingerprint {card.peer.fingerprint}")
        if invitation:
            pinned = read_peers(folder / PEERS)
            typer.echo(f"pinned {len(pinned)} sites; all sites must read the same: {roster_fingerprint(pinned)}")
            typer.echo(f"when DATA in {folder / 'site.env'} says where the data lie, start {folder / 'start.sh'}")
        return
    pinned = deploy.pin(folder, peers)
    for each, peer in sorted(pinned.items()):
        typer.echo(f"{peer.fingerprint}  {each}{'  (this site)' * (each == card.name)}")
    typer.echo(f"pinned {len(pinned)} sites; all sites must read the same: {roster_fingerprint(pinned)}")


def _settings(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ParameterError(f"--set takes NAME=VALUE, as in DATA=/srv/ward.csv; got {text!r}")
        found[name] = value
    return found


def add_command(
    folder: Server,
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="What `deploy join` wrote at the sites.")],
) -> None:
    """At the server: let sites in by their cards. Then give peers.json to all sites, for `deploy join --peers`.

    A SuperLink that runs lets them in at once. The server's invitation.json is written anew, for sites that come later.
    """
    from fedsolve import deploy
    from fedsolve.deploy.run import is_open, link_of
    from fedsolve.privacy.credentials import PEERS, roster_fingerprint

    known = deploy.add(folder, cards)
    typer.echo(f"{', '.join(sorted(known))}: fingerprint of all together {roster_fingerprint(known)}")
    if is_open(*link_of(folder)):
        with _told("the next run"):
            deploy.register(folder, deploy.keyed_sites(folder), typer.echo)
    typer.echo(f"give {folder / PEERS} to every site, for `fedsolve deploy join DIR --peers {PEERS}`")


@contextmanager
def _told(later: str) -> Iterator[None]:
    """Inside, the SuperLink is told what the folder says already; where that fails, it is said, and is no failure."""
    try:
        yield
    except DataError as error:
        typer.echo(f"the SuperLink knows it from {later} on: {error}")


def remove_command(
    folder: Server, name: Annotated[str, typer.Argument(metavar="SITE", help="The name of the site.")]
) -> None:
    """At the server: expect a site no longer, and forget its keys. A SuperLink that runs lets it in no longer."""
    from fedsolve import deploy
    from fedsolve.deploy.certificates import public_pem
    from fedsolve.deploy.run import is_open, link_of

    path = folder / "keys" / f"{name}.pub"
    key = public_pem(path) if path.is_file() else ""
    deploy.remove(folder, name)
    typer.echo(f"{name} is no longer expected, and its keys are gone from {folder}")
    if key and is_open(*link_of(folder)):
        with _told("its next start"):
            if deploy.unregister(folder, key):
                typer.echo("the SuperLink lets it in no longer")


def rotate_command(
    folder: Server,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the authority's key lies. Default: ca, beside DIR.", show_default=False
        ),
    ] = None,
    authority: Annotated[
        bool,
        typer.Option("--authority", help="Change the authority: once to make a new one known, once more to use it."),
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A certificate that your own authority made.", show_default=False),
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.", show_default=False)] = None,
) -> None:
    """At the server: renew its certificate, under the authority that the sites know: nothing is to be done there.

    The SuperLink shows it when it is started again. With --authority, a new authority takes the old one's place in two
    steps, between which every site takes the server's ca.crt in: `deploy join DIR --authority ca.crt`.
    """
    from fedsolve import deploy
    from fedsolve.deploy.certificates import days_left, end_of

    place = ca or folder.resolve().parent / "ca"
    if (certificate is None) != (key is None):
        raise ParameterError("--certificate and --key go together")
    if certificate is not None and key is not None:
        if authority:
            raise ParameterError("--authority makes a new one; it is without --certificate")
        end = deploy.install(folder, certificate, key)
    elif authority:
        made = deploy.next_authority(folder, place)
        if made is not None:
            typer.echo(f"a new authority, for {days_left(made)} days; the server's certificate is still of the old one")
            typer.echo(f"give {folder / 'ca.crt'} to every site, for `fedsolve deploy join DIR --authority ca.crt`")
            typer.echo(f"when all have it: fedsolve deploy rotate {folder} --authority")
            return
        end = end_of(folder / "server.crt")
        typer.echo("the new authority signs from now on; a site that did not take it in will not connect any more")
    else:
        end = deploy.rotate(folder, place)
    typer.echo(f"a new certificate of the server, for {days_left(end)} days; the sites need nothing")
    typer.echo(f"the SuperLink shows it when it is started again: {folder / 'start.sh'}")


def register_command(folder: Server) -> None:
    """At the server, beside a SuperLink that is starting: tell it the sites' keys. `start.sh` calls it."""
    from fedsolve import deploy
    from fedsolve.deploy.run import is_open, link_of

    started = time.monotonic()
    while not is_open(*link_of(folder)):
        if time.monotonic() - started > PATIENCE:
            raise DataError(f"no SuperLink was started within {PATIENCE:g} s")
        time.sleep(0.5)
    deploy.register(folder, deploy.keyed_sites(folder), typer.echo)
