"""Keys made at the sites: cards, who is let in, what is pinned, and who tries to stand in between."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsolve.errors import DataError, FedsolveError

pytest.importorskip("cryptography", reason="pip install 'fedsolve[flower]'")

from fedsolve import deploy
from fedsolve.cli import app
from fedsolve.deploy.files import DEPLOYED
from fedsolve.deploy.join import CARD
from fedsolve.privacy import credentials
from fedsolve.privacy.credentials import IDENTITY, PEERS
from fedsolve.privacy.policy import Policy

SITES = ["ward-a", "ward-b", "ward-c"]


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    deploy.init(tmp_path / "fed", SITES, "127.0.0.1:18443")
    return tmp_path / "fed"


def policy_of(site: Path) -> Policy:
    return Policy.of({name.lower(): value for name, value in deploy.read_env(site / "site.env").items()})


def test_whoever_writes_the_files_of_a_federation_knows_no_key_of_a_site(fed: Path) -> None:
    names = {path.name for path in (fed / "sites").rglob("*") if path.is_file()}
    assert names == {"ca.crt", "site.env", "start.sh"}
    assert not list((fed / "server").rglob("*.pub"))


def test_a_deployed_site_is_careful_and_from_three_on_secure(fed: Path, tmp_path: Path) -> None:
    assert policy_of(fed / "sites" / "ward-a").privacy == "secure"
    deploy.init(tmp_path / "two", SITES[:2], "127.0.0.1:18443")
    two = policy_of(tmp_path / "two" / "sites" / "ward-a")
    assert two == DEPLOYED and (two.privacy, two.max_parameters, two.max_leverage) == ("plain", 0.33, 0.9)


def test_the_way_of_keys(fed: Path) -> None:
    """Each site joins, the server takes their cards in, and each site pins what the server tells of the others."""
    cards = [deploy.join(fed / "sites" / name) for name in SITES]
    secrets = [fed / "sites" / name / file for name in SITES for file in ("node.key", IDENTITY)]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    assert deploy.join(fed / "sites" / "ward-a") == cards[0]  # keys are made once
    for path in secrets:
        text = (path.parent / CARD).read_text()
        assert path.read_bytes().hex() not in text
    known = deploy.add(fed / "server", [fed / "sites" / name / CARD for name in SITES])
    assert known == {card.name: card.peer for card in cards}
    for name in SITES:
        assert deploy.pin(fed / "sites" / name, fed / "server" / PEERS) == known
        told = {look.what: look for look in deploy.check(fed / "sites" / name)}["peers"]
        assert told.fine and credentials.roster_fingerprint(known) in told.words
        assert all(card.peer.fingerprint in told.words for card in cards)


def test_a_server_that_changes_a_key_is_seen(fed: Path, tmp_path: Path) -> None:
    deploy.trial(fed)
    known = credentials.read_peers(fed / "server" / PEERS)
    own = credentials.made(tmp_path / "server.key").public
    for whose, words in (("ward-b", "'ward-b' is known by other keys"), ("ward-a", "another key for 'ward-a'")):
        credentials.write_peers(tmp_path / "peers.json", {**known, whose: own})
        with pytest.raises(DataError, match=words):
            deploy.pin(fed / "sites" / "ward-a", tmp_path / "peers.json")
    assert credentials.read_peers(fed / "sites" / "ward-a" / PEERS) == known
    # At a site that pins for the first time nothing shows but the fingerprint, which is not that of the others.
    (fed / "sites" / "ward-a" / PEERS).unlink()
    credentials.write_peers(tmp_path / "peers.json", {**known, "ward-b": own})
    pinned = deploy.pin(fed / "sites" / "ward-a", tmp_path / "peers.json")
    assert credentials.roster_fingerprint(pinned) != credentials.roster_fingerprint(known)


def test_a_site_that_comes_later_changes_nothing_of_the_others(fed: Path) -> None:
    deploy.trial(fed)
    site = fed / "sites" / "ward-d"
    site.mkdir()
    (site / "site.env").write_text(
        deploy.env_text({**deploy.read_env(fed / "sites/ward-a/site.env"), "NAME": "ward-d"})
    )
    deploy.join(site)
    known = deploy.add(fed / "server", [site / CARD])
    assert sorted(known) == [*SITES, "ward-d"]
    assert deploy.read_env(fed / "server" / "server.env")["SITES"] == "ward-a,ward-b,ward-c,ward-d"
    assert deploy.pin(fed / "sites" / "ward-a", fed / "server" / PEERS) == known


def test_new_keys_of_a_site_are_taken_once_the_old_ones_are_removed(fed: Path) -> None:
    deploy.trial(fed)
    site = fed / "sites" / "ward-b"
    for name in ("node.key", IDENTITY):
        (site / name).unlink()
    deploy.join(site)
    with pytest.raises(DataError, match="'ward-b' is known by other keys"):
        deploy.add(fed / "server", [site / CARD])
    before = (fed / "server" / "keys" / "ward-b.pub").read_text()
    deploy.remove(fed / "server", "ward-b")
    assert deploy.read_env(fed / "server" / "server.env")["SITES"] == "ward-a,ward-c"
    assert not (fed / "server" / "keys" / "ward-b.pub").exists()
    deploy.add(fed / "server", [site / CARD])
    assert (fed / "server" / "keys" / "ward-b.pub").read_text() != before
    with pytest.raises(FedsolveError, match="unknown site 'ward-x'"):
        deploy.remove(fed / "server", "ward-x")


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"format": 1, "name": "../../x", "node": "ssh-rsa AAAA"}', '{"format": 1, "name": "a", "node": "k"}'],
)
def test_a_card_that_is_none_is_refused(fed: Path, text: str) -> None:
    path = fed / "card.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"card\.json"):
        deploy.add(fed / "server", [path])
    assert not (fed / "server" / "keys").exists()


def test_the_command_line(fed: Path) -> None:
    run = CliRunner()
    for name in SITES:
        done = run.invoke(app, ["deploy", "join", str(fed / "sites" / name)])
        assert done.exit_code == 0 and "fingerprint" in done.output
    done = run.invoke(app, ["deploy", "add", str(fed / "server"), *(str(fed / "sites" / n / CARD) for n in SITES)])
    whole = credentials.roster_fingerprint(credentials.read_peers(fed / "server" / PEERS))
    assert done.exit_code == 0 and whole in done.output
    for name in SITES:
        done = run.invoke(app, ["deploy", "join", str(fed / "sites" / name), "--peers", str(fed / "server" / PEERS)])
        assert done.exit_code == 0 and whole in done.output
    done = run.invoke(app, ["deploy", "remove", str(fed / "server"), "ward-c"])
    assert done.exit_code == 0 and "ward-c is no longer expected" in done.output
