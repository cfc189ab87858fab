"""Plain PyTorch twin of the transducer loss with its joint network."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.transducer_loss.reference import (
    transducer_loss_reference,
)

NONLINEARITIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
}


def joint_logits(
    encoder: torch.Tensor,
    predictor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    nonlinearity: str,
) -> torch.Tensor:
    """Logits (B, T, U + 1, V) of a joint network that adds up its inputs.

    Arguments are those of :func:`transducer_joint_loss`.
    """
    joint = encoder.unsqueeze(2) + predictor.unsqueeze(1)
    return F.linear(NONLINEARITIES[nonlinearity](joint), weight, bias)


def transducer_joint_loss_reference(
    encoder: torch.Tensor,
    predictor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    logit_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *,
    nonlinearity: str = "tanh",
    blank: int = 0,
    reduction: str = "none",
    clamp: float = -1.0,
    fastemit_lambda: float = 0.0,
) -> torch.Tensor:
    """Transducer loss of all logits at once.

    Specification and test oracle of
    :func:`~speechbrain_triton.ops.transducer_joint_loss`, with the same
    arguments but ``backend`` and ``workspace``. It runs on any device, in
    float64 too.

    Example
    -------
    >>> encoder, predictor = torch.zeros(1, 3, 8), torch.zeros(1, 2, 8)
    >>> weight, targets = torch.zeros(4, 8), torch.tensor([[1]])
    >>> lengths = torch.tensor([3]), torch.tensor([1])
    >>> transducer_joint_loss_reference(
    ...     encoder, predictor, weight, None, targets, *lengths
    ... )
    tensor([4.4466])
    """
    return transducer_loss_reference(
        joint_logits(encoder, predictor, weight, bias, nonlinearity),
        targets,
        logit_lengths,
        target_lengths,
        blank=blank,
        reduction=reduction,
        clamp=clamp,
        fastemit_lambda=fastemit_lambda,
    )
