"""Plain PyTorch twin of the depthwise convolution."""

import torch
import torch.nn.functional as F


def depthwise_conv1d_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    padding: str = "same",
    chunk_size: int | None = None,
    left_context: torch.Tensor | None = None,
) -> torch.Tensor:
    """Depthwise convolution by ``torch.nn.functional.conv1d``.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.depthwise_conv1d`, with the same arguments
    but ``backend``; it runs on any device, in any floating dtype, and
    supports double backward. With ``chunk_size`` each chunk is cut out with
    its left context and zeros in place of the future.

    Example
    -------
    >>> x, weight = torch.rand(2, 20, 8), torch.rand(8, 1, 5)
    >>> depthwise_conv1d_reference(x, weight, chunk_size=4).shape
    torch.Size([2, 20, 8])
    """
    C, _, K = weight.shape
    T = x.shape[1]
    left = {"same": (K - 1) // 2, "causal": K - 1, "valid": 0}[padding]
    right = 0 if padding == "valid" else K - 1 - left

    h = x.transpose(1, 2)  # [B, C, T]
    if left_context is None or left == 0:
        h = F.pad(h, (left, 0))
    else:
        context = left_context[:, -left:].transpose(1, 2)
        context = F.pad(context, (left - context.shape[2], 0))
        h = torch.cat((context, h), dim=2)

    if chunk_size is None:
        h = F.conv1d(F.pad(h, (0, right)), weight, bias, groups=C)
        return h.transpose(1, 2)

    chunk = min(chunk_size, T)
    h = F.pad(h, (0, -T % chunk)).unfold(2, left + chunk, chunk)
    h = F.pad(h, (0, right)).transpose(1, 2)  # [B, chunks, C, K - 1 + chunk]
    B, n_chunks = h.shape[:2]
    h = F.conv1d(h.flatten(0, 1), weight, bias, groups=C)
    h = h.unflatten(0, (B, n_chunks)).transpose(2, 3)
    return h.flatten(1, 2)[:, :T]
