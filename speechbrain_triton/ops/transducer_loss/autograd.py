"""The transducer loss: forward, backward, and how autograd finds them.

Eager calls go through an autograd function; ``torch.compile`` sees an opaque
operator, whose dispatch costs more host time than an eager call can spare.
"""

import torch
from torch.autograd.graph import increment_version

from speechbrain_triton.ops.inputs import needs_backward
from speechbrain_triton.ops.transducer_loss.reference import (
    no_second_backward,
    utterance_costs,
)
from speechbrain_triton.ops.twin import gradients_by_twin


def run_transducer_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    blank: int,
    clamp: float,
    fastemit_lambda: float,
    inplace: bool,
) -> torch.Tensor:
    """Run the kernels on arguments that are known to fit.

    Arguments
    ---------
    logits : torch.Tensor
        (B, T, U + 1, V).
    targets : torch.Tensor
        (B, U), of any integer dtype.
    frames, labels : torch.Tensor
        Lengths (B,), of any integer dtype.
    blank : int
        From 0 to V - 1.
    clamp, fastemit_lambda, inplace
        As for the op.

    Returns
    -------
    torch.Tensor
        -log p of each utterance (B,), float32.
    """
    targets, frames, labels = (
        t.contiguous() for t in (targets, frames, labels)
    )
    arguments = logits, targets, frames, labels, blank
    if torch.compiler.is_compiling():
        return _transducer_loss(*arguments, clamp, fastemit_lambda)[0]
    if not needs_backward((logits,)):
        return _forward(*arguments, False)[0]
    return _TransducerLoss.apply(*arguments, clamp, fastemit_lambda, inplace)


def _forward(logits, targets, frames, labels, blank, back):
    """Costs and the lattice that backward needs."""
    from speechbrain_triton.ops.transducer_loss import launch

    logits = logits.contiguous()
    lattice = launch.new_lattice(logits)
    if len(logits) == 0:
        return lattice.new_zeros(0), lattice
    launch.launch_log_probs(logits, targets, frames, labels, blank, lattice)
    _, T, U1, _ = logits.shape
    cost = launch.launch_paths(frames, labels, T, U1, lattice, back)
    return cost, lattice


def _backward(
    dcost,
    logits,
    targets,
    frames,
    labels,
    lattice,
    cost,
    blank,
    clamp,
    fastemit_lambda,
    inplace,
):
    from speechbrain_triton.ops.transducer_loss import launch

    logits = logits.detach().contiguous()
    grad = logits if inplace else torch.empty_like(logits)
    if len(logits):
        launch.launch_logits_grad(
            logits,
            targets,
            frames,
            labels,
            blank,
            lattice,
            cost,
            dcost,
            clamp,
            fastemit_lambda,
            grad,
        )
    return grad


class _TransducerLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        logits,
        targets,
        frames,
        labels,
        blank,
        clamp,
        fastemit_lambda,
        inplace,
    ):
        cost, lattice = _forward(logits, targets, frames, labels, blank, True)
        ctx.save_for_backward(logits, targets, frames, labels, lattice, cost)
        ctx.options = blank, clamp, fastemit_lambda, inplace
        ctx.spent = False
        return cost

    @staticmethod
    def backward(ctx, dcost):
        if ctx.spent:
            raise RuntimeError(
                "transducer_loss: with inplace=True the first backward wrote "
                "the gradient over the logits, so there can be no other."
            )
        blank, clamp, fastemit_lambda, inplace = ctx.options
        logits, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():
            no_second_backward(clamp, fastemit_lambda, inplace)
            targets, frames, labels = rest[:3]
            (grad,) = gradients_by_twin(
                lambda x: utterance_costs(x, targets, frames, labels, blank),
                (logits,),
                (True,),
                dcost,
            )
        else:
            grad = _backward(dcost, logits, *rest, *ctx.options)
            if inplace:
                ctx.spent = True
                # Whoever else kept the logits for backward is told so.
                increment_version(logits)
        return grad, *(None,) * 7


@torch.library.custom_op("speechbrain_triton::transducer_loss", mutates_args=())
def _transducer_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    blank: int,
    clamp: float,
    fastemit_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _forward(logits, targets, frames, labels, blank, True)


@_transducer_loss.register_fake
def _(logits, targets, frames, labels, blank, clamp, fastemit_lambda):
    from speechbrain_triton.ops.transducer_loss import launch

    lattice = launch.new_lattice(logits)
    return lattice.new_empty(logits.shape[0]), lattice


@torch.library.custom_op(
    "speechbrain_triton::transducer_loss_grad", mutates_args=()
)
def _transducer_loss_grad(
    dcost: torch.Tensor,
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    lattice: torch.Tensor,
    cost: torch.Tensor,
    blank: int,
    clamp: float,
    fastemit_lambda: float,
) -> torch.Tensor:
    return _backward(
        dcost,
        logits,
        targets,
        frames,
        labels,
        lattice,
        cost,
        blank,
        clamp,
        fastemit_lambda,
        inplace=False,
    )


@_transducer_loss_grad.register_fake
def _(dcost, logits, *_):
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _save(ctx, inputs, output):
    *tensors, ctx.blank, ctx.clamp, ctx.fastemit_lambda = inputs
    cost, lattice = output
    ctx.save_for_backward(*tensors, lattice, cost)


def _compiled_backward(ctx, dcost, _):
    grad = _transducer_loss_grad(
        dcost,
        *ctx.saved_tensors,
        ctx.blank,
        ctx.clamp,
        ctx.fastemit_lambda,
    )
    return grad, *(None,) * 6


_transducer_loss.register_autograd(_compiled_backward, setup_context=_save)
