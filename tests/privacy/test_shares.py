"""Secrets in shares, and who has which: laws against slow second derivations."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from fedsolve.errors import DataError
from fedsolve.privacy import graph, shares
from fedsolve.privacy.journal import Journal, check_difference


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 4), st.randoms(use_true_random=False))
def test_any_shares_up_to_the_threshold_bring_back_the_secret(
    secret: bytes, threshold: int, more: int, rng: object
) -> None:
    parts = shares.split(secret, threshold, range(1, threshold + more + 1))
    some = rng.sample(sorted(parts), threshold)  # type: ignore[attr-defined]
    assert shares.join({point: parts[point] for point in some}, threshold) == secret
    with pytest.raises(DataError, match=r"are needed$"):
        shares.join({point: parts[point] for point in some[:-1]}, threshold)


def test_fewer_shares_fit_every_secret() -> None:
    """One share of two goes with any secret: through two points there is always a line."""
    part = shares.split(bytes(32), 2, [1, 2])[1]
    value = int.from_bytes(part, "big")
    for secret in (0, 1, 2**255):
        slope = (value - secret) % shares.PRIME
        other = ((secret + 2 * slope) % shares.PRIME).to_bytes(shares.SIZE, "big")
        assert shares.join({1: part, 2: other}, 2) == secret.to_bytes(32, "big")


def test_the_modulus_is_a_prime() -> None:
    odd, twos = shares.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin
        power = pow(base, odd, shares.PRIME)
        assert power == 1 or any(pow(power, 2**step, shares.PRIME) == shares.PRIME - 1 for step in range(twos))


@pytest.mark.parametrize("sites", [33, 40, 100, 500, 1000, 5000])
def test_bounds_of_large_graphs_hold(sites: int) -> None:
    found = graph.degree(sites)
    k, t, others = found.neighbours, found.threshold, sites - 1
    if k == others:
        assert found == graph._complete(sites)
        return
    corrupt, gone = -(-others // 20), -(-others // 10)
    assert sites * hypergeom.sf(2 * t - k - 1, others, corrupt, k) < 2.0**-40
    assert sites * hypergeom.sf(k - t, others, gone, k) < 2.0**-20
    assert sites * ((corrupt + gone) / others) ** (k / 2) < 2.0**-40


@pytest.mark.parametrize("sites", range(3, 33))
def test_small_graphs_are_complete_and_a_lying_server_needs_colluders(sites: int) -> None:
    found = graph.degree(sites)
    assert found.neighbours == sites - 1
    assert 2 * found.threshold > found.neighbours  # nobody's two secrets come together without a colluder
    assert found.colluders == max(c for c in range(-1, sites) if 2 * found.threshold > found.neighbours + c)


@pytest.mark.parametrize(("sites", "count"), [(5, 4), (40, 34), (200, 42)])
def test_neighbours_are_mutual_and_as_many_for_all(sites: int, count: int) -> None:
    roster = [f"s{number:04d}" for number in range(sites)]
    near = graph.neighbours(roster, count, b"session")
    assert set(near) == set(roster)
    for site, others in near.items():
        assert len(set(others)) == len(others) == count
        assert site not in others
        assert all(site in near[other] for other in others)
    if count < sites - 1:
        assert graph.neighbours(roster, count, b"another") != near


def test_sums_that_single_somebody_out_are_refused_and_others_not() -> None:
    everybody = "abcdefgh"
    for size in range(3, 9):
        for counted in itertools.combinations(everybody, size):
            apart = 8 - size
            if apart in (1, 2):
                with pytest.raises(DataError, match=r"^the sum would differ from an earlier one over the same data by"):
                    check_difference([everybody], counted, 3)
            else:
                check_difference([everybody], counted, 3)


def test_a_part_that_follows_from_three_sums_is_refused() -> None:
    """No two of the sums are near each other."""
    check_difference(["abcdef", "ghijkl"], "abcdefghijkl", 3)
    with pytest.raises(DataError, match=r"^the part of 'q' would follow from this sum and earlier ones"):
        check_difference(["abcdef", "ghijkl"], "abcdefghijklq", 3)


def test_a_journal_keeps_rosters_by_data() -> None:
    journal = Journal().noted("data", "abcd")
    journal.check("data", "abcd", 3)
    journal.check("other", "abc", 3)
    with pytest.raises(DataError, match=r"by 1 site"):
        journal.check("data", "abc", 3)
    assert Journal.from_text(journal.to_text()) == journal
    assert journal.noted("data", "dcba") is journal


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '{"a": [1]}', '{"a": [[1]]}', "x"])
def test_journals_of_strangers_are_refused(text: str) -> None:
    with pytest.raises(DataError):
        Journal.from_text(text)
