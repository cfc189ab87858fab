"""Depthwise convolution: forward, backward, and how autograd finds them.

Eager calls go through autograd functions; ``torch.compile`` sees opaque
operators, whose dispatch costs more host time than an eager call can spare.
"""

import torch

from speechbrain_triton.ops.compiled import fake_gradients, present, separate
from speechbrain_triton.ops.depthwise_conv1d.geometry import Geometry


def run_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    geometry: Geometry,
    left_context: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    x : torch.Tensor
        (B, T_in, C).
    weight : torch.Tensor
        (C, 1, K).
    bias : torch.Tensor, optional
        (C,).
    geometry : Geometry
        Of x.
    left_context : torch.Tensor, optional
        (B, L, C), read in place of zeros before x; no gradient flows.

    Returns
    -------
    torch.Tensor
        (B, T_out, C).
    """
    if torch.compiler.is_compiling():
        return _conv(x, weight, bias, left_context, *geometry)
    if not torch.is_grad_enabled():
        from speechbrain_triton.ops.depthwise_conv1d import launch

        return launch.launch_conv(
            x, weight, bias, geometry, left_context=left_context
        )
    return _Conv.apply(x, weight, bias, geometry, left_context)


# The convolution is linear in input and weight, and so are its gradients in
# what they take: each of the three functions below is differentiated by the
# other two, to any order.
class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, geometry, left_context=None):
        from speechbrain_triton.ops.depthwise_conv1d import launch

        ctx.save_for_backward(x, weight, bias)
        ctx.geometry = geometry
        return launch.launch_conv(
            x, weight, bias, geometry, left_context=left_context
        )

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias = ctx.saved_tensors
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = _InputGrad.apply(dy, weight, ctx.geometry)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            # Weight and bias only say in what shape and dtype.
            dweight, dbias = _WeightGrad.apply(
                x, dy, weight.detach(), bias, ctx.geometry
            )
        return dx, dweight, dbias, None, None


class _InputGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dy, weight, geometry):
        from speechbrain_triton.ops.depthwise_conv1d import launch

        ctx.save_for_backward(dy, weight)
        ctx.geometry = geometry
        return launch.launch_conv(dy, weight, None, geometry, transposed=True)

    @staticmethod
    def backward(ctx, ddx):
        dy, weight = ctx.saved_tensors
        ddy = dweight = None
        if ctx.needs_input_grad[0]:
            ddy = _Conv.apply(ddx, weight, None, ctx.geometry)
        if ctx.needs_input_grad[1]:
            dweight, _ = _WeightGrad.apply(
                ddx, dy, weight.detach(), None, ctx.geometry
            )
        return ddy, dweight, None


class _WeightGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dy, weight, bias, geometry):
        from speechbrain_triton.ops.depthwise_conv1d import launch

        ctx.save_for_backward(x, dy)
        ctx.geometry = geometry
        return launch.launch_weight_grad(x, dy, weight, bias, geometry)

    @staticmethod
    def backward(ctx, ddweight, ddbias):
        x, dy = ctx.saved_tensors
        dx = ddy = None
        if ctx.needs_input_grad[0]:
            dx = _InputGrad.apply(dy, ddweight, ctx.geometry)
        if ctx.needs_input_grad[1]:
            ddy = _Conv.apply(x, ddweight, ddbias, ctx.geometry)
        return dx, ddy, None, None, None


@torch.library.custom_op(
    "speechbrain_triton::depthwise_conv1d", mutates_args=()
)
def _conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    left_context: torch.Tensor | None,
    T_in: int,
    T_out: int,
    pad: int,
    shift: int,
    chunk: int,
) -> torch.Tensor:
    from speechbrain_triton.ops.depthwise_conv1d.launch import launch_conv

    geometry = Geometry(T_in, T_out, pad, shift, chunk)
    return launch_conv(x, weight, bias, geometry, left_context=left_context)


@_conv.register_fake
def _(x, weight, bias, left_context, T_in, T_out, pad, shift, chunk):
    return x.new_empty((x.shape[0], T_out, x.shape[2]))


@torch.library.custom_op(
    "speechbrain_triton::depthwise_conv1d_grad", mutates_args=()
)
def _conv_grad(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    T_in: int,
    T_out: int,
    pad: int,
    shift: int,
    chunk: int,
) -> list[torch.Tensor]:
    from speechbrain_triton.ops.depthwise_conv1d import launch

    geometry = Geometry(T_in, T_out, pad, shift, chunk)
    dx = launch.launch_conv(dy, weight, None, geometry, transposed=True)
    grads = launch.launch_weight_grad(x, dy, weight, bias, geometry)
    return separate((dx, *grads))


@_conv_grad.register_fake
def _(dy, x, weight, bias, *geometry):
    return fake_gradients((x, weight, bias))


def _save(ctx, inputs, output):
    x, weight, bias, _, *ctx.geometry = inputs
    ctx.save_for_backward(x, weight, bias)


def _compiled_backward(ctx, dy):
    x, weight, bias = ctx.saved_tensors
    grads = _conv_grad(dy, x, weight, bias, *ctx.geometry)
    return *present(grads, (x, weight, bias)), *[None] * 6


_conv.register_autograd(_compiled_backward, setup_context=_save)
