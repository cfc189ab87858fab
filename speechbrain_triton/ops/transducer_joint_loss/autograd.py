"""The loss with its joint: forward, backward, and how autograd finds them.

The gradient of a sum of costs is computed along with it, since it scales with
whatever comes from behind: while a slice's logits are there. Where each cost
has a gradient of its own, which the sum over all rows that is the weight's
gradient mixes, backward makes the logits again: a fourth matrix product beside
three. Eager calls go through autograd functions; ``torch.compile`` sees an
opaque operator, always of the second kind.
"""

from collections.abc import Sequence
from functools import partial

import torch

from speechbrain_triton.ops.casts import (
    cast,
    without_autocast,
    zeros_like,
)
from speechbrain_triton.ops.compiled import fake_gradients, present, separate
from speechbrain_triton.ops.inputs import needs_backward
from speechbrain_triton.ops.transducer_joint_loss.options import (
    Gradients,
    Options,
)
from speechbrain_triton.ops.transducer_joint_loss.reference import (
    joint_logits,
)
from speechbrain_triton.ops.transducer_loss.op import check_lengths
from speechbrain_triton.ops.transducer_loss.reference import (
    no_second_backward,
    utterance_costs,
)
from speechbrain_triton.ops.twin import gradients_by_twin

INPUTS = 4


