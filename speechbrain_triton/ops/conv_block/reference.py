"""Plain PyTorch twin of the convolution block."""

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.casts import cast
from speechbrain_triton.ops.depthwise_conv1d.reference import (
    depthwise_conv1d_reference,
)
from speechbrain_triton.ops.layer_norm.reference import layer_norm_reference


def conv_block_reference(
    h: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    glu_bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "swish",
    padding: str = "same",
    chunk_size: int | None = None,
) -> torch.Tensor:
    """Gated linear unit, depthwise convolution, layer norm, activation.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.conv_block`, with the same arguments but
    ``backend``.

    Example
    -------
    >>> h, weight = torch.rand(2, 20, 16), torch.rand(8, 1, 5)
    >>> ones, zeros = torch.ones(8), torch.zeros(8)
    >>> conv_block_reference(h, weight, None, ones, zeros).shape
    torch.Size([2, 20, 8])
    """
    if glu_bias is not None:
        h = h + glu_bias.to(h.dtype)
    u = depthwise_conv1d_reference(
        F.glu(h, dim=-1),
        cast(weight, h.dtype),
        cast(bias, h.dtype),
        padding=padding,
        chunk_size=chunk_size,
    )
    return layer_norm_reference(
        u, norm_weight, norm_bias, eps=eps, activation=activation
    )
