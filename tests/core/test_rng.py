from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsolve.rng import derive

PATHS = st.lists(st.one_of(st.text(max_size=4), st.integers(0, 30)), max_size=4)


@given(st.integers(0, 2**40), PATHS)
def test_same_path_same_draws(seed: int, path: list[str | int]) -> None:
    assert derive(seed, *path).random() == derive(seed, *path).random()


@given(st.tuples(st.integers(0, 30), PATHS), st.tuples(st.integers(0, 30), PATHS))
def test_different_paths_different_draws(one: tuple[int, list[str | int]], two: tuple[int, list[str | int]]) -> None:
    typed_one, typed_two = ([(type(p), p) for p in (seed, *path)] for seed, path in (one, two))
    equal = derive(one[0], *one[1]).random() == derive(two[0], *two[1]).random()
    assert equal == (typed_one == typed_two)


def test_draws_are_the_same_on_every_machine() -> None:
    assert derive(0, "update", "client-03", 7).integers(10**9) == 751557094
