"""The linear layer with GEGLU: forward, backward, and how autograd finds them.

Eager calls go through an autograd function; ``torch.compile`` sees an opaque
operator, whose dispatch costs more host time than an eager call can spare.
"""

from functools import partial

import torch

from speechbrain_triton.ops.casts import (
    cast,
    matmul,
    without_autocast,
    zeros_like,
)
from speechbrain_triton.ops.compiled import (
    fake_gradients,
    present,
    separate,
)
from speechbrain_triton.ops.dropout import draw_seed, seed_tensor
from speechbrain_triton.ops.geglu_linear.reference import (
    geglu_linear_reference,
)
from speechbrain_triton.ops.inputs import needs_backward
from speechbrain_triton.ops.twin import gradients_by_twin


def run_geglu_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
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
    weight : torch.Tensor
        (2 F, K), of any floating dtype.
    bias : torch.Tensor or None
        (2 F,), of any floating dtype.
    approximate, dropout, seed
        Options; a seed that is None is drawn.
    dtype : torch.dtype
        Of the products and the result.

    Returns
    -------
    torch.Tensor
        (..., F).
    """
    # Outside of the function, which then keeps x as the products read it and
    # not what it was cast from.
    x = cast(x, dtype)
    tensors = x, weight, bias
    if torch.compiler.is_compiling():
        keep = torch.is_grad_enabled()
        return _geglu_linear(
            *tensors, approximate, dropout, seed_tensor(seed, dropout), keep
        )[0]
    if seed is None:
        seed = draw_seed() if dropout else 0
    if not needs_backward(tensors):
        return _forward(*tensors, (approximate, dropout, seed), False)[0]
    return _GEGLULinear.apply(*tensors, (approximate, dropout, seed))


def _forward(x, weight, bias, options, keep):
    """h (..., F); z (M, 2 F) if it is to be kept; the cast weight."""
    from speechbrain_triton.ops.geglu_linear.launch import (
        Gating,
        launch_geglu_linear,
    )

    rows = x.reshape(-1, x.shape[-1])
    weight = cast(weight, x.dtype)
    h, z = launch_geglu_linear(rows, weight, bias, Gating.of(*options), keep)
    # Not by a view: the host may write into the result.
    return h.resize_(*x.shape[:-1], h.shape[1]), z, weight


def _backward(dh, z, cast_weight, x, weight, bias, options, needs):
    """Gradients of x, weight and bias; those not needed may be None."""
    from speechbrain_triton.ops.geglu_linear.launch import (
        Gating,
        launch_geglu_grad,
    )

    if dh.numel() == 0:
        return tuple(map(zeros_like, (x, weight, bias)))
    with without_autocast(dh.device.type):
        dh = dh.reshape(-1, dh.shape[-1])
        dz, dbias = launch_geglu_grad(dh, z, Gating.of(*options), needs[2])
        dx = dweight = None
        if needs[0]:
            dx = torch.mm(dz, cast_weight).resize_(x.shape)
        if needs[1]:
            rows = x.reshape(-1, x.shape[-1])
            dweight = matmul(dz.t(), rows, weight.dtype)
    if dbias is not None:
        dbias = cast(dbias, bias.dtype)
    return dx, dweight, dbias


class _GEGLULinear(torch.autograd.Function):
    # For backward are kept, beside x: z, 2 F elements a row.
    @staticmethod
    def forward(ctx, x, weight, bias, options):
        ctx.options = options
        h, z, cast_weight = _forward(x, weight, bias, options, True)
        ctx.save_for_backward(z, cast_weight, x, weight, bias)
        return h

    @staticmethod
    def backward(ctx, dh):
        *kept, x, weight, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            twin = partial(_twin, options=ctx.options)
            grads = gradients_by_twin(twin, (x, weight, bias), needs, dh)
        else:
            grads = _backward(dh, *kept, x, weight, bias, ctx.options, needs)
        return *grads, None


def _twin(x, weight, bias, *, options):
    approximate, dropout, seed = options
    return geglu_linear_reference(
        x,
        cast(weight, x.dtype),
        cast(bias, x.dtype),
        approximate=approximate,
        dropout=dropout,
        seed=seed,
    )


@torch.library.custom_op("speechbrain_triton::geglu_linear", mutates_args=())
def _geglu_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    approximate: str,
    dropout: float,
    seed: torch.Tensor,
    keep: bool,
) -> list[torch.Tensor]:
    """h, and z where it is kept."""
    options = approximate, dropout, int(seed)
    h, z, _ = _forward(x, weight, bias, options, keep)
    return separate([h, z])


@_geglu_linear.register_fake
def _(x, weight, bias, approximate, dropout, seed, keep):
    columns = weight.shape[0]
    h = x.new_empty((*x.shape[:-1], columns // 2))
    n_rows = h.numel() // (columns // 2)
    z = h.new_empty((n_rows, columns) if keep else 0)
    return [h, z]


@torch.library.custom_op(
    "speechbrain_triton::geglu_linear_grad", mutates_args=()
)
def _geglu_linear_grad(
    dh: torch.Tensor,
    z: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    approximate: str,
    dropout: float,
    seed: torch.Tensor,
) -> list[torch.Tensor]:
    options = approximate, dropout, int(seed)
    needs = True, True, bias is not None
    grads = _backward(
        dh, z, cast(weight, z.dtype), x, weight, bias, options, needs
    )
    return separate(grads)


@_geglu_linear_grad.register_fake
def _(dh, z, x, weight, bias, approximate, dropout, seed):
    return fake_gradients((x, weight, bias))


def _save(ctx, inputs, output):
    x, weight, bias, ctx.approximate, ctx.dropout, seed, _ = inputs
    ctx.save_for_backward(output[1], x, weight, bias, seed)


def _compiled_backward(ctx, grads):
    z, *inputs, seed = ctx.saved_tensors
    grads = _geglu_linear_grad(
        grads[0], z, *inputs, ctx.approximate, ctx.dropout, seed
    )
    return *present(grads, inputs), None, None, None, None


_geglu_linear.register_autograd(_compiled_backward, setup_context=_save)
