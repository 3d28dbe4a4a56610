"""Fixed point against exact rational arithmetic: sums are the exact ones, in any order, correctly rounded."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsolve import arrays as named
from fedsolve.errors import DataError
from fedsolve.privacy import fixed, packing

NUMBERS = st.one_of(
    st.floats(-1e15, 1e15),
    st.floats(-1e-10, 1e-10),
    st.sampled_from([0.0, -0.0, 2.0**-61, -(2.0**-61), 1.5 * 2.0**-60, 2.5 * 2.0**-60, 1.0, 2.0**53 + 2, -(2.0**60)]),
)
ROWS = st.lists(st.lists(NUMBERS, min_size=4, max_size=4), min_size=1, max_size=8)
FLOAT = np.dtype(np.float64)


def summed(rows: list[list[float]], fraction: int = 60) -> fixed.Words:
    total = np.zeros((2, 4), np.uint64)
    for row in rows:
        fixed.add(total, fixed.encode(np.array(row), fraction, len(rows), "x"))
    return total


def exact(numbers: list[float], fraction: int) -> Fraction:
    """The exact sum of the multiples of the unit."""
    unit = Fraction(1, 2**fraction)
    return sum((round(Fraction(number) / unit) for number in numbers), 0) * unit


@given(ROWS, st.integers(0, 63))
def test_a_sum_is_the_exact_one_correctly_rounded(rows: list[list[float]], fraction: int) -> None:
    found = fixed.decode(summed(rows, fraction), fraction, FLOAT, "x")
    assert found.tolist() == [float(exact(list(column), fraction)) for column in zip(*rows, strict=True)]


@given(ROWS)
def test_single_precision_is_rounded_once(rows: list[list[float]]) -> None:
    found = fixed.decode(summed(rows), 60, np.dtype(np.float32), "x")
    assert found.dtype == np.float32
    far = np.float32(np.inf)
    for value, column in zip(found, zip(*rows, strict=True), strict=True):
        whole = exact(list(column), 60)
        errors = [
            abs(Fraction(float(each)) - whole) for each in (np.nextafter(value, -far), value, np.nextafter(value, far))
        ]
        assert errors[1] == min(errors)


@given(ROWS, st.randoms(use_true_random=False))
def test_any_order_gives_the_same_bits_and_what_is_taken_away_leaves_no_trace(
    rows: list[list[float]], rng: object
) -> None:
    total = summed(rows)
    mixed = list(rows)
    rng.shuffle(mixed)  # type: ignore[attr-defined]
    assert summed(mixed).tobytes() == total.tobytes()
    for row in rows:
        fixed.subtract(total, fixed.encode(np.array(row), 60, len(rows), "x"))
    assert not total.any()


@given(st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=5), st.lists(st.integers(0, 2**128 - 1), min_size=5))
def test_words_add_and_subtract_modulo_two_to_the_128(left: list[int], right: list[int]) -> None:
    def words(values: list[int]) -> fixed.Words:
        return np.array([[value % 2**64 for value in values], [value >> 64 for value in values]], np.uint64)

    right = right[: len(left)]
    total = words(left)
    fixed.add(total, words(right))
    assert total.tolist() == words([(a + b) % 2**128 for a, b in zip(left, right, strict=True)]).tolist()
    fixed.subtract(total, words(right))
    fixed.subtract(total, words(right))
    assert total.tolist() == words([(a - b) % 2**128 for a, b in zip(left, right, strict=True)]).tolist()


@given(st.integers(-(2**127), 2**127 - 1))
@settings(max_examples=300)
def test_any_word_pair_is_read_as_the_nearest_number(value: int) -> None:
    words = np.array([[value % 2**64], [(value >> 64) % 2**64]], np.uint64)
    assert fixed.decode(words, 0, FLOAT, "x")[0] == float(value)


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_integers_come_back_as_they_are_in_their_type(kind: str) -> None:
    bounds = np.iinfo(kind)
    numbers = np.array([bounds.min, 0, 1, bounds.max // 2, bounds.max], kind)
    found = fixed.decode(fixed.encode(numbers, 60, 1000, "n"), 60, np.dtype(kind), "n")
    assert found.dtype == numbers.dtype
    assert found.tolist() == numbers.tolist()
    twice = fixed.encode(numbers, 60, 2, "n")
    fixed.add(twice, twice.copy())
    with pytest.raises(DataError, match=rf"^the sum of 'n' does not fit into {np.dtype(kind)}, the type that its"):
        fixed.decode(twice, 60, np.dtype(kind), "n")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_name(bad: float) -> None:
    with pytest.raises(DataError, match=r"^'gram' has values that are not finite$"):
        packing.pack({"gram": np.array([1.0, bad])}, 60, 3)


@given(st.integers(0, 126), st.integers(1, 2000))
def test_the_largest_numbers_add_without_wrapping_around_and_larger_ones_are_refused(
    fraction: int, parties: int
) -> None:
    bound = fixed.limit(fraction, parties)
    largest = np.nextafter(bound, 0)
    units = round(Fraction(float(largest)) * 2**fraction)
    assert units * parties < 2**127
    assert (
        fixed.decode(fixed.encode(np.array([largest, -largest]), fraction, parties, "x"), fraction, FLOAT, "x")[0] > 0
    )
    with pytest.raises(
        DataError, match=f"^'x' has values that do not fit: a secure sum over {parties} sites with {fraction} "
    ):
        fixed.encode(np.array([0.0, bound]), fraction, parties, "x")


@pytest.mark.parametrize("kind", [np.bool_, np.float16, np.complex128])
def test_types_that_do_not_add_up_are_refused_by_name(kind: type) -> None:
    with pytest.raises(DataError, match=f"^'mask' is {np.dtype(kind)}, and a secure sum adds"):
        packing.pack({"mask": np.zeros(2, kind)}, 60, 3)


def test_packed_arrays_come_back_with_names_types_and_shapes() -> None:
    rng = np.random.default_rng(0)
    reply = {
        "b/x": rng.integers(-(2**40), 2**40, size=(40, 500)) / 2**20,
        "a": np.array(7),
        "empty": np.zeros((0, 3)),
        "net": np.arange(3, dtype=np.float32) / 8,
        "order": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    }
    layout = named.layout(reply)
    found = packing.unpack(packing.pack(reply, 60, 3), layout, 60)
    assert named.same(found, {name: np.array(array, order="C") for name, array in reply.items()})
    assert packing.from_text(packing.to_text(layout)) == layout


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '[["a"]]',
        '[["a","<f2",[]]]',
        '[["a","<f8",[-1]]]',
        '[["b","<f8",[]],["a","<f8",[]]]',
        "nonsense",
        '[[1,"<f8",[]]]',
    ],
)
def test_layouts_of_strangers_are_refused(text: str) -> None:
    with pytest.raises(DataError):
        packing.from_text(text)
