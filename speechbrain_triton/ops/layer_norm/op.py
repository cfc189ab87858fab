"""Layer normalisation: the public function."""

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.inputs import check_vector
from speechbrain_triton.ops.layer_norm.autograd import run_layer_norm
from speechbrain_triton.ops.layer_norm.reference import (
    ACTIVATIONS,
    layer_norm_reference,
)

# A program holds whole rows in registers.
MAX_CHANNELS = 8192


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float = 1e-5,
    activation: str = "none",
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Layer normalisation over channels, and an activation (Ba et al., 2016).

    Computed in float32 and rounded once, to ``dtype``: written in the dtype
    that the next matmul reads, it spares the float32 result that autocast
    would write and cast. Only x is kept for backward. Double backward is
    supported.

    Arguments
    ---------
    x : torch.Tensor
        (..., C) in float32, bfloat16 or float16 (float64 on the torch path),
        with 1 <= C <= 8192 channels on the Triton path.
    weight : torch.Tensor
        (C,).
    bias : torch.Tensor
        (C,).
    eps : float
        Added to the variance.
    activation : str
        ``"none"``, ``"swish"``, ``"gelu"`` (exact), ``"relu"`` or
        ``"leaky_relu"`` (of slope 0.01).
    dtype : torch.dtype, optional
        Of the result; by default x's.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (..., C).

    Raises
    ------
    ValueError
        For a shape or option that is not allowed.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> x = torch.rand(4, 100, 64)
    >>> layer_norm(x, torch.ones(64), torch.zeros(64), activation="swish").shape
    torch.Size([4, 100, 64])
    """
    check_choice("activation", activation, tuple(ACTIVATIONS))
    C = x.shape[-1] if x.dim() else 0
    check_vector("weight", weight, C, x)
    check_vector("bias", bias, C, x)
    dtype = x.dtype if dtype is None else dtype
    obstacle = channels_obstacle(C)
    if not use_triton(backend, "layer_norm", x.device, x.dtype, obstacle):
        return layer_norm_reference(
            x, weight, bias, eps=eps, activation=activation, dtype=dtype
        )
    return run_layer_norm(x, weight, bias, float(eps), activation, dtype)


def channels_obstacle(C: int) -> str | None:
    """Say why the kernels do not take C channels, if they do not."""
    if C > MAX_CHANNELS:
        return f"the kernels take at most {MAX_CHANNELS} channels, not {C}"
    return None
