"""One implementation of an op, as it is checked and timed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Variant:
    """A forward and its parameters.

    Arguments
    ---------
    forward : callable
        Takes x and the parameters, and returns y.
    params : dict
        The parameters by name. Their dtype is the one to which inputs are
        cast.
    channels_first : bool
        Whether x and y are (B, C, T) instead of (B, T, C).
    input_grad : bool
        Whether the gradient of x is computed, too.
    """

    forward: Callable[..., torch.Tensor]
    params: dict[str, torch.Tensor]
    channels_first: bool = False
    input_grad: bool = True

    def inputs(
        self, x: torch.Tensor, dy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Bring x and dy into this variant's form.

        Arguments
        ---------
        x : torch.Tensor
            Input, (B, T, C) or (B, T, F).
        dy : torch.Tensor
            Gradient of the output, channels last.

        Returns
        -------
        tuple of torch.Tensor
            x, as a leaf that requires its gradient if that is wanted, and dy.
        """
        x = x.detach().to(next(iter(self.params.values())).dtype)
        x, dy = (self.turned(tensor).contiguous() for tensor in (x, dy))
        return x.requires_grad_(self.input_grad), dy

    def turned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Exchange the last two axes where this variant has them so."""
        return tensor.transpose(1, 2) if self.channels_first else tensor

    def run_forward(self, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        """Compute y without autograd; dy is not used."""
        with torch.no_grad():
            return self.forward(x, *self.params.values())

    def run_both(
        self, x: torch.Tensor, dy: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Compute the gradients of all parameters, and of x if wanted."""
        y = self.forward(x, *self.params.values())
        return torch.autograd.grad(y, self._leaves(x), dy)

    def _leaves(self, x):
        parameters = tuple(self.params.values())
        return (x, *parameters) if self.input_grad else parameters

    def outcome(
        self, x: torch.Tensor, dy: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Compute all that the check compares.

        Arguments
        ---------
        x : torch.Tensor
            The input.
        dy : torch.Tensor
            The gradient of the output.

        Returns
        -------
        dict of torch.Tensor
            y with autograd and without, the parameters' gradients and dx, if
            wanted, by the names that a message gives them.
        """
        x, dy = self.inputs(x, dy)
        alone = self.run_forward(x, dy)
        y = self.forward(x, *self.params.values())
        grads = torch.autograd.grad(y, self._leaves(x), dy.to(y.dtype))
        result = {
            "y": self.turned(y.detach()),
            "y without autograd": self.turned(alone),
        }
        if self.input_grad:
            result["dx"] = self.turned(grads[0])
            grads = grads[1:]
        for name, grad in zip(self.params, grads, strict=True):
            result[f"the gradient of {name}"] = grad
        return result
