"""Every method that says it learns numbers does, in the target's own units; the others refuse by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.errors import ParameterError
from fedsolve.method import Method
from fedsolve.methods import CATALOGUE, create

QUICK = {"rounds": 6, "model": "mlp:16", "batch": 16, "epochs": 3}


def method_of(name: str) -> Method:
    """A method with settings under which it is quick."""
    plain = create(name)
    if not plain.closed_form:
        return create(name, QUICK | ({"rounds": 12} if name in ("pfedme", "pfedzo") else {}))
    return create(name, {"intercept": True} if name in ("afl", "fedhip", "local") else {})


def federation(units: float = 1.0, shift: float = 0.0) -> fs.Federation:
    """Three clients with two numbers to predict, far from zero, of which the second is in other units."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(240, 5))
    y = np.array([40.0, -7.0]) + x @ rng.normal(size=(5, 2)) * [3.0, 0.5] + rng.normal(size=(240, 2)) * [0.5, 0.1]
    y = y * [1.0, units] + [shift, 0.0]
    parts = {f"c{i}": {"train": (x[i::3][:60], y[i::3][:60]), "test": (x[i::3][60:], y[i::3][60:])} for i in range(3)}
    return fs.Federation.from_arrays(parts, target=fs.Numbers(("pressure", "change")))


@pytest.mark.parametrize("name", CATALOGUE)
def test_numbers_are_learnt_or_refused(name: str) -> None:
    if not create(name).closed_form:
        pytest.importorskip("torch")
    method, fed = method_of(name), federation()
    if "numbers" not in method.targets:
        with pytest.raises(ParameterError, match=f"{name!r} learns classes"):
            fs.run(method, fed, workers=1)
        return
    if name in ("glm", "mixed"):
        pytest.skip("one number at a time")
    result = fs.run(method, fed, workers=1)
    assert result.metrics["rmse"].pooled is not None
    # Zeroth-order steps and envelopes go slowly; all must be well ahead of the mean.
    assert result.metrics["rmse"].pooled < 0.9 * result.baseline["rmse"]
    model = result.models["c1"]
    test = fed.clients["c1"].test
    assert model.predict(test.inputs).shape == (20, 2)
    errors = model.predict(test.inputs) - test.labels
    direct = np.sqrt(np.square(errors).mean(0)).mean()
    assert result.clients["c1"].metrics["rmse"] == pytest.approx(direct, rel=1e-9)


@pytest.mark.parametrize("name", ["afl", "fedhip", "local", "apfl", "fedprior", "fedacnnl", "pfedacnnl"])
def test_units_and_origins_of_a_target_are_the_users_affair(name: str) -> None:
    method = method_of(name)
    one, other = (fs.run(method, federation(*terms), workers=1) for terms in ((1.0, 0.0), (1e4, 300.0)))
    x = federation().clients["c0"].test.inputs
    for client in one.models:
        moved = one.models[client].predict(x) * [1.0, 1e4] + [300.0, 0.0]
        assert np.allclose(other.models[client].predict(x), moved, rtol=1e-8)


def test_the_page_of_methods_names_those_that_learn_classes_alone() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    sentence = page.partition("are learnt by all but")[2].partition("which learn classes alone")[0]
    assert set(re.findall("`([^`]+)`", sentence)) == {
        name for name in CATALOGUE if "numbers" not in create(name).targets
    }
