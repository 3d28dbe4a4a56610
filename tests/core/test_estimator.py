"""A model as a scikit-learn classifier gives what the model gives, in scikit-learn's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.errors import DataError

from .tiny import COLUMNS, FRUITS, fruits


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


class Sure(fs.Model):
    """A model that offers probabilities."""

    def predict_proba(self, inputs: Any) -> np.ndarray:
        return softmax(self.scores(inputs))


class Unsure(fs.Model):
    """A model that offers none."""

    @property
    def predict_proba(self) -> Any:
        raise AttributeError("no probabilities")


def test_scikit_learn_takes_it(tmp_path: Path) -> None:
    from sklearn.inspection import permutation_importance
    from sklearn.metrics import accuracy_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    digits = fs.load("digits")
    model = fs.run(fs.FedHiP(intercept=True, beta=1.0), digits.split("dirichlet:0.5", clients=4)).models["client-01"]
    x, y = np.asarray(digits.inputs), digits.labels
    model.save(tmp_path / "m.safetensors")
    classifier = fs.estimator(tmp_path / "m.safetensors")
    assert classifier.score(x, y) == accuracy_score(y, model.predict(x))
    np.testing.assert_array_equal(make_pipeline(FunctionTransformer(), classifier).predict(x), model.predict(x))
    np.testing.assert_allclose(x @ classifier.coef_.T + classifier.intercept_, classifier.decision_function(x))
    assert permutation_importance(classifier, x[:50], y[:50], n_repeats=2, random_state=0).importances.shape == (64, 2)
    with pytest.raises(DataError, match="trained already"):
        classifier.fit(x, y)


def test_pictures_as_rows_get_their_shape_back() -> None:
    x = np.random.default_rng(0).normal(size=(30, 4, 5))
    table = fs.Table.make("squares", x, np.arange(30) % 3)
    model = fs.run(fs.AFL(ridge=1.0, intercept=False), table.split("iid", clients=2, test=0)).shared
    assert model is not None
    classifier = fs.estimator(model)
    assert classifier.n_features_in_ == 20
    np.testing.assert_array_equal(classifier.decision_function(x.reshape(30, 20)), model.scores(x))
    np.testing.assert_array_equal(classifier.predict(x), model.predict(x))


# --- the order of classes ---


def test_two_classes() -> None:
    from sklearn.calibration import CalibratedClassifierCV

    frozen = pytest.importorskip("sklearn.frozen", reason="scikit-learn has no frozen estimators before 1.6")

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    y = (x[:, 0] > 0).astype(int)
    federation = fs.Federation.from_arrays({"a": {"train": (x, y)}}, class_names=["well", "ill"])
    model = fs.run(fs.AFL(intercept=True, ridge=0.0), federation).models["a"]
    classifier = fs.estimator(model)
    assert set(classifier.predict(x)) == {"well", "ill"}
    assert classifier.classes_.tolist() == ["ill", "well"]
    lead = classifier.decision_function(x)  # of "well", which comes second
    assert lead.shape == (200,)
    np.testing.assert_array_equal(lead > 0, classifier.predict(x) == "well")
    names = np.array(["well", "ill"])[y]
    calibrated = CalibratedClassifierCV(frozen.FrozenEstimator(classifier)).fit(x, names)
    assert calibrated.score(x, names) > 0.9


def test_every_column_belongs_to_its_class_though_the_model_has_them_in_another_order() -> None:
    model, x, truth = fruits()
    classifier = fs.estimator(model)
    assert classifier.classes_.tolist() == sorted(FRUITS)
    np.testing.assert_array_equal(classifier.predict(x), truth)
    scores = classifier.decision_function(x)
    np.testing.assert_array_equal(classifier.classes_[scores.argmax(axis=1)], truth)
    for column, name in enumerate(classifier.classes_):
        np.testing.assert_array_equal(scores[:, column], model.scores(x)[:, FRUITS.index(name)])
    np.testing.assert_allclose(x @ classifier.coef_.T + classifier.intercept_, scores, rtol=1e-9, atol=1e-12)
    assert classifier.score(x, truth) == 1.0


# --- probabilities ---


def test_probabilities_have_the_columns_of_their_classes() -> None:
    from sklearn.metrics import log_loss

    model, x, truth = fruits()
    classifier = fs.estimator(Sure(model.method, model.task, model.arrays, model.owner))
    shares = classifier.predict_proba(x)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    for column, name in enumerate(classifier.classes_):
        np.testing.assert_allclose(shares[:, column], softmax(model.scores(x))[:, FRUITS.index(name)])
    assert log_loss(truth, shares, labels=classifier.classes_) < np.log(3)


def test_probabilities_exist_only_where_the_model_offers_them() -> None:
    model, x, _ = fruits()
    assert hasattr(fs.estimator(model), "predict_proba") == hasattr(model, "predict_proba")
    classifier = fs.estimator(Unsure(model.method, model.task, model.arrays, model.owner))
    assert not hasattr(classifier, "predict_proba")
    with pytest.raises(AttributeError):
        classifier.predict_proba(x)


# --- the order of columns ---


def test_columns_of_a_frame_are_taken_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    model, x, truth = fruits()
    classifier = fs.estimator(model)
    frame = pandas.DataFrame(x, columns=list(COLUMNS))
    reverse = frame[list(reversed(COLUMNS))]
    for each in (frame, reverse):
        np.testing.assert_array_equal(classifier.predict(each), truth)
        np.testing.assert_array_equal(classifier.decision_function(each), classifier.decision_function(x))
    assert classifier.score(reverse, truth) == 1.0
    sure = fs.estimator(Sure(model.method, model.task, model.arrays, model.owner))
    np.testing.assert_array_equal(sure.predict_proba(reverse), sure.predict_proba(x))


def test_a_frame_with_other_columns_is_refused_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    model, x, _ = fruits()
    classifier = fs.estimator(model)
    frame = pandas.DataFrame(x, columns=list(COLUMNS))
    for ask in (classifier.predict, classifier.decision_function):
        with pytest.raises(DataError, match=r"X must have the 4 columns .*; missing: acid$"):
            ask(frame.drop(columns="acid"))
        with pytest.raises(DataError, match=r"; not among them: taste$"):
            ask(frame.assign(taste=1.0))


def test_the_names_of_columns_are_where_scikit_learn_looks_for_them() -> None:
    from sklearn.utils.validation import check_is_fitted

    model, _, _ = fruits()
    classifier = fs.estimator(model)
    check_is_fitted(classifier)
    assert classifier.feature_names_in_.tolist() == list(COLUMNS)
    assert classifier.feature_names_in_.dtype == object
    digits = fs.run(fs.AFL(ridge=0.0, intercept=False), fs.load("digits").split("iid", clients=2)).shared
    assert digits is not None
    assert not hasattr(fs.estimator(digits), "feature_names_in_")


def test_a_frame_goes_by_position_where_the_model_knows_no_names() -> None:
    pandas = pytest.importorskip("pandas")
    digits = fs.load("digits")
    model = fs.run(fs.AFL(ridge=0.0, intercept=False), digits.split("iid", clients=2)).shared
    assert model is not None
    x = np.asarray(digits.inputs)
    np.testing.assert_array_equal(fs.estimator(model).predict(pandas.DataFrame(x)), model.predict(x))
