"""One implementation of an op, as it is checked and timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from speechbrain_triton.bench.timing import Inputs

Outputs = torch.Tensor | tuple[torch.Tensor, ...]


def doubles(params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters in float64, with gradients of their own.

    Arguments
    ---------
    params : mapping of str to torch.Tensor
        The parameters by name.

    Returns
    -------
    dict of torch.Tensor
        In their order.
    """
    return {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in params.items()
    }


def under_autocast(
    forward: Callable[[torch.Tensor], torch.Tensor],
    device: str,
    dtype: torch.dtype,
) -> Callable[..., torch.Tensor]:
    """A module's forward as mixed precision runs it.

    Arguments
    ---------
    forward : callable
        Takes x; it has its parameters itself.
    device : str
        Whose autocast.
    dtype : torch.dtype
        Autocast's.

    Returns
    -------
    callable
        Takes x and parameters, which it does not use.
    """

    # The cache of casts must not outlive a graph that is captured; each
    # parameter is cast once a call, so that it would save nothing.
    def called(x, *_):
        with torch.autocast(device, dtype, cache_enabled=False):
            return forward(x)

    return called


@dataclass(frozen=True)
class ForwardVariant:
    """A forward without gradients.

    Arguments
    ---------
    forward : callable
        Takes x and returns one tensor or several.
    dtype : torch.dtype
        In which it computes.
    against : tuple of str
        See :class:`Variant`.
    """

    forward: Callable[[torch.Tensor], Outputs]
    dtype: torch.dtype
    against: tuple[str, str] = ("stock", "exact")

    def inputs(self, x: torch.Tensor) -> Inputs:
        """Bring x into this variant's dtype."""
        return (x.to(self.dtype),)

    def run_forward(self, x: torch.Tensor) -> Outputs:
        """Compute without autograd."""
        with torch.no_grad():
            return self.forward(x)

    def outcome(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute what the check compares."""
        y = self.run_forward(*self.inputs(x))
        if isinstance(y, torch.Tensor):
            return {"y": y}
        return {f"output {i}": output for i, output in enumerate(y)}


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
    against : tuple of str
        Names of the variants that it is compared with: what it may be twice
        as far off as, and float64's. The first of them is not checked itself.
    """

    forward: Callable[..., torch.Tensor]
    params: dict[str, torch.Tensor]
    channels_first: bool = False
    input_grad: bool = True
    against: tuple[str, str] = ("stock", "exact")

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


@dataclass(frozen=True)
class LossVariant:
    """A loss of each utterance, and the gradient of its logits.

    Arguments
    ---------
    forward : callable
        Takes logits, targets, frames and labels, and returns a value for each
        utterance.
    dtype : torch.dtype
        Of the logits that it is given.
    per_frame : bool
        Whether its values, but not its gradients, are divided by the frames.
    against : tuple of str
        See :class:`Variant`.
    """

    forward: Callable[..., torch.Tensor]
    dtype: torch.dtype
    per_frame: bool = False
    against: tuple[str, str] = ("twin", "exact")

    def inputs(
        self,
        logits: torch.Tensor,
        targets: torch.Tensor,
        frames: torch.Tensor,
        labels: torch.Tensor,
        dcost: torch.Tensor,
    ) -> Inputs:
        """Copy the logits, which a variant may destroy, as its own leaf.

        Arguments
        ---------
        logits : torch.Tensor
            (B, T, U + 1, V).
        targets : torch.Tensor
            (B, U).
        frames, labels : torch.Tensor
            Lengths (B,).
        dcost : torch.Tensor
            Gradient of the utterances' losses (B,).

        Returns
        -------
        tuple of torch.Tensor
            The five.
        """
        logits = logits.detach().to(self.dtype, copy=True)
        return logits.requires_grad_(), targets, frames, labels, dcost

    def run_forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Compute the values without autograd; dcost is not used."""
        with torch.no_grad():
            return self.forward(*inputs[:-1])

    def run_both(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
        """Compute the gradient of the logits."""
        return self._gradient(self.forward(*inputs[:-1]), inputs)

    def _gradient(self, cost, inputs):
        logits, *_, dcost = inputs
        return torch.autograd.grad(cost, logits, dcost.to(cost.dtype))

    def outcome(self, *drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute what the check compares: values are brought to -log p."""
        inputs = self.inputs(*drawn)
        alone = self.run_forward(*inputs)
        cost = self.forward(*inputs[:-1])
        (grad,) = self._gradient(cost, inputs)
        _, _, frames, *_ = inputs
        scale = frames.double() if self.per_frame else 1.0
        return {
            "y": cost.detach() * scale,
            "y without autograd": alone * scale,
            "the gradient of logits": grad,
        }


@dataclass(frozen=True)
class JointVariant:
    """The loss of a joint network, and the gradients of all that goes in.

    What is differentiated is the mean over utterances, as in training: whole
    batches' gradients can be had for less than each utterance's.

    Arguments
    ---------
    forward : callable
        Takes encoder, predictor, the parameters, targets, frames and labels,
        and by name ``reduction``: ``"mean"``, or ``"none"`` for a value of
        each utterance.
    params : dict
        The parameters by name.
    dtype : torch.dtype
        Of encoder and predictor.
    per_frame : bool
        Whether its values, but not its gradients, are divided by the frames,
        which are the same of all utterances.
    against : tuple of str
        See :class:`Variant`.
    """

    forward: Callable[..., torch.Tensor]
    params: dict[str, torch.Tensor]
    dtype: torch.dtype
    per_frame: bool = False
    against: tuple[str, str] = ("twin", "exact")

    def inputs(
        self,
        encoder: torch.Tensor,
        predictor: torch.Tensor,
        *labels: torch.Tensor,
    ) -> Inputs:
        """Bring encoder and predictor into this variant's dtype, as leaves.

        Arguments
        ---------
        encoder : torch.Tensor
            (B, T, J).
        predictor : torch.Tensor
            (B, U + 1, J).
        *labels : torch.Tensor
            Targets (B, U), and frames and labels (B,).

        Returns
        -------
        tuple of torch.Tensor
            The five.
        """
        encoder, predictor = (
            tensor.detach().to(self.dtype).requires_grad_()
            for tensor in (encoder, predictor)
        )
        return encoder, predictor, *labels

    def run_forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Compute the mean without autograd."""
        with torch.no_grad():
            return self._loss(inputs, "mean")

    def run_both(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the gradients of encoder, predictor and parameters."""
        return self._gradients(self._loss(inputs, "mean"), inputs)

    def _loss(self, inputs, reduction):
        joint, labels = inputs[:2], inputs[2:]
        return self.forward(
            *joint, *self.params.values(), *labels, reduction=reduction
        )

    def _gradients(self, loss, inputs):
        leaves = (*inputs[:2], *self.params.values())
        return torch.autograd.grad(loss, leaves)

    def outcome(self, *drawn: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute what the check compares: values are brought to -log p."""
        inputs = self.inputs(*drawn)
        with torch.no_grad():
            costs = self._loss(inputs, "none")
        mean = self._loss(inputs, "mean")
        grads = self._gradients(mean, inputs)
        names = ("encoder", "predictor", *self.params)
        frames = inputs[3][0].double() if self.per_frame else 1.0
        return {
            "the mean": mean.detach() * frames,
            "each utterance's loss without autograd": costs * frames,
            **{
                f"the gradient of {name}": grad
                for name, grad in zip(names, grads, strict=True)
            },
        }


AnyVariant = ForwardVariant | Variant | LossVariant | JointVariant
