"""The transducer loss with its joint network: variants, inputs and limit."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from speechbrain.nnet.transducer.transducer_joint import Transducer_joint
from torch import nn

from speechbrain_triton.bench import transducer_loss
from speechbrain_triton.bench.shapes import JointCase
from speechbrain_triton.bench.timing import Inputs
from speechbrain_triton.bench.transducer_loss import BLANK
from speechbrain_triton.bench.variant import (
    JointVariant,
    LossVariant,
    doubles,
)
from speechbrain_triton.ops import transducer_joint_loss

# That of the LibriSpeech recipe.
JOINT = Transducer_joint(joint="sum", nonlinearity=nn.GELU)


def variants(case: JointCase, device: str) -> dict[str, JointVariant]:
    """Build the losses of logits behind SpeechBrain's joint, and the fused.

    Arguments
    ---------
    case : JointCase
        Shape, and autocast's dtype.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of JointVariant
        ``"torchaudio"``, ``"numba"``, ``"triton"``, ``"triton_fused_joint"``,
        ``"twin"`` and ``"exact"``.
    """
    # So logits are not much larger than 1. Where they are, single paths
    # decide, and chance says whose gradients are further off.
    weight = torch.randn(case.V, case.J, device=device) / case.J**0.5
    bias = torch.randn(case.V, device=device)
    params = {
        "weight": weight.requires_grad_(),
        "bias": bias.requires_grad_(),
    }

    def mixed(dtype):
        if dtype.itemsize > 2:
            return nullcontext()
        return torch.autocast(device, dtype)

    def behind_joint(loss: LossVariant, params=params):
        def forward(encoder, predictor, weight, bias, *labels, reduction):
            with mixed(encoder.dtype):
                joint = JOINT(encoder.unsqueeze(2), predictor.unsqueeze(1))
                logits = F.linear(joint, weight, bias)
            costs = loss.forward(logits, *labels)
            return costs.mean() if reduction == "mean" else costs

        return JointVariant(forward, params, loss.dtype, loss.per_frame)

    def fused(*tensors, reduction):
        with mixed(case.torch_dtype):
            return transducer_joint_loss(
                *tensors,
                nonlinearity="gelu",
                blank=BLANK,
                reduction=reduction,
                backend="triton",
            )

    losses = transducer_loss.variants(case, device)
    return {
        **{
            impl: behind_joint(losses[impl])
            for impl in ("torchaudio", "numba", "triton", "twin")
        },
        "triton_fused_joint": JointVariant(fused, params, case.torch_dtype),
        "exact": behind_joint(losses["exact"], doubles(params)),
    }


def draw(case: JointCase, device: str) -> Inputs:
    """Draw encoder (B, T, J), predictor (B, U + 1, J), targets and lengths.

    Arguments
    ---------
    case : JointCase
        Shape and dtype.
    device : str
        Where.

    Returns
    -------
    tuple of torch.Tensor
        What ``JointVariant.inputs`` takes. All utterances have T frames and U
        labels.
    """
    encoder = torch.randn(case.B, case.T, case.J, device=device)
    predictor = torch.randn(case.B, case.U + 1, case.J, device=device)
    return (
        encoder.to(case.torch_dtype),
        predictor.to(case.torch_dtype),
        *transducer_loss.draw_labels(case, device),
    )


def limit(
    case: JointCase, backward: bool, device: str
) -> tuple[Callable[..., object], list[Inputs]]:
    """The joint network's matmuls by PyTorch, in autocast's dtype.

    Forward is the product that makes logits, 2 B T (U + 1) J V operations,
    without bias; backward adds those that make the gradients of the joint
    network's output and of the weight, from a given gradient of the logits.
    Sums, the nonlinearity and the lattice can be computed where a matmul has
    its values in registers, or are too small to count.

    Arguments
    ---------
    case : JointCase
        Shape, and autocast's dtype.
    backward : bool
        Whether the gradients are computed, too.
    device : str
        Where it runs.

    Returns
    -------
    tuple
        The function, and one set of inputs: with ``time_calls`` they do not
        come from the cache.
    """

    def randn(*shape):
        return torch.randn(shape, device=device).to(case.torch_dtype)

    weight = randn(case.V, case.J)

    def forward(joint):
        return F.linear(joint, weight)

    def both(joint, dlogits):
        return forward(joint), dlogits @ weight, dlogits.T @ joint

    joint = randn(case.rows, case.J)
    if not backward:
        return forward, [(joint,)]
    return both, [(joint, randn(case.rows, case.V))]
