"""The secure sum between pure functions: exact with whoever is left, and every attack is refused by the site."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsolve.errors import DataError

pytest.importorskip("cryptography")

from fedsolve.privacy import fixed, graph, keys, protocol, shares
from fedsolve.privacy.journal import Journal
from fedsolve.privacy.protocol import Introduction, Member, Opening, Private, Session

ABOUT = "0" * 64


class Trial:
    """A federation of sites with keys, and a server that does what it should unless told otherwise."""

    def __init__(self, sites: int, *, quorum: int = 3, size: int = 5) -> None:
        self.names = tuple(f"site-{number:04d}" for number in range(sites))
        identities = {name: keys.Identity.make() for name in self.names}
        self.peers = {name: identity.public for name, identity in identities.items()}
        self.members = {name: Member(name, identities[name], self.peers, quorum) for name in self.names}
        self.session = Session.new(ABOUT, ABOUT, "update", self.peers, quorum, 60)
        rng = np.random.default_rng(sites)
        self.numbers = {name: rng.normal(size=size) * 1e3 for name in self.names}
        self.private: dict[str, Private] = {}
        self.openings: dict[str, Opening] = {}
        self.masked: dict[str, fixed.Words] = {}
        self.told: dict[str, dict[str, bytes]] = {}
        self.journals = dict.fromkeys(self.names, Journal())

    def words(self, name: str) -> fixed.Words:
        return fixed.encode(self.numbers[name], 60, len(self.names), "x")

    def open(self, names: Iterable[str]) -> None:
        for name in names:
            self.private[name], self.openings[name] = protocol.open_session(self.session, self.members[name], ())

    def introduced(self, name: str) -> dict[str, Introduction]:
        return protocol.introductions(self.session, self.openings, name)

    def mask(self, names: Iterable[str]) -> None:
        for name in names:
            self.private[name], cover = protocol.meet(
                self.session, self.members[name], self.private[name], self.introduced(name)
            )
            self.masked[name] = self.words(name)
            cover.over(self.masked[name])

    def unmask(self, names: Iterable[str], counted: Collection[str]) -> None:
        for name in names:
            self.told[name], self.journals[name] = protocol.unmask(
                self.session, self.members[name], self.private[name], sorted(counted), self.journals[name]
            )

    def sum(self, counted: Collection[str]) -> fixed.Words:
        total = self.added(self.masked[name] for name in counted)
        protocol.remove_masks(self.session, self.openings, counted, total, self.told)
        return total

    def added(self, parts: Iterable[fixed.Words]) -> fixed.Words:
        total = np.zeros((2, len(self.numbers[self.names[0]])), np.uint64)
        for part in parts:
            fixed.add(total, part)
        return total

    def exact(self, counted: Collection[str]) -> fixed.Words:
        return self.added(self.words(name) for name in counted)


def ready(sites: int = 5) -> Trial:
    """All have opened."""
    trial = Trial(sites)
    trial.open(trial.names)
    return trial


def masked(sites: int = 5) -> Trial:
    """All have sent their part."""
    trial = ready(sites)
    trial.mask(trial.names)
    return trial


@given(st.integers(3, 9), st.data())
@settings(max_examples=60, deadline=None)
def test_with_sites_lost_at_every_phase_the_sum_is_that_of_the_counted_or_one_sentence(sites: int, data: Any) -> None:
    trial = Trial(sites)
    draw = st.sampled_from(["stays", "stays", "stays", "never opens", "never masks", "never unmasks"])
    fate = {name: data.draw(draw, label=name) for name in trial.names}
    opened = [name for name in trial.names if fate[name] != "never opens"]
    counted = [name for name in opened if fate[name] != "never masks"]
    telling = [name for name in counted if fate[name] != "never unmasks"]
    order = data.draw(st.permutations(counted))
    try:
        trial.open(opened)
        trial.mask(order)
        trial.unmask(telling, counted)
        found = trial.sum(counted)
    except DataError as error:
        degree = graph.degree(sites)
        lost = sites - len(telling)
        assert lost > degree.losses or len(counted) < 3, "refused without need"
        assert "\n" not in str(error)
        return
    assert found.tobytes() == trial.exact(counted).tobytes()
    assert len(counted) >= 3


@given(st.integers(3, 8), st.data())
@settings(max_examples=20, deadline=None)
def test_the_sum_of_masked_parts_is_the_masked_sum_in_any_order(sites: int, data: Any) -> None:
    """What masks leave in the sum depends on nobody's numbers: it is the same for other numbers."""
    trial = ready(sites)
    covers = {
        name: protocol.meet(trial.session, trial.members[name], trial.private[name], trial.introduced(name))[1]
        for name in trial.names
    }
    bare, full = {}, {}
    for name in trial.names:
        bare[name], full[name] = np.zeros((2, 5), np.uint64), trial.words(name)
        covers[name].over(bare[name])
        covers[name].over(full[name])
    total = trial.added(full[name] for name in data.draw(st.permutations(trial.names)))
    wanted = trial.added([trial.exact(trial.names), *bare.values()])
    assert total.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("sites", [40, 100])
