"""Plain PyTorch twin of the depthwise convolution in two dimensions."""

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.casts import cast
from speechbrain_triton.ops.depthwise_conv2d.geometry import geometry_of
from speechbrain_triton.ops.frames import zeros_behind


def depthwise_conv2d_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: str = "same",
    relu: str | None = None,
    input_bias: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Depthwise convolution by ``torch.nn.functional.conv2d``.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.depthwise_conv2d`, with the same arguments
    but ``backend``; it runs on any device, in any floating dtype, and
    supports double backward.

    Example
    -------
    >>> x, weight = torch.rand(2, 9, 8, 4), torch.rand(4, 1, 3, 3)
    >>> depthwise_conv2d_reference(x, weight, stride=2).shape
    torch.Size([2, 5, 4, 4])
    """
    stride = (stride, stride) if isinstance(stride, int) else tuple(stride)
    time, freq, _ = geometry_of(tuple(weight.shape[2:]), stride, padding)
    h = x
    if input_bias is not None:
        h = h + input_bias.to(x.dtype)
    if relu == "before":
        h = F.relu(h)
    h = zeros_behind(h, lengths)

    behind = 0 if padding == "causal" else time.pad
    h = F.pad(
        h.permute(0, 3, 1, 2), (freq.pad, freq.pad, time.pad, behind)
    )  # [B, C, T, F]
    y = F.conv2d(
        h,
        cast(weight, x.dtype),
        cast(bias, x.dtype),
        stride,
        groups=x.shape[3],
    )
    if relu == "after":
        y = F.relu(y)
    return y.permute(0, 2, 3, 1)
