"""Plain PyTorch twin of the reflection padding."""

import torch
import torch.nn.functional as F


def reflection_pad2d_reference(
    x: torch.Tensor,
    pad: tuple[int, int],
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The same by ``torch.nn.functional.pad``.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.reflection_pad2d`, with the same arguments
    but ``backend``; it runs on any device, in any floating dtype, and supports
    double backward.

    Example
    -------
    >>> reflection_pad2d_reference(torch.zeros(2, 5, 3, 8), (1, 2)).shape
    torch.Size([2, 7, 7, 8])
    """
    frames, bins = pad
    x = x.to(x.dtype if dtype is None else dtype).permute(0, 3, 1, 2)
    x = F.pad(x, (bins, bins, frames, frames), mode="reflect")
    return x.permute(0, 2, 3, 1).contiguous()
