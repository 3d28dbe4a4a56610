"""MLflow: runs of an experiment, in a folder on this machine or at a tracking server that the user names."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsolve import disk
from fedsolve.errors import ParameterError
from fedsolve.tracking.figures import Scalar
from fedsolve.tracking.log import End

FOLDER = "mlruns"
SWITCHES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it would tell its makers how it is used
    "MLFLOW_ALLOW_FILE_STORE": "true",  # newer versions would rather have a database, which takes further packages
}
LONGEST = 500  # characters of a parameter, which older servers take
_AT_ONCE = 100  # parameters or figures in a request, by MLflow's rules
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


@dataclass(frozen=True, slots=True)
class MLflow:
    """Runs in MLflow: figures by round, settings as parameters, where the result lies as the tag `fedsolve.result`.

    `where` is a folder, or an address that MLflow knows: sqlite:///runs.db, or that of a server. By default it is what
    MLFLOW_TRACKING_URI says, else the folder mlruns. MLflow's telemetry is off unless the environment says otherwise.
    """

    where: str = ""
    experiment: str = "fedsolve"

    def check(self) -> None:
        """Refuse to begin where the library is not there."""
        for name, value in SWITCHES.items():  # read when MLflow is imported
            os.environ.setdefault(name, value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what it has to say to its own developers
                import mlflow  # noqa: F401
        except ModuleNotFoundError as missing:
            raise ParameterError("tracking with MLflow needs it: pip install 'fedsolve[mlflow]'") from missing

    def open(self, name: str) -> _Run:
        """A new run of the experiment, which is made where there is none."""
        self.check()
        return _Run(self._address(), self.experiment, name)

    def _address(self) -> str:
        where = self.where or os.environ.get("MLFLOW_TRACKING_URI", "") or FOLDER
        if "://" in where or where.startswith(("databricks", "file:")):
            return where
        disk.check_writable(Path(where) / "run")
        return Path(where).absolute().as_uri()


class _Run:
    """A run in MLflow. The client is told where it is, so that nothing global changes."""

    def __init__(self, address: str, experiment: str, name: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=address)
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._id = self._client.create_run(number, run_name=name).info.run_id

    def settings(self, values: Mapping[str, Scalar]) -> None:
        from mlflow.entities import Param

        told = [Param(name, str(value)[:LONGEST]) for name, value in values.items()]
        for first in range(0, len(told), _AT_ONCE):
            self._client.log_batch(self._id, params=told[first : first + _AT_ONCE])

    def round(self, number: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        told = [Metric(name, value, now, number) for name, value in values.items()]
        for first in range(0, len(told), _AT_ONCE):
            self._client.log_batch(self._id, metrics=told[first : first + _AT_ONCE])

    def result(self, values: Mapping[str, float], place: str) -> None:
        self.round(int(values["final/rounds"]), values)
        if place:
            self._client.set_tag(self._id, "fedsolve.result", place)

    def close(self, end: End) -> None:
        self._client.set_terminated(self._id, _STATUS[end])
