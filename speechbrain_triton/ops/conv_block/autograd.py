"""The convolution block: forward, backward, and how autograd finds them.

Eager calls go through an autograd function; ``torch.compile`` sees an opaque
operator, whose dispatch costs more host time than an eager call can spare.
"""

from functools import partial

import torch

from speechbrain_triton.ops.casts import like, zeros_like
from speechbrain_triton.ops.compiled import fake_gradients, present, separate
from speechbrain_triton.ops.conv_block.reference import conv_block_reference
from speechbrain_triton.ops.depthwise_conv1d.geometry import geometry_of
from speechbrain_triton.ops.twin import gradients_by_twin


def run_conv_block(
    *inputs: torch.Tensor | None,
    eps: float,
    activation: str,
    padding: str,
    chunk_size: int | None,
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    *inputs : torch.Tensor or None
        h, weight, bias, norm_weight, norm_bias and glu_bias of
        :func:`~speechbrain_triton.ops.conv_block`.
    eps, activation, padding, chunk_size
        Likewise.

    Returns
    -------
    torch.Tensor
        (B, T_out, C) in h's dtype.
    """
    arguments = *inputs, eps, activation, padding, chunk_size
    if torch.compiler.is_compiling():
        return _conv_block(*arguments)[0]
    if not torch.is_grad_enabled():
        return _forward(*arguments)[0]
    return _ConvBlock.apply(*arguments)


def _block_options(T, K, eps, activation, padding, chunk_size):
    """What the launchers of the block want to know."""
    from speechbrain_triton.ops.conv_block.launch import BlockOptions

    return BlockOptions(geometry_of(T, K, padding, chunk_size), eps, activation)


def _forward(
    h: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    glu_bias: torch.Tensor | None,
    eps: float,
    activation: str,
    padding: str,
    chunk_size: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    from speechbrain_triton.ops.conv_block import launch

    z, u, _ = launch.launch_block(
        h,
        h.shape[0],
        launch.BlockParameters(weight, bias, norm_weight, norm_bias, glu_bias),
        _block_options(
            h.shape[1], weight.shape[2], eps, activation, padding, chunk_size
        ),
    )
    return z, u


def _backward(dz, u, inputs, options, convolution=True):
    from speechbrain_triton.ops.conv_block import launch
    from speechbrain_triton.ops.reduction import ColumnSums

    if dz.numel() == 0:
        return tuple(zeros_like(t) for t in inputs)
    h, *parameters = inputs
    p = launch.BlockParameters(*parameters)
    B, T, width = h.shape
    C = width // 2
    sums = ColumnSums(B * T, 4 * C, h.device)
    dh, dweight, dbias = launch.launch_block_grad(
        dz,
        h,
        u,
        p,
        _block_options(T, p.weight.shape[2], *options),
        sums,
        convolution=convolution,
    )
    dglu_bias, dnorm_weight, dnorm_bias = sums.total().split((2 * C, C, C))
    return (
        dh,
        dweight,
        dbias,
        like(p.norm_weight, dnorm_weight),
        like(p.norm_bias, dnorm_bias),
        like(p.glu_bias, dglu_bias),
    )


class _ConvBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        z, u = _forward(*arguments)
        ctx.save_for_backward(*arguments[:6], u)
        ctx.options = arguments[6:]
        return z

    @staticmethod
    def backward(ctx, dz):
        *inputs, u = ctx.saved_tensors
        needed = ctx.needs_input_grad[:6]
        if torch.is_grad_enabled():
            names = ("eps", "activation", "padding", "chunk_size")
            options = dict(zip(names, ctx.options, strict=True))
            twin = partial(conv_block_reference, **options)
            grads = gradients_by_twin(twin, inputs, needed, dz)
        else:
            grads = _backward(dz, u, inputs, ctx.options, any(needed[1:3]))
        return *grads, None, None, None, None


_conv_block = torch.library.custom_op(
    "speechbrain_triton::conv_block", _forward, mutates_args=()
)


@_conv_block.register_fake
def _(h, weight, *others):
    B, T, width = h.shape
    padding = others[6]
    frames = T - weight.shape[2] + 1 if padding == "valid" else T
    z = torch.empty((B, frames, width // 2), dtype=h.dtype, device=h.device)
    return z, torch.empty_like(z)


@torch.library.custom_op("speechbrain_triton::conv_block_grad", mutates_args=())
def _conv_block_grad(
    dz: torch.Tensor,
    u: torch.Tensor,
    h: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    glu_bias: torch.Tensor | None,
    eps: float,
    activation: str,
    padding: str,
    chunk_size: int | None,
) -> list[torch.Tensor]:
    inputs = h, weight, bias, norm_weight, norm_bias, glu_bias
    options = eps, activation, padding, chunk_size
    return separate(_backward(dz, u, inputs, options))


@_conv_block_grad.register_fake
def _(dz, u, *arguments):
    return fake_gradients(arguments[:6])


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:6], output[1])
    ctx.options = inputs[6:]
    ctx.set_materialize_grads(False)


def _compiled_backward(ctx, dz, du):
    *inputs, u = ctx.saved_tensors
    grads = _conv_block_grad(dz, u, *inputs, *ctx.options)
    return *present(grads, inputs), None, None, None, None


_conv_block.register_autograd(_compiled_backward, setup_context=_save)
