"""How a gradient moves parameters: SGD with momentum, and Adam."""

from __future__ import annotations

from collections.abc import Callable

from fedsolve.families.gradient.networks import Tensors, like

# isort: split
# Behind networks, which says how to install torch where it is missing.
import torch

Step = Callable[[Tensors], None]  # moves parameters, given their gradients
Optimiser = Callable[[Tensors], Step]  # the step that moves these parameters, which remembers what it needs


def sgd(lr: float, momentum: float) -> Optimiser:
    """V <- momentum v + g; w <- w - lr v, for all tensors at once."""

    def of(parameters: Tensors) -> Step:
        if momentum == 0:
            return lambda gradients: torch._foreach_add_(parameters, gradients, alpha=-lr)
        velocity = [torch.zeros_like(tensor) for tensor in parameters]
        strides = [tensor.stride() for tensor in parameters]

        def step(gradients: Tensors) -> None:
            # The fused kernel reads memory as it lies, so a gradient must lie as its parameter does.
            alike = [
                g if g.stride() == stride else like(p, g)
                for p, g, stride in zip(parameters, gradients, strides, strict=True)
            ]
            torch._fused_sgd_(
                parameters, alike, velocity, weight_decay=0.0, momentum=momentum, lr=lr, dampening=0.0, nesterov=False,
                maximize=False, is_first_step=False,
            )  # fmt: skip

        return step

    return of


class Adam:
    """Kingma and Ba, "Adam", ICLR 2015, Algorithm 1; `decay` times a parameter is added to its gradient.

    Written here since torch.optim takes two seconds to load. `first` and `second` are its memory, with `count` steps.
    """

    def __init__(
        self,
        parameters: Tensors,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        decay: float = 0.0,
        epsilon: float = 1e-8,
    ) -> None:
        self._parameters, self._lr, self._betas = parameters, lr, betas
        self._decay, self._epsilon = decay, epsilon
        self.count = 0
        self.first = [torch.zeros_like(tensor) for tensor in parameters]
        self.second = [torch.zeros_like(tensor) for tensor in parameters]

    def __call__(self, gradients: Tensors) -> None:
        """One step, without writing to the gradients."""
        one, two = self._betas
        self.count += 1
        if self._decay:
            gradients = torch._foreach_add(gradients, self._parameters, alpha=self._decay)
        torch._foreach_lerp_(self.first, gradients, 1 - one)
        torch._foreach_mul_(self.second, two)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - two)
        spread = torch._foreach_sqrt(torch._foreach_div(self.second, 1 - two**self.count))
        torch._foreach_add_(spread, self._epsilon)
        torch._foreach_addcdiv_(self._parameters, self.first, spread, -self._lr / (1 - one**self.count))


def adam(lr: float, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0.0) -> Optimiser:
    """Adam that starts without a memory."""
    return lambda parameters: Adam(parameters, lr, betas, decay)
