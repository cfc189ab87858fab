"""Plain PyTorch twin of the linear layer with GEGLU behind it."""

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.dropout import seeded_dropout

APPROXIMATIONS = ("none", "tanh")


def geglu_linear_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: str = "none",
    dropout: float = 0.0,
    seed: int | None = None,
) -> torch.Tensor:
    """The same by ``torch.nn.functional.linear`` and ``gelu``.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.geglu_linear`, with the same arguments but
    ``backend``; it runs on any device, in any floating dtype, and supports
    double backward.

    Example
    -------
    >>> x, weight = torch.rand(4, 100, 64), torch.rand(512, 64)
    >>> geglu_linear_reference(x, weight).shape
    torch.Size([4, 100, 256])
    """
    first, second = F.linear(x, weight, bias).chunk(2, -1)
    h = first * F.gelu(second, approximate=approximate)
    return seeded_dropout(h, dropout, seed)
