"""Layer normalisation: forward, backward, and how autograd finds them.

Eager calls go through an autograd function; ``torch.compile`` sees an opaque
operator, whose dispatch costs more host time than an eager call can spare.
"""

from functools import partial

import torch

from speechbrain_triton.ops.compiled import fake_gradients, separate
from speechbrain_triton.ops.layer_norm.reference import layer_norm_reference
from speechbrain_triton.ops.twin import gradients_by_twin


def run_layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    activation: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    x : torch.Tensor
        (..., C).
    weight, bias : torch.Tensor
        (C,).
    eps : float
        Added to the variance.
    activation : str
        Its name.
    dtype : torch.dtype
        Of the result.

    Returns
    -------
    torch.Tensor
        (..., C).
    """
    arguments = x, weight, bias, eps, activation, dtype
    if torch.compiler.is_compiling():
        return _layer_norm(*arguments)
    if not torch.is_grad_enabled():
        return _forward(*arguments)
    return _LayerNorm.apply(*arguments)


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    activation: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    from speechbrain_triton.ops.layer_norm.launch import launch_layer_norm

    return launch_layer_norm(x, weight, bias, eps, activation, dtype)


def _backward(dy, x, weight, bias, eps, activation):
    from speechbrain_triton.ops.layer_norm.launch import launch_layer_norm_grad
    from speechbrain_triton.ops.reduction import ColumnSums

    if x.numel() == 0:
        return tuple(torch.zeros_like(t) for t in (x, weight, bias))
    C = x.shape[-1]
    sums = ColumnSums(x.numel() // C, 2 * C, x.device)
    dx = launch_layer_norm_grad(x, weight, bias, dy, eps, activation, sums)
    dweight, dbias = sums.total().split(C)
    return dx, dweight.to(weight.dtype), dbias.to(bias.dtype)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps, activation, dtype):
        ctx.save_for_backward(x, weight, bias)
        ctx.options = eps, activation, dtype
        return _forward(x, weight, bias, eps, activation, dtype)

    @staticmethod
    def backward(ctx, dy):
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
        else:
            grads = _backward(dy, *inputs, eps, activation)
        return *grads, None, None, None


_layer_norm = torch.library.custom_op(
    "speechbrain_triton::layer_norm", _forward, mutates_args=()
)


@_layer_norm.register_fake
def _(x, weight, bias, eps, activation, dtype):
    return torch.empty(x.shape, dtype=dtype, device=x.device)


@torch.library.custom_op("speechbrain_triton::layer_norm_grad", mutates_args=())
def _layer_norm_grad(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    activation: str,
) -> list[torch.Tensor]:
    return separate(_backward(dy, x, weight, bias, eps, activation))


@_layer_norm_grad.register_fake
def _(dy, x, weight, bias, eps, activation):
    return fake_gradients((x, weight, bias))


def _save(ctx, inputs, output):
    x, weight, bias, ctx.eps, ctx.activation, _ = inputs
    ctx.save_for_backward(x, weight, bias)


def _compiled_backward(ctx, dy):
    grads = _layer_norm_grad(dy, *ctx.saved_tensors, ctx.eps, ctx.activation)
    return *grads, None, None, None


_layer_norm.register_autograd(_compiled_backward, setup_context=_save)
