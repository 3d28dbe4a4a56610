from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from scipy.linalg import lapack
from threadpoolctl import threadpool_limits

from fedsolve import blas


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 31, 32])
def test_packing_against_scipy(size: int) -> None:
    full = np.random.default_rng(size).normal(size=(size, size))
    full = full + full.T
    triangle = blas.pack(full)
    np.testing.assert_array_equal(triangle, lapack.dtrttf(full, transr="N", uplo="L")[0])
    np.testing.assert_array_equal(blas.unpack(triangle, size), np.tril(full))
    np.testing.assert_array_equal(triangle[blas.packed_diagonal(size)], np.diagonal(full))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 3), (3, 8), (20, 9)])
def test_gram_adds_or_writes_over(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).normal(size=shape)
    out = np.full(blas.packed_size(shape[1]), 7.0)
    blas.gram(rows, out, add=True)
    np.testing.assert_allclose(blas.unpack(out, shape[1]), np.tril(rows.T @ rows + 7.0), atol=1e-12)
    blas.gram(rows, out, add=False)
    np.testing.assert_allclose(blas.unpack(out, shape[1]), np.tril(rows.T @ rows), atol=1e-12)


def test_factor_and_solves_against_numpy() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=(30, 6))
    full, right = a.T @ a, rng.normal(size=(6, 2))
    lower = np.asfortranarray(np.tril(full))
    factor = blas.cholesky(lower)
    assert factor is not None
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(full), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(blas.cholesky_solve(factor, right), np.linalg.solve(full, right), rtol=1e-10)
    np.testing.assert_allclose(np.tril(factor) @ blas.lower_solve(factor, right), right, rtol=1e-10)
    np.testing.assert_allclose(blas.symmetric_product(lower, right), full @ right, rtol=1e-12)
    np.testing.assert_array_equal(lower, np.tril(full))  # nothing was written to
    inverse = factor.copy(order="F")
    blas.invert(inverse)
    np.testing.assert_allclose(inverse, np.linalg.inv(np.linalg.cholesky(full)), rtol=1e-10, atol=1e-12)
    for transposed in (False, True):
        product = blas.lower_product(inverse, right, transposed=transposed)
        np.testing.assert_allclose(product, blas.lower_solve(factor, right, transposed=transposed), rtol=1e-10)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 5), (8, 8), (9, 7), (100, 33)])
def test_transposing_by_cache_lines(shape: tuple[int, int]) -> None:
    matrix, out = np.random.default_rng(0).normal(size=shape), np.full(shape[::-1], np.nan)
    blas.transpose(matrix, out)
    np.testing.assert_array_equal(out, matrix.T)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 64, 65, 130])
def test_norms_of_a_scaled_matrix_and_its_inverse(size: int) -> None:
    """The norm is exact; that of the inverse is never more than it is, and LAPACK's estimate or better."""
    rng = np.random.default_rng(size)
    a, scale = rng.normal(size=(2 * size, size)), 10.0 ** rng.uniform(-3, 3, size)
    lower = np.asfortranarray(np.tril(a.T @ a))
    full = scale[:, None] * (a.T @ a) * scale
    factor = blas.cholesky(lower)
    assert factor is not None
    found = blas.inverse_norm(factor, scale)
    if size == 0:
        assert blas.norm(lower, scale) == found == 0.0
        return
    norm, exact = np.linalg.norm(full, 1), np.linalg.norm(np.linalg.solve(full, np.eye(size)), 1)
    assert blas.norm(lower, scale) == pytest.approx(norm, rel=1e-12)
    lapacks, _ = lapack.dpocon(np.linalg.cholesky(full), norm, uplo="L")
    assert 0.999 / (norm * lapacks) <= found <= exact * 1.001


def test_the_norm_of_the_inverse_of_a_singular_matrix_is_past_all_bounds() -> None:
    factor = np.asfortranarray([[1.0, 0.0], [1.0, 1e-200]])
    assert not blas.inverse_norm(factor, np.ones(2)) < 1e300


def test_arrays_that_would_be_misread_are_refused_or_copied() -> None:
    raw = np.zeros(8 * 10 + 1, np.uint8)
    unaligned = raw[1:].view(np.float64)
    assert not unaligned.flags.aligned
    assert blas.unpack(unaligned, 4).shape == (4, 4)
    bad: Any
    for bad in (np.zeros((3, 2), np.float32), np.zeros((3, 4))[:, ::2]):
        with pytest.raises(TypeError, match="contiguous array of float64"):
            blas.gram(bad, np.zeros(3), add=False)


def test_cholesky_of_an_indefinite_matrix_is_none() -> None:
    assert blas.cholesky(np.asfortranarray(np.diag([1.0, -1.0]))) is None


def test_other_threads_run_meanwhile() -> None:
    """SciPy's own wrapper would hold the interpreter for the whole product."""
    rows = np.random.default_rng(0).normal(size=(20_000, 400))
    out = np.empty(blas.packed_size(400))
    with threadpool_limits(1, user_api="blas"):
        worker = threading.Thread(target=blas.gram, args=(rows, out), kwargs={"add": False})
        started = time.perf_counter()
        worker.start()
        turns = 0
        while worker.is_alive():
            turns += 1
            time.sleep(0.0005)
        assert time.perf_counter() - started > 0.005  # long enough to tell
    assert turns > 5


def test_reflections_are_those_of_a_qr_with_a_positive_diagonal() -> None:
    """Given the columns as they are when their turn comes, Q is that of the matrix they come from."""
    matrix = np.random.default_rng(2).normal(size=(7, 7))
    left, rows = matrix.copy(), np.zeros((7, 7))
    for k in range(7):
        rows[k, k:] = left[k:, k]
        turn = np.eye(7)
        if k < 6:
            axis = rows[k, k:].copy()
            axis[0] += np.copysign(np.linalg.norm(axis), axis[0])
            turn[k:, k:] -= 2.0 * np.outer(axis, axis) / (axis @ axis)
        left = turn @ left
    basis, triangle = np.linalg.qr(matrix)
    wanted = basis * np.sign(np.diagonal(triangle))
    np.testing.assert_allclose(blas.reflected(rows), wanted, rtol=0, atol=1e-13)
