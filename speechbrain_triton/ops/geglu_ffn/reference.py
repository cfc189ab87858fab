"""Plain PyTorch twin of the feed-forward block with GEGLU."""

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.geglu_linear.reference import (
    geglu_linear_reference,
)


def geglu_ffn_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor | None,
    *,
    approximate: str = "none",
    dropout: float = 0.0,
    seed: int | None = None,
) -> torch.Tensor:
    """The same by its twin of the first layer and PyTorch's second.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.geglu_ffn`, with the same arguments but
    ``backend``; it runs on any device, in any floating dtype, and supports
    double backward.

    Example
    -------
    >>> x = torch.rand(4, 100, 64)
    >>> weight, out_weight = torch.rand(512, 64), torch.rand(64, 256)
    >>> geglu_ffn_reference(x, weight, None, out_weight, None).shape
    torch.Size([4, 100, 64])
    """
    h = geglu_linear_reference(
        x, weight, bias, approximate=approximate, dropout=dropout, seed=seed
    )
    return F.linear(h, out_weight, out_bias)