def run_transducer_joint_loss(
    tensors: Sequence[torch.Tensor | None], options: Options, reduced: bool
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    tensors : sequence of torch.Tensor or None
        encoder, predictor, weight, bias; targets, frames and labels.
    options : Options
    reduced : bool
        Whether the costs' sum is wanted.

    Returns
    -------
    torch.Tensor
        -log p of each utterance (B,), or the sum; float32.
    """
    if torch.compiler.is_compiling():
        costs = _joint_loss(*tensors, *options)[0]
        return costs.sum() if reduced else costs
    if not needs_backward(tensors[:INPUTS]):
        costs = _forward(tensors, options, None)
        return costs.sum() if reduced else costs
    function = _SummedLoss if reduced else _Losses
    return function.apply(*tensors, options)


def _passes(tensors, options, together):
    from speechbrain_triton.ops.transducer_joint_loss.passes import Passes

    *inputs, frames, labels = tensors
    shape = _shape(tensors)
    # The one copy to the host: the slices follow from the lengths.
    lengths = torch.stack((frames.long(), labels.long())).cpu()
    check_lengths(shape, *lengths)
    return Passes(inputs, *lengths.tolist(), options, together)


def _shape(tensors) -> tuple[int, int, int, int]:
    encoder, predictor, weight, *_ = tensors
    return (*encoder.shape[:2], predictor.shape[1], weight.shape[0])


def _forward(tensors, options, needs):
    """Costs; with needs, gradients of their sum too."""
    encoder = tensors[0]
    if len(encoder) == 0:
        costs = encoder.new_zeros(0, dtype=torch.float32)
        return costs if needs is None else (costs, None)
    with without_autocast(encoder.device.type):
        passes = _passes(tensors, options, together=False)
        if needs is None:
            return passes.costs_without_backward()
        return passes.costs_and_gradients(needs)


def _costs(tensors, options):
    """Costs, and the lattice that backward needs."""
    encoder = tensors[0]
    if len(encoder) == 0:
        return encoder.new_zeros(0, dtype=torch.float32), _lattice(tensors)
    with without_autocast(encoder.device.type):
        return _passes(tensors, options, together=True).costs()


def _lattice(tensors):
    from speechbrain_triton.ops.transducer_joint_loss.passes import (
        new_lattice,
    )

    B, T, U1, _ = _shape(tensors)
    return new_lattice(B, T, U1, tensors[0])


def _costs_grad(dcost, tensors, lattice, cost, options, needs):
    inputs = tensors[:INPUTS]
    if len(inputs[0]) == 0:
        return tuple(map(zeros_like, inputs))
    # Whatever a scaler of gradients multiplied by must not overflow float16.
    most = dcost.abs().amax()
    weights = torch.where(most == 0, dcost, dcost / most)
    with without_autocast(dcost.device.type):
        gradients = _passes(tensors, options, together=True).gradients(
            lattice, cost, weights, needs
        )
    return _finish(gradients, most, inputs, needs)


def _finish(gradients, factor, inputs, needs):
    """Gradients times a factor, rounded once to the inputs' dtypes."""
    factor = factor / gradients.scale
    return tuple(
        torch.mul(grad, factor, out=x.new_empty(x.shape)) if need else None
        for grad, x, need in zip(gradients[1:], inputs, needs, strict=True)
    )


def _second_order(ctx, twin, dy):
    options = ctx.options
    no_second_backward(options.clamp, options.fastemit_lambda, False)
    *inputs, targets, frames, labels = ctx.saved_tensors[: INPUTS + 3]
    function = partial(
        twin, targets=targets, frames=frames, labels=labels, options=options
    )
    needs = ctx.needs_input_grad[:INPUTS]
    return gradients_by_twin(function, inputs, needs, dy)


def _twin(
    encoder, predictor, weight, bias, *, targets, frames, labels, options
):
    logits = joint_logits(
        cast(encoder, options.dtype),
        cast(predictor, options.dtype),
        cast(weight, options.dtype),
        cast(bias, options.dtype),
        options.nonlinearity,
    )
    return utterance_costs(logits, targets, frames, labels, options.blank)


def _summed_twin(*inputs, **others):
    return _twin(*inputs, **others).sum()


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        *tensors, ctx.options = arguments
        ctx.needs = ctx.needs_input_grad[:INPUTS]
        costs, gradients = _forward(tensors, ctx.options, ctx.needs)
        ctx.scale = None if gradients is None else gradients.scale
        ctx.save_for_backward(*tensors, *(gradients or (None,))[1:])
        return costs.sum()

    @staticmethod
    def backward(ctx, dtotal):
        if torch.is_grad_enabled():
            grads = _second_order(ctx, _summed_twin, dtotal)
        elif ctx.scale is None:
            grads = tuple(map(zeros_like, ctx.saved_tensors[:INPUTS]))
        else:
            saved = ctx.saved_tensors
            gradients = Gradients(ctx.scale, *saved[INPUTS + 3 :])
            grads = _finish(gradients, dtotal, saved[:INPUTS], ctx.needs)
        return *grads, *(None,) * 4


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        *tensors, ctx.options = arguments
        costs, lattice = _costs(tensors, ctx.options)
        ctx.save_for_backward(*tensors, lattice, costs)
        return costs

    @staticmethod
    def backward(ctx, dcost):
        if torch.is_grad_enabled():
            grads = _second_order(ctx, _twin, dcost)
        else:
            *tensors, lattice, costs = ctx.saved_tensors
            needs = ctx.needs_input_grad[:INPUTS]
            grads = _costs_grad(
                dcost, tensors, lattice, costs, ctx.options, needs
            )
        return *grads, *(None,) * 4


@torch.library.custom_op(
    "speechbrain_triton::transducer_joint_loss", mutates_args=()
)
def _joint_loss(
    encoder: torch.Tensor,
    predictor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    nonlinearity: str,
    blank: int,
    clamp: float,
    fastemit_lambda: float,
    dtype: torch.dtype,
    workspace: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = encoder, predictor, weight, bias, targets, frames, labels
    return _costs(
        tensors,
        Options(nonlinearity, blank, clamp, fastemit_lambda, dtype, workspace),
    )


@_joint_loss.register_fake
def _(*arguments):
    lattice = _lattice(arguments)
    return lattice.new_empty(len(arguments[0])), lattice


@torch.library.custom_op(
    "speechbrain_triton::transducer_joint_loss_grad", mutates_args=()
)
def _joint_loss_grad(
    dcost: torch.Tensor,
    encoder: torch.Tensor,
    predictor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    lattice: torch.Tensor,
    cost: torch.Tensor,
    nonlinearity: str,
    blank: int,
    clamp: float,
    fastemit_lambda: float,
    dtype: torch.dtype,
    workspace: int,
) -> list[torch.Tensor]:
    tensors = encoder, predictor, weight, bias, targets, frames, labels
    options = Options(
        nonlinearity, blank, clamp, fastemit_lambda, dtype, workspace
    )
    needs = [x is not None for x in tensors[:INPUTS]]
    return separate(_costs_grad(dcost, tensors, lattice, cost, options, needs))


@_joint_loss_grad.register_fake
def _(dcost, *arguments):
    return fake_gradients(arguments[:INPUTS])


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[: INPUTS + 3], *reversed(output))
    ctx.options = inputs[INPUTS + 3 :]


def _compiled_backward(ctx, dcost, _):
    saved = ctx.saved_tensors
    grads = _joint_loss_grad(dcost, *saved, *ctx.options)
    return *present(grads, saved[:INPUTS]), *(None,) * 9


_joint_loss.register_autograd(_compiled_backward, setup_context=_save)
