"""Plain PyTorch twin of the front end's first two convolutions."""

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.frames import zeros_behind
from speechbrain_triton.ops.sizes import out_length


def conv_stem_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    depthwise_weight: torch.Tensor,
    depthwise_bias: torch.Tensor | None,
    *,
    stride: int = 2,
    padding: str = "same",
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The stem by ``torch.nn.functional.conv2d``.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.conv_stem`, with the same arguments but
    ``backend``; it runs on any device, in any floating dtype, and supports
    double backward.

    Example
    -------
    >>> x, weight = torch.rand(2, 20, 40), torch.rand(8, 1, 3, 3)
    >>> conv_stem_reference(x, weight, None, weight, None).shape
    torch.Size([2, 5, 10, 8])
    """
    C, _, K, _ = weight.shape
    x = zeros_behind(x, lengths)
    h = F.conv2d(_pad(x.unsqueeze(1), K, padding), weight, bias, stride)
    h = F.relu(h)  # [B, C, T1, F1]
    if lengths is not None:
        lengths = out_length(lengths, K, stride, padding)
        h = zeros_behind(h.transpose(1, 2), lengths).transpose(1, 2)
    y = F.conv2d(
        _pad(h, K, padding), depthwise_weight, depthwise_bias, stride, groups=C
    )
    return y.permute(0, 2, 3, 1)


def _pad(x: torch.Tensor, K: int, padding: str) -> torch.Tensor:
    """Zeros around x (B, C, T, F)."""
    if padding == "valid":
        return x
    side = (K - 1) // 2
    time = (K - 1, 0) if padding == "causal" else (side, side)
    return F.pad(x, (side, side, *time))
