"""The feed-forward block: forward, backward, and how autograd finds them.

One autograd function for both layers, so that the hidden layer is not kept:
backward computes it again, in the pass over memory that gates its gradient.
"""

from functools import partial

import torch
import torch.nn.functional as F

from speechbrain_triton.ops.casts import (
    cast,
    matmul,
    without_autocast,
    zeros_like,
)
from speechbrain_triton.ops.dropout import draw_seed
from speechbrain_triton.ops.geglu_ffn.reference import geglu_ffn_reference
from speechbrain_triton.ops.geglu_linear.autograd import run_geglu_linear
from speechbrain_triton.ops.inputs import needs_backward
from speechbrain_triton.ops.twin import gradients_by_twin


def run_geglu_ffn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor | None,
    approximate: str,
    dropout: float,
    seed: int | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    x : torch.Tensor
        (..., K).
    weight, bias, out_weight, out_bias : torch.Tensor or None
        (2 F, K), (2 F,), (D, F) and (D,), of any floating dtype.
    approximate, dropout, seed
        Options; a seed that is None is drawn.
    dtype : torch.dtype
        Of the products and the result.

    Returns
    -------
    torch.Tensor
        (..., D).
    """
    # Outside of the function, which then keeps x as the products read it and
    # not what it was cast from.
    x = cast(x, dtype)
    tensors = x, weight, bias, out_weight, out_bias
    if torch.compiler.is_compiling():
        # In parts: the compiler fuses casts and the bias into the matmul.
        h = run_geglu_linear(x, weight, bias, approximate, dropout, seed, dtype)
        return F.linear(h, cast(out_weight, dtype), cast(out_bias, dtype))
    if seed is None:
        seed = draw_seed() if dropout else 0
    options = approximate, dropout, seed
    if not needs_backward(tensors):
        return _forward(*tensors, options, False)[0]
    return _GEGLUFeedForward.apply(*tensors, options)


def _forward(
    x, weight, bias, out_weight, out_bias, options, keep
) -> tuple[torch.Tensor, tuple[torch.Tensor | None, ...]]:
    """y (..., D), and what backward reads beside the inputs."""
    from speechbrain_triton.ops.geglu_linear.launch import (
        Gating,
        launch_geglu_linear,
    )

    rows = x.reshape(-1, x.shape[-1])
    weight = cast(weight, x.dtype)
    out_weight = cast(out_weight, x.dtype)
    with without_autocast(x.device.type):
        h, z = launch_geglu_linear(
            rows, weight, bias, Gating.of(*options), keep
        )
        y = F.linear(h, out_weight, cast(out_bias, x.dtype))
    # Not by a view: the host may write into the result.
    y = y.resize_(*x.shape[:-1], y.shape[1])
    return y, (z, weight, out_weight)


class _GEGLUFeedForward(torch.autograd.Function):
    # For backward are kept, beside x: z, 2 F elements a row. The hidden layer
    # that it computes again is rounded once; the fused kernel's forward rounds
    # GELU and the product, as PyTorch does.
    @staticmethod
    def forward(ctx, *arguments):
        *tensors, ctx.options = arguments
        y, kept = _forward(*arguments, True)
        ctx.save_for_backward(*kept, *tensors)
        return y

    @staticmethod
    def backward(ctx, dy):
        *kept, x, weight, bias, out_weight, out_bias = ctx.saved_tensors
        tensors = x, weight, bias, out_weight, out_bias
        needs = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():
            twin = partial(_twin, options=ctx.options)
            grads = gradients_by_twin(twin, tensors, needs, dy)
        elif dy.numel() == 0:
            grads = tuple(map(zeros_like, tensors))
        else:
            with without_autocast(dy.device.type):
                grads = _backward(dy, kept, tensors, ctx.options, needs)
        return *grads, None


def _backward(dy, kept, tensors, options, needs):
    from speechbrain_triton.ops.geglu_linear.launch import (
        Gating,
        launch_geglu_grad,
    )

    z, cast_weight, cast_out_weight = kept
    x, weight, bias, out_weight, out_bias = tensors
    dy = cast(dy.reshape(-1, dy.shape[-1]), z.dtype)
    dh = torch.mm(dy, cast_out_weight)
    # The hidden layer takes the place of its gradient.
    h = dh if needs[3] else None
    dz, dbias = launch_geglu_grad(dh, z, Gating.of(*options), needs[2], h)
    dx = dweight = dout_weight = dout_bias = None
    if needs[3]:
        dout_weight = matmul(dy.t(), h, out_weight.dtype)
    if needs[4]:
        dout_bias = dy.sum(0, dtype=torch.float32).to(out_bias.dtype)
    if needs[0]:
        dx = torch.mm(dz, cast_weight).resize_(x.shape)
    if needs[1]:
        rows = x.reshape(-1, x.shape[-1])
        dweight = matmul(dz.t(), rows, weight.dtype)
    if needs[2]:
        dbias = cast(dbias, bias.dtype)
    return dx, dweight, dbias, dout_weight, dout_bias


def _twin(x, weight, bias, out_weight, out_bias, *, options):
    approximate, dropout, seed = options
    return geglu_ffn_reference(
        x,
        *(cast(t, x.dtype) for t in (weight, bias, out_weight, out_bias)),
        approximate=approximate,
        dropout=dropout,
        seed=seed,
    )
