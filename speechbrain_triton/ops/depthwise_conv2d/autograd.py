"""Depthwise convolution: forward, backward, and how autograd finds them.

Eager calls go through an autograd function; ``torch.compile`` sees an opaque
operator, whose dispatch costs more host time than an eager call can spare.
"""

from functools import partial
from typing import NamedTuple

import torch

from speechbrain_triton.ops.casts import cast, zeros_like
from speechbrain_triton.ops.compiled import fake_gradients, present, separate
from speechbrain_triton.ops.depthwise_conv2d.geometry import (
    Geometry,
    geometry_of,
)
from speechbrain_triton.ops.depthwise_conv2d.reference import (
    depthwise_conv2d_reference,
)
from speechbrain_triton.ops.twin import gradients_by_twin


class Options(NamedTuple):
    """What a call asks for besides its tensors."""

    stride_t: int
    stride_f: int
    padding: str
    relu: str | None

    def geometry(self, weight: torch.Tensor) -> Geometry:
        """Of a kernel (C, 1, K_T, K_F)."""
        stride = self.stride_t, self.stride_f
        return geometry_of(tuple(weight.shape[2:]), stride, self.padding)


def run_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    input_bias: torch.Tensor | None,
    lengths: torch.Tensor | None,
    options: Options,
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, F, C).
    weight : torch.Tensor
        (C, 1, K_T, K_F).
    bias, input_bias : torch.Tensor, optional
        (C,).
    lengths : torch.Tensor, optional
        (B,).
    options : Options
        Of the call.

    Returns
    -------
    torch.Tensor
        (B, T', F', C).
    """
    arguments = x, weight, bias, input_bias, lengths, *options
    if torch.compiler.is_compiling():
        return _conv(*arguments)
    if not torch.is_grad_enabled():
        return _forward(*arguments)
    return _Conv.apply(*arguments)


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    input_bias: torch.Tensor | None,
    lengths: torch.Tensor | None,
    stride_t: int,
    stride_f: int,
    padding: str,
    relu: str | None,
) -> torch.Tensor:
    from speechbrain_triton.ops.depthwise_conv2d import launch

    options = Options(stride_t, stride_f, padding, relu)
    inputs = launch.Inputs(x, weight, bias, input_bias, lengths)
    return launch.launch_conv(inputs, options.geometry(weight), relu)


def _backward(dy, y, inputs, options, needed=(True,) * 4):
    from speechbrain_triton.ops.depthwise_conv2d import launch

    *differentiable, _ = inputs
    if dy.numel() == 0:
        return tuple(zeros_like(t) for t in differentiable)
    inputs = launch.Inputs(*inputs)
    x, weight, _, input_bias, _ = inputs
    input_grad = needed[0] or needed[3]
    weight_grad = needed[1] or needed[2]
    geometry, C = options.geometry(weight), x.shape[3]
    sizes = (
        C if input_grad and input_bias is not None else 0,
        geometry.taps * C if weight_grad else 0,
        C if weight_grad else 0,
    )
    sums = launch.sums_for(x, geometry, sum(sizes))
    dx = launch.launch_conv_grad(
        inputs,
        dy,
        y,
        geometry,
        options.relu,
        sums,
        input_grad=input_grad,
        weight_grad=weight_grad,
    )
    dweight = dbias = dinput_bias = None
    if sums.width > 0:
        parts = sums.total().split_with_sizes(sizes)
        dinput_bias, dweight, dbias = (
            part if size else None
            for part, size in zip(parts, sizes, strict=True)
        )
    if weight_grad:
        dweight = dweight.view_as(weight)
    grads = dx, dweight, dbias, dinput_bias
    return tuple(
        None if t is None or grad is None else cast(grad, t.dtype)
        for t, grad in zip(differentiable, grads, strict=True)
    )


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        y = _forward(*arguments)
        ctx.options = Options(*arguments[5:])
        _save_tensors(ctx, arguments, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        *inputs, y = ctx.saved_tensors
        needed = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            *differentiable, lengths = inputs
            twin = partial(_twin, lengths=lengths, options=ctx.options)
            grads = gradients_by_twin(twin, differentiable, needed, dy)
        else:
            grads = _backward(dy, y, inputs, ctx.options, needed)
        return *grads, *[None] * 5


def _twin(x, weight, bias, input_bias, *, lengths, options):
    return depthwise_conv2d_reference(
        x,
        weight,
        bias,
        stride=(options.stride_t, options.stride_f),
        padding=options.padding,
        relu=options.relu,
        input_bias=input_bias,
        lengths=lengths,
    )


def _save_tensors(ctx, arguments, y):
    """The output is needed only for the slope of a ReLU behind it."""
    after = ctx.options.relu == "after"
    ctx.save_for_backward(*arguments[:5], y if after else None)


_conv = torch.library.custom_op(
    "speechbrain_triton::depthwise_conv2d", _forward, mutates_args=()
)


@_conv.register_fake
def _(x, weight, bias, input_bias, lengths, *options):
    geometry = Options(*options).geometry(weight)
    return x.new_empty(geometry.out_shape(x.shape))


@torch.library.custom_op(
    "speechbrain_triton::depthwise_conv2d_grad", mutates_args=()
)
def _conv_grad(
    dy: torch.Tensor,
    y: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    input_bias: torch.Tensor | None,
    lengths: torch.Tensor | None,
    stride_t: int,
    stride_f: int,
    padding: str,
    relu: str | None,
) -> list[torch.Tensor]:
    inputs = x, weight, bias, input_bias, lengths
    options = Options(stride_t, stride_f, padding, relu)
    return separate(_backward(dy, y, inputs, options))


@_conv_grad.register_fake
def _(dy, y, *arguments):
    return fake_gradients(arguments[:4])


def _save(ctx, inputs, output):
    ctx.options = Options(*inputs[5:])
    _save_tensors(ctx, inputs, output)


def _compiled_backward(ctx, dy):
    *inputs, y = ctx.saved_tensors
    grads = _conv_grad(dy, y, *inputs, *ctx.options)
    return *present(grads, inputs[:4]), *[None] * 5


_conv.register_autograd(_compiled_backward, setup_context=_save)
