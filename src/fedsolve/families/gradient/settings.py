"""What gradient methods share and needs no torch: their settings, and averages of models.

Methods import `networks` and `training` inside their functions, so that `fedsolve methods` lists them without torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsolve import parameters
from fedsolve.arrays import Array, Arrays, take, under
from fedsolve.errors import DataError, ParameterError
from fedsolve.families import widths
from fedsolve.method import Workers

EXAMPLES = (  # of `zoo`, in each form they have
    "lr", "mlp:128,64", "lenet5", "cnn", "cnn:16,32", "dcnn:64,128,256,256", "resnet18", "resnet18-gn", "vgg11",
)  # fmt: skip
MODELS = f"{', '.join(EXAMPLES)}, or package.module:factory"
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LOCAL = ("model", "rounds", "epochs", "batch", "lr", "sgd_momentum")  # settings that training alone has, too


def is_factory(spec: str) -> bool:
    """Whether a text names a network of the user's own, package.module:factory, and none of `zoo`.

    >>> is_factory("mlp:128,64"), is_factory("mynet:net")
    (False, True)
    """
    return widths.read(spec, EXAMPLES) is None


@dataclass(frozen=True)
class Training:
    """The settings of local training: mini-batch SGD with momentum, started anew in each round."""

    closed_form: ClassVar[bool] = False
    on_device: ClassVar[bool] = True
    # Dropout draws from torch's one generator, and Python's share of small batches is large.
    workers: ClassVar[Workers] = "processes"

    model: str = parameters.text("mlp:64", f"the network: {MODELS}", imports=is_factory)
    rounds: int = parameters.number(50, "rounds of local training and exchange", low=1, integer=True)
    epochs: int = parameters.number(2, "passes over the client's data in a round", low=1, integer=True)
    batch: int = parameters.number(64, "samples in a mini-batch", low=1, integer=True)
    lr: float = parameters.number(0.01, "learning rate", low=0)
    sgd_momentum: float = parameters.number(
        0.9, "momentum of SGD; its buffer starts at zero in each round", low=0, high=1
    )

    def __post_init__(self) -> None:
        parameters.check(self)
        check_model(self.model, type(self).__name__)

    @property
    def alone(self) -> Mapping[str, object] | None:
        """The same network, trained as long, by each client alone."""
        return {name: getattr(self, name) for name in _LOCAL}


def check_model(spec: str, owner: str) -> None:
    """Refuse a text that can stand for no network. Own factories are looked up when they are needed."""
    try:
        named = not is_factory(spec)
    except ParameterError as error:
        raise ParameterError(f"parameter 'model' of {owner}: {error}") from error
    if not named and not _FACTORY.fullmatch(spec):
        raise ParameterError(f"parameter 'model' of {owner} must be one of {MODELS}; got {spec!r}")


# --- models as they travel: tensors below "model/" ---


def sent(state: Arrays) -> dict[str, Array]:
    """What goes out of a server's state that holds one model."""
    return {name: array for name, array in state.items() if name.startswith("model/")}


def weighted(model: Arrays, loss: float, count: int) -> dict[str, Array]:
    """A reply to be summed: the model and its mean loss, times the number of samples behind them."""
    scaled = {name: array * array.dtype.type(count) for name, array in model.items()}
    return {**under("model", scaled), "loss": np.array(loss * count), "count": np.array(count)}


def average(replies: Arrays) -> dict[str, Array]:
    """FedAvg: w = sum n_k w_k / sum n_k over those that answered; beside it the mean training loss."""
    count = int(replies["count"])
    if count < 1:
        raise DataError(f"replies must come from at least one sample; got {count}")
    model = {name: array / array.dtype.type(count) for name, array in take("model", replies).items()}
    return {**under("model", model), "loss": np.array(float(replies["loss"]) / count)}


def told(loss: float, count: int) -> dict[str, Array]:
    """What a reply to be summed says of training, where no model is in it: the loss over samples, and their number."""
    return {"loss": np.array(loss * count), "count": np.array(count)}


def pooled_loss(replies: Arrays) -> Array:
    """The mean training loss over the samples of those that answered, of replies that were summed."""
    count = int(replies["count"])
    if count < 1:
        raise DataError(f"replies must come from at least one sample; got {count}")
    return np.array(float(replies["loss"]) / count)


def mean_loss(state: Arrays) -> dict[str, float]:
    """The mean training loss in a server's state, once clients have trained."""
    return {"loss": float(state["loss"])} if "loss" in state else {}
