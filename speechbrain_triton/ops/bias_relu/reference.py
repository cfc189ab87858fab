"""Plain PyTorch twin of the bias with ReLU behind it."""

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.frames import zeros_behind


def bias_relu_reference(
    x: torch.Tensor,
    bias: torch.Tensor,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same by ``torch.nn.functional.relu``.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.bias_relu`, with the same arguments but
    ``backend``; it runs on any device, in any floating dtype, and supports
    double backward.

    Example
    -------
    >>> bias_relu_reference(torch.zeros(2, 5, 3, 8), torch.ones(8)).shape
    torch.Size([2, 5, 3, 8])
    """
    return zeros_behind(F.relu(x + bias), lengths)
