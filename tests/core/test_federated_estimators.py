"""FederatedClassifier and FederatedRegressor under scikit-learn's contract, in pipelines and searches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import fedsolve as fs
from fedsolve.errors import ParameterError
from fedsolve.study.federated import FederatedClassifier, FederatedRegressor


def _check_name(check: Any) -> str:
    return str(getattr(check, "func", check).__name__)


ESTIMATORS = [FederatedClassifier(), FederatedRegressor(), FederatedRegressor(fs.AFL())]
CHECKS: list[Any] = []
if hasattr(estimator_checks, "estimator_checks_generator"):  # the checks of scikit-learn before 1.6 are others
    CHECKS = [pair for each in ESTIMATORS for pair in estimator_checks.estimator_checks_generator(each)]


@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=[f"{e!r}-{_check_name(c)}" for e, c in CHECKS])
def test_scikit_learns_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def wards() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three owners whose numbers have a shift of their own."""
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(150, 3)), np.repeat(["a", "b", "c"], 50)
    y = x @ [1.0, -2.0, 0.5] + np.repeat([0.0, 4.0, -4.0], 50) + 0.1 * rng.normal(size=150)
    return x, y, owner


def test_personal_models_answer_for_their_owners_and_the_global_one_for_strangers() -> None:
    x, y, owner = wards()
    regressor = FederatedRegressor(fs.FedHiP()).fit(x, y, client=owner)
    result = regressor.result_
    direct = np.concatenate([result.models[name].predict(x[owner == name]) for name in "abc"])
    assert np.array_equal(regressor.predict(x, client=owner), direct)
    assert result.shared is not None
    assert np.array_equal(regressor.predict(x[:5], client=["z"] * 5), result.shared.predict(x[:5]))
    assert np.array_equal(regressor.predict(x[:5]), result.shared.predict(x[:5]))
    assert regressor.score(x, y, client=owner) > 0.9 > regressor.score(x, y)


def test_the_same_as_a_run_from_arrays() -> None:
    x, y, owner = wards()
    labels = (y > 0).astype(np.int64)
    classifier = FederatedClassifier(fs.AFL()).fit(x, np.where(labels, "well", "ill"), client=owner)
    parts = {name: {"train": (x[owner == name], labels[owner == name])} for name in "abc"}
    direct = fs.run(fs.AFL(), fs.Federation.from_arrays(parts, classes=2)).shared
    assert direct is not None
    assert classifier.classes_.tolist() == ["ill", "well"]
    assert np.allclose(classifier.predict_proba(x), direct.predict_proba(x))
    assert classifier.predict(x).tolist() == np.where(direct.predict(x), "well", "ill").tolist()


def test_pipelines_and_searches_pass_owners_on() -> None:
    x, y, owner = wards()
    pipe = make_pipeline(StandardScaler(), FederatedRegressor())
    pipe.fit(x, y, federatedregressor__client=owner)
    assert list(pipe[-1].result_.models) == ["a", "b", "c"]
    grid = {"method": [fs.AFL(ridge=ridge) for ridge in (0.0, 1e6)]}
    search = GridSearchCV(FederatedRegressor(), grid, cv=3).fit(x, y, client=owner)
    assert search.best_params_["method"] == fs.AFL(ridge=0.0)
    assert clone(search.best_estimator_).get_params()["method"] == fs.AFL(ridge=0.0)


def test_what_cannot_be_answered_is_said() -> None:
    x, y, owner = wards()
    local = FederatedRegressor(fs.Local()).fit(x, y, client=owner)
    with pytest.raises(ParameterError, match="client="):
        local.predict(x)
    with pytest.raises(ParameterError, match="each of 150 rows"):
        FederatedRegressor().fit(x, y, client=owner[:3])
    several = FederatedRegressor().fit(x, np.column_stack([y, 2 * y]), client=owner)
    assert several.predict(x).shape == (150, 2)
