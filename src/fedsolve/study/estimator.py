"""Saved models as scikit-learn classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if

from fedsolve.arrays import Array
from fedsolve.data.frames import in_columns
from fedsolve.errors import DataError
from fedsolve.model import Model, load_model
from fedsolve.study.linear import linear_map


def _has_probabilities(classifier: Classifier) -> bool:
    return hasattr(classifier.model, "predict_proba")


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A trained model as a scikit-learn classifier: in pipelines, scorers, calibration and plots.

    It is trained already; `fit` is there for scikit-learn and refuses. Labels are class names where the model has them.
    Inputs are arrays, or data frames, whose columns are taken by name where the model knows the names.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels, sorted as scikit-learn wants them: the order of the columns of `decision_function`."""
        return np.asarray(self._names[self._order])

    @property
    def _names(self) -> NDArray[Any]:
        task = self.model.task
        return np.array(task.class_names) if task.class_names else np.arange(task.classes)

    @property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self._names)

    @property
    def n_features_in_(self) -> int:
        """How many numbers an input has."""
        return int(np.prod(self.model.task.inputs))

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The names of the columns in the model's order; as in scikit-learn, only there if they have names."""
        if not self.model.task.feature_names:
            raise AttributeError(f"the model of {self.model.owner!r} was trained on columns without names")
        return np.array(self.model.task.feature_names, dtype=object)

    @property
    def coef_(self) -> Array:
        """The weights of a linear model, classes x features, in the order of `classes_`."""
        return np.ascontiguousarray(linear_map(self.model)[0].T[self._order])

    @property
    def intercept_(self) -> Array:
        """The intercept of each class of a linear model, in the order of `classes_`."""
        return np.asarray(linear_map(self.model)[1][self._order])

    def fit(self, X: ArrayLike, y: ArrayLike) -> Classifier:
        """Refuse: the federation has trained it."""
        raise DataError("this classifier is trained already; wrap it in sklearn.frozen.FrozenEstimator to keep it so")

    def decision_function(self, X: ArrayLike) -> Array:
        """Scores, one column per class; of two classes, as scikit-learn has it, the second's lead over the first."""
        scores = self.model.scores(self._inputs(X))[:, self._order]
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The label of each sample."""
        return np.asarray(self._names[self.model.predict(self._inputs(X))])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities, one column per class; only there if the model gives them."""
        model: Any = self.model
        return np.asarray(model.predict_proba(self._inputs(X))[:, self._order])

    def _inputs(self, X: ArrayLike) -> Array:
        """Rows as scikit-learn has them, in the order of columns and the shape that the model takes."""
        task = self.model.task
        x = in_columns(X, task.feature_names, "X")
        return x.reshape(len(x), *task.inputs) if x.ndim == 2 and -1 not in task.inputs else x


def estimator(model: Model | str | Path, *, features: str = "") -> Classifier:
    """A scikit-learn classifier from a model, or from the file of one; `features` is then as for `load_model`.

    >>> import fedsolve as fs
    >>> table = fs.load("digits")
    >>> result = fs.run(fs.FedHiP(), table.split("iid", clients=4))
    >>> classifier = fs.estimator(result.models["client-00"])
    >>> classifier.n_features_in_, classifier.classes_.tolist()
    (64, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    >>> classifier.score(table.inputs, table.labels) > 0.9
    True
    """
    return Classifier(model if isinstance(model, Model) else load_model(model, features=features))
