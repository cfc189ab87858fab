"""A bias and ReLU: the public function."""

import torch

from speechbrain_triton.backend import use_triton
from speechbrain_triton.ops.bias_relu.autograd import run_bias_relu
from speechbrain_triton.ops.bias_relu.reference import bias_relu_reference
from speechbrain_triton.ops.frames import whole_frames
from speechbrain_triton.ops.inputs import check_vector


def bias_relu(
    x: torch.Tensor,
    bias: torch.Tensor,
    lengths: torch.Tensor | None = None,
    *,
    backend: str = "auto",
) -> torch.Tensor:
    """Add a bias, rectify, and set to zero what is behind an utterance's end.

    What a layer without bias leaves to do, in one pass over memory forward
    and one backward, which sums the bias's gradient on its way. Only the
    result is kept for backward. Double backward is supported.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, F, C) in float32, bfloat16 or float16 (float64 on the torch
        path).
    bias : torch.Tensor
        (C,), of any floating dtype.
    lengths : torch.Tensor, optional
        Frames of each utterance (B,), whole numbers on x's device.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        Of x's shape and dtype.

    Raises
    ------
    ValueError
        For a shape that is not allowed.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> x, lengths = torch.rand(2, 10, 4, 8), torch.tensor([10, 6])
    >>> bias_relu(x, torch.ones(8), lengths)[1, 6:].any()
    tensor(False)
    """
    if x.dim() != 4:
        raise ValueError(
            "x must be (batch, time, feature, channel), got shape "
            f"{tuple(x.shape)}."
        )
    check_vector("bias", bias, x.shape[3], x)
    lengths = whole_frames(lengths, x)
    if use_triton(backend, "bias_relu", x.device, x.dtype):
        return run_bias_relu(x, bias, lengths)
    return bias_relu_reference(x, bias.to(x.dtype), lengths)
