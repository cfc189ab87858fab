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
    """

    forward: Callable[..., torch.Tensor]
    params: dict[str, torch.Tensor]
    channels_first: bool = False

    def inputs(
        self, x: torch.Tensor, dy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Bring x and dy, both (B, T, C), into this variant's form.

        Arguments
        ---------
        x : torch.Tensor
            Input.
        dy : torch.Tensor
            Gradient of the output.

        Returns
        -------
        tuple of torch.Tensor
            x, as a leaf that requires its gradient, and dy.
        """
        x = x.detach().to(next(iter(self.params.values())).dtype)
        x, dy = (self.turned(tensor).contiguous() for tensor in (x, dy))
        return x.requires_grad_(), dy

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
        """Compute the gradients of x and of all parameters."""
        y = self.forward(x, *self.params.values())
        return torch.autograd.grad(y, (x, *self.params.values()), dy)

    def outcome(
        self, x: torch.Tensor, dy: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Compute all that the check compares.

        Arguments
        ---------
        x : torch.Tensor
            (B, T, C), the input.
        dy : torch.Tensor
            (B, T, C), the gradient of the output.

        Returns
        -------
        dict of torch.Tensor
            y with autograd and without, dx and the parameters' gradients, by
            the names that a message gives them.
        """
        x, dy = self.inputs(x, dy)
        alone = self.run_forward(x, dy)
        y = self.forward(x, *self.params.values())
        leaves = (x, *self.params.values())
        dx, *grads = torch.autograd.grad(y, leaves, dy.to(y.dtype))
        return {
            "y": self.turned(y.detach()),
            "y without autograd": self.turned(alone),
            "dx": self.turned(dx),
            **{
                f"the gradient of {name}": grad
                for name, grad in zip(self.params, grads, strict=True)
            },
        }
