"""Plain PyTorch twin of the bias with ReLU behind it."""

import torch
import torch.nn.functional as F


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
    y = F.relu(x + bias)
    if lengths is None:
        return y
    frames = torch.arange(x.shape[1], device=x.device)
    outside = frames >= lengths.unsqueeze(1)  # [B, T]
    return y.masked_fill(outside[:, :, None, None], 0.0)
