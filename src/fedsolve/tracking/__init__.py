"""Runs in the trackers that people have: MLflow, TensorBoard and Weights & Biases. Each library is imported late.

A tracker is a value that says where runs are kept; a `Log` keeps one run in one or several of them. Nothing is sent
anywhere unless the user's own environment or WHERE names a server.
"""

from __future__ import annotations

from fedsolve.errors import ParameterError, unknown
from fedsolve.tracking.log import Log as Log
from fedsolve.tracking.log import Sink as Sink
from fedsolve.tracking.log import Tracker as Tracker
from fedsolve.tracking.mlflow import MLflow as MLflow
from fedsolve.tracking.tensorboard import TensorBoard as TensorBoard
from fedsolve.tracking.wandb import WandB as WandB

TRACKERS: dict[str, type[MLflow] | type[TensorBoard] | type[WandB]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}


def parse(text: str) -> MLflow | TensorBoard | WandB:
    """The tracker that a text stands for: its name, and behind a colon where it keeps runs.

    >>> parse("tensorboard:logs"), parse("mlflow")
    (TensorBoard(where='logs'), MLflow(where='', experiment='fedsolve'))
    """
    name, colon, where = text.partition(":")
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    if colon and not where:
        raise ParameterError(f"a tracker is NAME or NAME:WHERE, as in {name}:folder; got {text!r}")
    return TRACKERS[name](where)
