"""The stem: forward, backward, and how autograd finds them.

Eager calls go through an autograd function; ``torch.compile`` sees an opaque
operator, whose dispatch costs more host time than an eager call can spare.
"""

from functools import partial

import torch

from speechbrain_triton.ops.casts import cast, like, zeros_like
from speechbrain_triton.ops.compiled import fake_gradients, present, separate
from speechbrain_triton.ops.conv_stem.reference import conv_stem_reference
from speechbrain_triton.ops.twin import gradients_by_twin


def run_conv_stem(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    depthwise_weight: torch.Tensor,
    depthwise_bias: torch.Tensor | None,
    lengths: torch.Tensor | None,
    stride: int,
    padding: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    x, weight, bias, depthwise_weight, depthwise_bias, lengths, stride, padding
        As of :func:`~speechbrain_triton.ops.conv_stem`.
    dtype : torch.dtype
        Of the products and the result.

    Returns
    -------
    torch.Tensor
        (B, T2, F2, C).
    """
    inputs = x, weight, bias, depthwise_weight, depthwise_bias
    if torch.compiler.is_compiling():
        return _conv_stem(*inputs, lengths, stride, padding, dtype)[0]
    if not torch.is_grad_enabled():
        return _forward(*inputs, lengths, stride, padding, dtype)[0]
    return _ConvStem.apply(*inputs, lengths, stride, padding, dtype)


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    depthwise_weight: torch.Tensor,
    depthwise_bias: torch.Tensor | None,
    lengths: torch.Tensor | None,
    stride: int,
    padding: str,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    from speechbrain_triton.ops.conv_stem import launch

    stem = launch.Stem(weight, bias, depthwise_weight, depthwise_bias)
    shape = launch.shape_of(*x.shape[1:], weight.shape[2], stride, padding)
    if x.shape[0] == 0:
        return _empty(x, weight, stride, padding, dtype)
    patches = launch.launch_patches(x, lengths, shape, dtype)
    return launch.launch_stem(patches, stem, shape), patches


def _empty(x, weight, stride, padding, dtype):
    from speechbrain_triton.ops.conv_stem.launch import shape_of

    C, _, K, _ = weight.shape
    B, T, F = x.shape
    shape = shape_of(T, F, K, stride, padding)
    sizes = (shape.T2, shape.F2, C), (shape.T1, shape.F1, shape.width)
    return tuple(
        torch.empty((B, *size), dtype=dtype, device=x.device) for size in sizes
    )


def _backward(dy, patches, inputs, lengths, stride, padding, needed):
    """Gradients of x and the parameters, as far as they are needed."""
    from speechbrain_triton.ops.conv_stem import launch

    x, *parameters = inputs
    if x.shape[0] == 0:
        return tuple(map(zeros_like, inputs))
    stem = launch.Stem(*parameters)
    K = stem.weight.shape[2]
    shape = launch.shape_of(*x.shape[1:], K, stride, padding)
    dx, grads = None, (None, None, None, None)
    if needed[0]:
        dx = launch.launch_input_grad(
            dy, patches, stem, shape, lengths, x.dtype
        )
    if any(needed[1:]):
        grads = launch.launch_parameter_grads(dy, patches, stem, shape)
        grads = map(like, stem, grads)
    return dx, *grads


class _ConvStem(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        *inputs, lengths, stride, padding, dtype = arguments
        y, patches = _forward(*arguments)
        ctx.save_for_backward(*inputs, lengths, patches)
        ctx.options = stride, padding, dtype
        return y

    @staticmethod
    def backward(ctx, dy):
        *inputs, lengths, patches = ctx.saved_tensors
        stride, padding, dtype = ctx.options
        needed = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():
            twin = partial(
                _twin,
                lengths=lengths,
                stride=stride,
                padding=padding,
                dtype=dtype,
            )
            grads = gradients_by_twin(twin, inputs, needed, dy)
        else:
            grads = _backward(
                dy, patches, inputs, lengths, stride, padding, needed
            )
        return *grads, None, None, None, None


def _twin(*inputs, dtype, **options):
    inputs = (cast(t, dtype) for t in inputs)
    return conv_stem_reference(*inputs, **options)


_conv_stem = torch.library.custom_op(
    "speechbrain_triton::conv_stem", _forward, mutates_args=()
)


@_conv_stem.register_fake
def _(x, weight, bias, depthwise_weight, depthwise_bias, lengths, *options):
    return _empty(x, weight, *options)


@torch.library.custom_op("speechbrain_triton::conv_stem_grad", mutates_args=())
def _conv_stem_grad(
    dy: torch.Tensor,
    patches: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    depthwise_weight: torch.Tensor,
    depthwise_bias: torch.Tensor | None,
    lengths: torch.Tensor | None,
    stride: int,
    padding: str,
    input_grad: bool,
) -> list[torch.Tensor]:
    inputs = x, weight, bias, depthwise_weight, depthwise_bias
    needed = input_grad, True
    dx, *grads = _backward(
        dy, patches, inputs, lengths, stride, padding, needed
    )
    return separate((*grads, dx if input_grad else None))


@_conv_stem_grad.register_fake
def _(dy, patches, x, *arguments):
    return fake_gradients((*arguments[:4], x if arguments[-1] else None))


def _save(ctx, inputs, output):
    *tensors, ctx.stride, ctx.padding, _ = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.set_materialize_grads(False)


def _compiled_backward(ctx, dy, dpatches):
    *inputs, lengths, patches = ctx.saved_tensors
    input_grad = ctx.needs_input_grad[0]
    grads = _conv_stem_grad(
        dy, patches, *inputs, lengths, ctx.stride, ctx.padding, input_grad
    )
    x, *parameters = inputs
    *grads, dx = present(grads, (*parameters, x if input_grad else None))
    return dx, *grads, None, None, None, None


_conv_stem.register_autograd(_compiled_backward, setup_context=_save)
