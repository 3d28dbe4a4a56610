"""Between arrays and tensors: the only place where one becomes the other, and where the device is known.

Tensors are made on the device that `accelerator.current` names; arrays are always the CPU's. On the CPU neither is a
copy.
"""

from __future__ import annotations

from typing import Any

from fedsolve import accelerator
from fedsolve.arrays import Array
from fedsolve.errors import ParameterError

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as missing:
    raise ParameterError("gradient methods need torch: pip install 'fedsolve[torch]'") from missing


def here() -> torch.device:
    """The device that tensors are made on."""
    return torch.device(accelerator.current())


def tensor_of(array: Array) -> Tensor:
    """An array as a tensor on the device. On the CPU they share memory: copy what must not be written to."""
    return torch.from_numpy(array).to(here())


def array_of(tensor: Tensor) -> Array:
    """A tensor's values as an array, without its gradient. On the CPU they share memory."""
    found: Array = tensor.detach().cpu().numpy()
    return found


def draws() -> list[Tensor]:
    """Where torch's generators are: the CPU's, which first weights come from, and the device's."""
    found = [torch.default_generator.get_state()]
    return found if here().type == "cpu" else [*found, _accelerator().get_rng_state()]


def seed_draws(seed: int) -> None:
    """Seed torch's generators: the CPU's and the device's.

    Not by torch.manual_seed, which asks for every kind of accelerator, and takes longer than a small client's epoch.
    """
    torch.default_generator.manual_seed(seed)
    if here().type != "cpu":
        _accelerator().manual_seed(seed)


def redraw(states: list[Tensor]) -> None:
    """Put torch's generators to where they were."""
    torch.default_generator.set_state(states[0])
    for state in states[1:]:
        _accelerator().set_rng_state(state)


def check_doubles(what: str) -> None:
    """Refuse a device that has no double precision, for what needs it."""
    if here().type == "mps":
        raise ParameterError(f"{what} needs double precision, which the device 'mps' does not have; use cpu or cuda")


def _accelerator() -> Any:
    return getattr(torch, here().type)