def test_many_sites_on_a_ring_with_losses_at_every_phase(sites: int) -> None:
    trial = Trial(sites)
    assert trial.session.neighbours < sites - 1
    rng = np.random.default_rng(1)
    lost = rng.permutation(trial.names)[: sites // 10].tolist()
    thirds = [set(lost[start::3]) for start in range(3)]
    opened = [name for name in trial.names if name not in thirds[0]]
    counted = [name for name in opened if name not in thirds[1]]
    trial.open(opened)
    trial.mask(counted)
    trial.unmask([name for name in counted if name not in thirds[2]], counted)
    assert trial.sum(counted).tobytes() == trial.exact(counted).tobytes()


def test_a_part_that_came_late_stays_hidden() -> None:
    """The server has the key of a site that it called gone, and a part that came after all: its own mask is on."""
    trial = masked(7)
    late, *counted = trial.names
    trial.unmask(counted, counted)
    assert trial.sum(counted).tobytes() == trial.exact(counted).tobytes()
    secret = shares.join(
        {trial.session.points[name]: trial.told[name][late] for name in counted}, trial.session.threshold
    )
    part = trial.masked[late].copy()
    for other in counted:
        seed = keys.agreed(
            keys.mask_key(secret), trial.openings[other].key, trial.session.id, late.encode(), other.encode()
        )
        keys.apply_masks(part, *([], [seed]) if other < late else ([seed], []))
    assert part.tobytes() != trial.words(late).tobytes()
    keys.apply_masks(part, taken=[keys.derived(trial.private[late].seed, b"own", trial.session.id)])
    assert part.tobytes() == trial.words(late).tobytes()  # nothing else was


def test_masks_look_like_chance() -> None:
    trial = Trial(5, size=50_000)
    trial.numbers = {name: np.zeros(50_000) for name in trial.names}
    trial.open(trial.names)
    trial.mask(trial.names[:1])
    counts = np.bincount(trial.masked[trial.names[0]].view(np.uint8).ravel(), minlength=256)
    assert 150 < ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 380  # chi-square of 255 degrees of freedom


# --- attacks: each is refused by the site ---


def meets(trial: Trial, introduced: Mapping[str, Introduction]) -> None:
    me = trial.names[0]
    protocol.meet(trial.session, trial.members[me], trial.private[me], introduced)


def opens(trial: Trial, session: Session, **changes: Any) -> None:
    protocol.open_session(session, dataclasses.replace(trial.members[trial.names[0]], **changes), ())


def tells(trial: Trial, counted: Collection[str]) -> None:
    trial.unmask(trial.names[:1], counted)


def test_a_swapped_key_is_refused() -> None:
    trial = ready()
    introduced = trial.introduced(trial.names[0])
    for change in (
        {"key": keys.public_half(keys.mask_key(keys.new_secret()))},
        {"check": bytes(32)},
        {"signature": bytes(64)},
    ):
        fake = {trial.names[1]: dataclasses.replace(introduced[trial.names[1]], **change)}
        with pytest.raises(DataError, match=r"^the opening of 'site-0001' is not signed by it for this session$"):
            meets(trial, introduced | fake)
    with pytest.raises(DataError, match=r"^the server has other keys of the sites than this site has; compare"):
        opens(trial, dataclasses.replace(trial.session, keys="0" * 64))
    with pytest.raises(DataError, match=r"^the server has other keys"):
        opens(trial, trial.session, identity=keys.Identity.make())


def test_a_share_that_was_for_somebody_else_is_refused() -> None:
    trial = ready()
    introduced = trial.introduced(trial.names[0])
    theirs = trial.openings[trial.names[1]].sealed[trial.names[2]]
    fake = {trial.names[1]: dataclasses.replace(introduced[trial.names[1]], sealed=theirs)}
    with pytest.raises(DataError, match=r"^the share from 'site-0001' is not what it sealed for this site$"):
        meets(trial, introduced | fake)


def test_a_replayed_opening_is_refused() -> None:
    trial = ready()
    me, other = trial.names[:2]
    earlier = Session.new(ABOUT, ABOUT, "update", trial.peers, 3, 60)
    old = protocol.open_session(earlier, trial.members[other], ())[1]
    fake = {other: Introduction(old.key, old.check, old.sealed[me], old.signature)}
    with pytest.raises(DataError, match=r"is not signed by it for this session$"):
        meets(trial, trial.introduced(me) | fake)


def test_a_reopened_session_is_refused() -> None:
    trial = ready()
    with pytest.raises(DataError, match=r"^this session was opened before"):
        protocol.open_session(trial.session, trial.members[trial.names[0]], [bytes(32), trial.session.id])


def test_a_second_part_is_refused() -> None:
    trial = masked()
    with pytest.raises(DataError, match=r"^this session was masked before"):
        meets(trial, trial.introduced(trial.names[0]))


def test_strangers_are_refused() -> None:
    trial = ready()
    introduced = trial.introduced(trial.names[0])
    for name in ("stranger", trial.names[0]):
        with pytest.raises(DataError, match=f"^'{name}' was introduced, and is no neighbour of this site$"):
            meets(trial, introduced | {name: introduced[trial.names[1]]})
    peers = trial.peers | {"stranger": keys.Identity.make().public}
    with pytest.raises(DataError, match=r"^the session names 'stranger', whose key this site does not know$"):
        opens(trial, Session.new(ABOUT, ABOUT, "update", peers, 3, 60))
    others = {name: peer for name, peer in trial.peers.items() if name != trial.names[0]}
    with pytest.raises(DataError, match=r"^'site-0000' is not in the session's roster$"):
        opens(trial, Session.new(ABOUT, ABOUT, "update", others, 3, 60))


def test_a_threshold_that_is_not_the_sites_own_is_refused() -> None:
    trial = ready(7)
    for change in ({"threshold": 3}, {"threshold": 6}, {"neighbours": 2}, {"neighbours": 2, "threshold": 2}):
        with pytest.raises(DataError, match=r"neighbours; for 7 sites it is 5 of 6$"):
            opens(trial, dataclasses.replace(trial.session, **change))  # type: ignore[arg-type]


def test_a_small_quorum_is_refused() -> None:
    trial = ready()
    with pytest.raises(DataError, match=r"^the session allows sums over 1 sites; this site wants at least 3$"):
        opens(trial, dataclasses.replace(trial.session, quorum=1))
    with pytest.raises(DataError, match=r"^the session allows sums over 3 sites; this site wants at least 4$"):
        opens(trial, trial.session, quorum=4)
    with pytest.raises(DataError, match=r"^the session names 5 sites, fewer than the 6 it wants$"):
        opens(trial, dataclasses.replace(trial.session, quorum=6))
    with pytest.raises(DataError, match=r"^a secure sum takes at least 3 clients; there are 2$"):
        Session.new(ABOUT, ABOUT, "update", dict(list(trial.peers.items())[:2]), 2, 60)


def test_another_unit_than_the_sites_own_is_refused() -> None:
    """A server that could choose it would learn from refusals how large a site's numbers are."""
    trial = ready()
    with pytest.raises(DataError, match=r"^the session has 100 bits behind the point; this site has 60$"):
        opens(trial, dataclasses.replace(trial.session, fraction=100))


def test_too_few_neighbours_get_no_part() -> None:
    trial = ready()
    some = dict(list(trial.introduced(trial.names[0]).items())[:2])
    with pytest.raises(DataError, match=r"^only 2 neighbours opened, and 3 of 4 are needed; nothing was sent$"):
        meets(trial, some)


def test_lists_of_the_counted_that_cannot_be_are_refused() -> None:
    """Who is gone follows from who is counted: lists that overlap cannot even be written."""
    trial = masked()
    me, *others = trial.names
    cases: dict[str, list[str]] = {
        "must name sites of the session": [*trial.names, "stranger"],
        "in order and each once": [*trial.names, trial.names[-1]],
        "without this site": others,
        "over 2 sites, fewer than the quorum of 3": [me, others[0]],
        "2 neighbours of 'site-0000' are in the sum, and 3 are needed": [me, *others[:2]],
    }
    for words, counted in cases.items():
        with pytest.raises(DataError, match=words):
            protocol.unmask(trial.session, trial.members[me], trial.private[me], counted, Journal())


def test_nothing_is_told_before_a_part_was_sent_or_of_whom_was_never_met() -> None:
    trial = ready()
    with pytest.raises(DataError, match=r"^there is nothing to unmask: this site has sent no part$"):
        tells(trial, trial.names)
    me = trial.names[0]
    some = {name: each for name, each in trial.introduced(me).items() if name != trial.names[-1]}
    trial.private[me], _ = protocol.meet(trial.session, trial.members[me], trial.private[me], some)
    with pytest.raises(DataError, match=r"^'site-0004' is said to be in the sum, and was never introduced"):
        tells(trial, trial.names)


def test_a_neighbouring_roster_is_refused() -> None:
    trial = masked(7)
    me = trial.names[0]
    trial.journals[me] = Journal().noted("update", trial.names)
    with pytest.raises(
        DataError, match=r"^the sum would differ from an earlier one over the same data by 1 site \(site-0006\)"
    ):
        tells(trial, trial.names[:-1])
    tells(trial, trial.names)
    other = Trial(7)
    other.session = dataclasses.replace(other.session, purpose="evaluate")
    other.open(other.names)
    other.mask(other.names)
    other.journals[me] = trial.journals[me]
    other.unmask([me], other.names[:-1])  # of something else there was no sum yet
    assert set(other.journals[me].sums) == {"update", "evaluate"}


def test_a_lying_server_never_gets_both_secrets_without_colluders() -> None:
    """It tells some that a site is in the sum and others that it is gone: one of two thresholds is out of reach."""
    for sites in range(3, 12):
        degree = graph.degree(sites)
        told_there = degree.threshold
        told_gone = degree.neighbours - told_there
        assert told_gone < degree.threshold


def test_wrong_shares_are_noticed() -> None:
    trial = masked()
    trial.unmask(trial.names, trial.names)
    victim = trial.names[1]
    for teller in trial.told:
        if victim in trial.told[teller]:
            trial.told[teller][victim] = bytes(shares.SIZE - 1) + b"\1"
    with pytest.raises(DataError, match=r"^the shares of the mask of 'site-0001' do not fit together"):
        trial.sum(trial.names)


def test_no_secret_is_shown() -> None:
    trial = masked(4)
    me = trial.names[0]
    text = repr([trial.members[me], trial.private[me], trial.openings[me], trial.members[me].identity])
    secrets = [trial.private[me].key, trial.private[me].seed, trial.members[me].identity.to_bytes()[:32]]
    assert all(secret.hex() not in text and repr(secret)[2:-1] not in text for secret in secrets)


def test_sessions_and_identities_come_back_from_text() -> None:
    trial = Trial(3)
    assert Session.from_text(trial.session.to_text()) == trial.session
    identity = trial.members[trial.names[0]].identity
    assert keys.Identity.from_bytes(identity.to_bytes()).public == identity.public


@pytest.mark.parametrize(
    ("name", "value"),
    [("run", "x"), ("run", 1), ("roster", ["b", "a"]), ("roster", ["a", "a"]), ("roster", "ab"), ("threshold", -1),
     ("quorum", 2.0), ("quorum", True), ("fraction", 127), ("purpose", 3), ("purpose", "figures"), ("more", 1)],
)  # fmt: skip
def test_sessions_of_strangers_are_refused(name: str, value: object) -> None:
    content = json.loads(Trial(3).session.to_text()) | {name: value}
    with pytest.raises(DataError, match=r"session"):
        Session.from_text(json.dumps(content))


def test_a_point_of_small_order_is_no_key() -> None:
    with pytest.raises(DataError, match=r"^a public key of another site is none$"):
        keys.agreed(keys.mask_key(keys.new_secret()), bytes(32))


def test_masks_are_those_of_the_cipher() -> None:
    """The same key stream by AES in electronic code book mode, counting by hand."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    seed, size = bytes(range(32)), (1 << 14) + 3
    total = np.zeros((2, size), np.uint64)
    keys.apply_masks(total, [seed])
    book = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    stream = book.update(b"".join(count.to_bytes(16, "big") for count in range(size)))
    words = np.frombuffer(stream, "<u8")
    first, rest = words[: 2 << 14].reshape(2, -1), words[2 << 14 :].reshape(2, -1)
    assert total.tobytes() == np.hstack([first, rest]).tobytes()
