"""The cache of features is known by the content of the inputs: their bytes, and what the bytes mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsolve.features import cache
from fedsolve.features.backbone import Backbone
from fedsolve.features.images import Preparation


def corner(batch: np.ndarray) -> np.ndarray:
    """The shape of a picture, and the value of its last pixel."""
    last = batch[:, :, -1, -1].astype(np.float32)
    return np.column_stack([np.tile(np.array(batch.shape[2:], np.float32), (len(batch), 1)), last[:, :1]])


FEATURES = Backbone("corner", "the same", 3, Preparation(), corner)


@pytest.mark.parametrize(
    "views",
    [
        # The same bytes as pictures of other shapes, with other axes, and as other numbers.
        [np.arange(96, dtype=np.uint8).reshape(4, *shape) for shape in [(2, 4, 3), (4, 2, 3), (8, 3, 1), (4, 6)]],
        [np.arange(200, 212, dtype=np.uint8).reshape(1, 2, 2, 3), np.arange(200, 212, dtype=np.uint8).reshape(1, 4, 3)],
        [np.ones((2, 4, 4), np.uint8), np.ones((2, 4, 4), bool)],  # a byte of 1 is dark, a share of 1 white
    ],
)
def test_the_same_bytes_of_another_shape_or_type_are_other_inputs(
    views: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSOLVE_CACHE", str(tmp_path))
    assert len({cache._key(FEATURES, view) for view in views}) == len(views)
    for _ in range(2):  # computed, and from the cache
        for view in views:
            np.testing.assert_array_equal(cache.extract(FEATURES, view), FEATURES(view))


def test_numbers_of_one_size_are_told_apart_by_their_type() -> None:
    """255 as a byte is -1 as a signed one; the bytes are alike."""
    plain = np.full((2, 4, 4), 255, np.uint8)
    assert cache._key(FEATURES, plain) != cache._key(FEATURES, plain.view(np.int8))
    assert cache._key(FEATURES, plain) == cache._key(FEATURES, plain.copy(order="F"))
