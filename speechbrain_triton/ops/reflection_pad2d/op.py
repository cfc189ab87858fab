"""Reflection padding: the public function."""

import torch

from speechbrain_triton.backend import use_triton
from speechbrain_triton.ops.reflection_pad2d.autograd import (
    run_reflection_pad2d,
)
from speechbrain_triton.ops.reflection_pad2d.reference import (
    reflection_pad2d_reference,
)


def reflection_pad2d(
    x: torch.Tensor,
    pad: tuple[int, int],
    *,
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Pad in time and frequency with the mirror image of what is there.

    As ``torch.nn.ReflectionPad2d``, for channels that are last in memory,
    which PyTorch would bring in front and a convolution back again. A cast
    costs nothing beside it. Sums of gradients are taken in float32, in one
    fixed order. Derivatives of any order are supported.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, F, C) in float32, bfloat16 or float16 (float64 on the torch
        path).
    pad : tuple of int
        Frames and bins to add on each side: at least 0, less than T and F.
    dtype : torch.dtype, optional
        Of the result; by default x's.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (B, T + 2 pad[0], F + 2 pad[1], C), contiguous.

    Raises
    ------
    ValueError
        If x is not 4-dimensional, or ``pad`` is out of its range.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> x = torch.arange(3.0).view(1, 3, 1, 1)
    >>> reflection_pad2d(x, (2, 0)).flatten()
    tensor([2., 1., 0., 1., 2., 1., 0.])
    """
    if x.dim() != 4:
        raise ValueError(
            "x must be (batch, time, feature, channel), got shape "
            f"{tuple(x.shape)}."
        )
    for n, size in zip(pad, x.shape[1:3], strict=True):
        if not 0 <= n < size:
            raise ValueError(
                f"pad={pad!r} must be at least 0, and less than the "
                f"{tuple(x.shape[1:3])} frames and bins that are mirrored."
            )
    dtype = x.dtype if dtype is None else dtype
    if use_triton(backend, "reflection_pad2d", x.device, x.dtype):
        return run_reflection_pad2d(x, tuple(pad), dtype)
    return reflection_pad2d_reference(x, pad, dtype=dtype)
