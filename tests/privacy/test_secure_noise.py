"""Noise that sites share under a secure sum: the server sees one noisy sum, and each site adds its share."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.features import maps

pytest.importorskip("cryptography", reason="pip install 'fedsolve[secure]'")


def federation() -> fs.Federation:
    return fs.load("digits").split("iid", clients=5).with_features(maps.parse("unit"))


@pytest.mark.parametrize("method", [fs.AFL(), fs.FedHiP(), fs.FedPrior()])
def test_shares_add_up_under_a_secure_sum(method: fs.Method) -> None:
    """Five sites, three of them honest, add 5/3 of the variance together; in plain each has to add all of it."""
    data = federation()
    plain = fs.run(method, data).state["cross"]

    def noise(**options: object) -> float:
        arrays = fs.run(method, data, **options).state["cross"]  # type: ignore[arg-type]
        return float(np.var(arrays - plain))

    shared = noise(secure=fs.Secure(quorum=3), noise=fs.Noise(epsilon=1.0, honest=3))
    alone = noise(noise=fs.Noise(epsilon=1.0))
    assert alone / shared == pytest.approx(3.0, rel=0.4)


def test_the_result_says_who_is_trusted() -> None:
    told = fs.run(fs.AFL(), federation(), secure=fs.Secure(quorum=3), noise=fs.Noise(epsilon=2.0, honest=3)).privacy
    assert (told["secure"], told["epsilon"], told["honest"], told["trusted"]) == (True, 2.0, 3, "a secure sum")
    with pytest.raises(fs.ParameterError, match="a secure sum"):
        fs.run(fs.AFL(), federation(), noise=fs.Noise(epsilon=2.0, honest=3))
    with pytest.raises(fs.ParameterError, match="take honest=3 at most"):  # before anything is sent
        fs.run(fs.AFL(), federation(), secure=fs.Secure(quorum=3), noise=fs.Noise(epsilon=2.0, honest=4))
