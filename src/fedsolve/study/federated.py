"""Federations as scikit-learn estimators: rows with an owner each in, a model for all and one for each owner out."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from fedsolve.arrays import Array
from fedsolve.data.federation import Federation
from fedsolve.data.target import Classes, Numbers, Target
from fedsolve.errors import ParameterError
from fedsolve.method import Method
from fedsolve.model import Model
from fedsolve.result import Result
from fedsolve.runtime.inprocess import run

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn below 1.6

    def validate_data(estimator: Any, *arrays: Any, **options: Any) -> Any:
        """What scikit-learn checks of inputs, as its older versions have it."""
        return estimator._validate_data(*arrays, **options)


ONE = "all"  # the owner of rows that have none
_E = TypeVar("_E", bound="_Federated")


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: rows become clients, a run trains them, and owners choose models."""

    def __init__(self, method: Method | None = None, *, seed: int = 0) -> None:
        self.method = method
        self.seed = seed

    def _train(self: _E, X: Array, labels: NDArray[Any], target: Target, client: ArrayLike | None) -> _E:
        owners = _owners(client, len(X))
        self.clients_, places = np.unique(owners, return_inverse=True)
        rows = {str(name): np.flatnonzero(places == number) for number, name in enumerate(self.clients_)}
        if len(rows) < len(self.clients_):
            raise ParameterError("clients must differ as texts; 1 and '1' do not")
        parts = {name: {"train": (X[mine], labels[mine])} for name, mine in rows.items()}
        federation = Federation.from_arrays(parts, target=target)
        self.result_: Result = run(_method(self.method), federation, seed=self.seed)
        return self

    def _outputs(self, X: ArrayLike, client: ArrayLike | None) -> tuple[Array, list[tuple[Model, NDArray[np.int64]]]]:
        """Checked rows, and which of them each model answers."""
        check_is_fitted(self, "result_")
        x: Array = validate_data(self, X, reset=False, dtype=np.float64)
        if client is None:
            return x, [(self._common(), np.arange(len(x)))]
        owners = _owners(client, len(x)).astype(np.str_)
        models = self.result_.models
        found = [
            (models[name], np.flatnonzero(owners == name)) for name in np.unique(owners).tolist() if name in models
        ]
        strangers = np.flatnonzero(~np.isin(owners, list(models)))
        return x, found + ([(self._common(), strangers)] if len(strangers) else [])

    def _common(self) -> Model:
        """The model for rows of nobody in particular: the global one, or the only one."""
        models = self.result_.models
        if self.result_.shared is not None:
            return self.result_.shared
        if len(models) == 1:
            return next(iter(models.values()))
        raise ParameterError(f"{self.result_.method} has no model for everybody: say whose rows these are, by client=")

    def _scores(self, X: ArrayLike, client: ArrayLike | None, *, shares: bool = False) -> Array:
        x, models = self._outputs(X, client)
        parts = [(rows, model.predict_proba(x[rows]) if shares else model.scores(x[rows])) for model, rows in models]
        outputs = np.empty((len(x), parts[0][1].shape[1]))
        for rows, values in parts:
            outputs[rows] = values
        return outputs


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A federated method as a scikit-learn classifier: in pipelines, in searches over settings, in scorers.

    `fit` takes the owner of each row beside inputs and labels; without, all rows are one client's. `predict` and the
    others take them too: rows of a known client are answered by its personal model, rows of anybody else by the
    global one.

    >>> import fedsolve as fs
    >>> table = fs.load("digits")
    >>> wards = np.arange(len(table.labels)) % 5
    >>> classifier = FederatedClassifier(fs.FedHiP()).fit(table.inputs, table.labels, client=wards)
    >>> classifier.score(table.inputs, table.labels, client=wards) > 0.9, list(classifier.result_.models)[:2]
    (True, ['0', '1'])
    """

    def fit(self, X: ArrayLike, y: ArrayLike, client: ArrayLike | None = None) -> FederatedClassifier:
        """Train on rows, their labels and their owners."""
        x, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        return self._train(x, numbers.astype(np.int64), Classes(len(self.classes_)), client)

    def predict(self, X: ArrayLike, client: ArrayLike | None = None) -> NDArray[Any]:
        """The label of each row."""
        scores = self._scores(X, client)  # refuses where nothing was fitted
        return np.asarray(self.classes_[np.argmax(scores, axis=1)])

    def predict_proba(self, X: ArrayLike, client: ArrayLike | None = None) -> Array:
        """The probability of each class, one row per sample, in the order of `classes_`."""
        return self._scores(X, client, shares=True)

    def decision_function(self, X: ArrayLike, client: ArrayLike | None = None) -> Array:
        """Scores, one column per class; of two classes, as scikit-learn has it, the second's lead over the first."""
        scores = self._scores(X, client)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def score(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, client: ArrayLike | None = None
    ) -> float:
        """The accuracy."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, client=client), sample_weight=sample_weight))


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A federated method as a scikit-learn regressor, of one number or of several at once.

    >>> import fedsolve as fs
    >>> x = np.arange(40.0).reshape(20, 2) % 7
    >>> y = 3 + x @ [1.0, 2.0] + np.repeat([0.0, 5.0], 10)
    >>> wards = np.repeat(["a", "b"], 10)
    >>> regressor = FederatedRegressor(fs.FedHiP()).fit(x, y, client=wards)
    >>> regressor.score(x, y, client=wards) > regressor.score(x, y)
    True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _more_tags(self) -> dict[str, bool]:  # scikit-learn below 1.6
        return {"multioutput": True}

    def fit(self, X: ArrayLike, y: ArrayLike, client: ArrayLike | None = None) -> FederatedRegressor:
        """Train on rows, the numbers to predict and the rows' owners."""
        x, labels = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._one = labels.ndim == 1
        rows = labels.reshape(len(x), -1).astype(np.float64)
        return self._train(x, rows, Numbers(f"y{number}" for number in range(rows.shape[1])), client)

    def predict(self, X: ArrayLike, client: ArrayLike | None = None) -> Array:
        """The numbers that are predicted for each row."""
        outputs = self._scores(X, client)
        return outputs[:, 0] if self._one else outputs

    def score(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, client: ArrayLike | None = None
    ) -> float:
        """R2."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, client=client), sample_weight=sample_weight))


def _method(method: Method | None) -> Method:
    from fedsolve.methods import create

    return create("fedprior") if method is None else method


def _owners(client: ArrayLike | None, rows: int) -> NDArray[Any]:
    if client is None:
        return np.full(rows, ONE)
    owners = np.asarray(client)
    if owners.shape != (rows,):
        raise ParameterError(f"client names the owner of each of {rows} rows; got shape {owners.shape}")
    return owners if owners.dtype.kind in "iuU" else owners.astype(np.str_)
