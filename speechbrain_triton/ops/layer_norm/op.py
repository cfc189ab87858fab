"""Layer normalisation: autograd and the public function."""

from functools import partial

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.layer_norm.reference import (
    ACTIVATIONS,
    layer_norm_reference,
)
from speechbrain_triton.ops.twin import gradients_by_twin

# A program holds whole rows in registers.
MAX_CHANNELS = 8192


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps, activation, dtype):
        from speechbrain_triton.ops.layer_norm import launch

        ctx.save_for_backward(x, weight, bias)
        ctx.options = eps, activation, dtype
        return launch.launch_layer_norm(x, weight, bias, *ctx.options)

    @staticmethod
    def backward(ctx, dy):
        from speechbrain_triton.ops.layer_norm import launch

        inputs = ctx.saved_tensors
        eps, activation, dtype = ctx.options
        if torch.is_grad_enabled():
            twin = partial(
                layer_norm_reference,
                eps=eps,
                activation=activation,
                dtype=dtype,
            )
            needed = ctx.needs_input_grad[:3]
            grads = gradients_by_twin(twin, inputs, needed, dy)
            return *grads, None, None, None
        x, weight, bias = inputs
        dx, dweight, dbias = launch.launch_layer_norm_grad(
            x, weight, bias, dy, eps, activation
        )
        return (
            dx,
            dweight.to(weight.dtype),
            dbias.to(bias.dtype),
            None,
            None,
            None,
        )


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
        ``"none"``, ``"swish"``, ``"gelu"`` (exact) or ``"relu"``.
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
    return _LayerNorm.apply(x, weight, bias, float(eps), activation, dtype)


def channels_obstacle(C: int) -> str | None:
    """Say why the kernels do not take C channels, if they do not."""
    if C > MAX_CHANNELS:
        return f"the kernels take at most {MAX_CHANNELS} channels, not {C}"
    return None


def check_vector(
    name: str, tensor: torch.Tensor, size: int, x: torch.Tensor
) -> None:
    """Refuse a parameter that does not fit an input, in one sentence.

    Raises
    ------
    ValueError
        If ``tensor`` is not (size,) or is on another device than x.
    """
    if tensor.shape != (size,):
        raise ValueError(
            f"{name} must be ({size},) for an input with {x.shape[-1]} "
            f"channels, got shape {tuple(tensor.shape)}."
        )
    if tensor.device != x.device:
        raise ValueError(
            f"{name} is on {tensor.device} and the input on {x.device}: they "
            "must be on the same device."
        )
