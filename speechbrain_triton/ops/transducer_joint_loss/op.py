"""The transducer loss with its joint network: the public function."""

import torch

from speechbrain_triton.backend import (
    autocast_dtype,
    check_choice,
    use_triton,
)
from speechbrain_triton.ops.inputs import check_device
from speechbrain_triton.ops.transducer_joint_loss.autograd import (
    run_transducer_joint_loss,
)
from speechbrain_triton.ops.transducer_joint_loss.options import Options
from speechbrain_triton.ops.transducer_joint_loss.reference import (
    NONLINEARITIES,
    transducer_joint_loss_reference,
)
from speechbrain_triton.ops.transducer_loss.op import (
    check_integers,
    check_labels,
    check_lengths,
    check_options,
    size_obstacle,
)
from speechbrain_triton.ops.transducer_loss.reference import REDUCTIONS

# Each slice walks over lattices of its own, which on an H200 takes 0.1 ms
# whatever their number: so not too many of them.
WORKSPACE = 384 * 2**20


def transducer_joint_loss(
    encoder: torch.Tensor,
    predictor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    logit_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *,
    nonlinearity: str = "tanh",
    blank: int = 0,
    reduction: str = "none",
    clamp: float = -1.0,
    fastemit_lambda: float = 0.0,
    workspace: int = WORKSPACE,
    backend: str = "auto",
) -> torch.Tensor:
    """Transducer loss of a joint network, without a tensor of all logits.

    The loss of :func:`~speechbrain_triton.ops.transducer_loss` for

        logits[b, t, u] = weight @ f(encoder[b, t] + predictor[b, u]) + bias

    with a nonlinearity f. Logits, and the values of f, exist for a slice of
    the batch at a time and for valid (t, u) alone: frames and labels behind an
    utterance's lengths cost nothing. Sums and f are computed in float32;
    products are PyTorch's, in the inputs' dtype or autocast's, and follow its
    setting for TF32. Gradients add up over the slices in float32, in a fixed
    order, and are rounded once, to the dtype of their input: results do not
    vary from run to run.

    With ``reduction="mean"`` or ``"sum"``, where any input requires a
    gradient, gradients are computed along with the loss (so evaluate under
    ``torch.no_grad``) and backward only multiplies them. With ``"none"``
    backward computes the logits again, for utterances that weigh differently;
    so it does under ``torch.compile``. The lengths are copied to the host,
    once a pass; nothing else waits for a GPU.

    Arguments
    ---------
    encoder : torch.Tensor
        (B, T, J), in float32, bfloat16 or float16 (float64 on the torch
        path).
    predictor : torch.Tensor
        (B, U + 1, J), of the same dtype (under autocast of any).
    weight : torch.Tensor
        (V, J), likewise.
    bias : torch.Tensor or None
        (V,), likewise.
    targets : torch.Tensor
        (B, U), integers from 0 to V - 1, none of them the blank; any value
        behind an utterance's labels. On a GPU a label out of range makes its
        utterance impossible: its loss is infinite, its gradient zero.
    logit_lengths : torch.Tensor
        Frames of each utterance (B,), whole numbers from 0 to T.
    target_lengths : torch.Tensor
        Labels of each utterance (B,), whole numbers from 0 to U.
    nonlinearity : str
        ``"tanh"``, ``"relu"``, ``"leaky_relu"`` (slope 0.01), ``"gelu"`` or
        ``"none"``.
    blank : int
        Index of the blank; a negative one counts from V.
    reduction : str
        ``"none"``, ``"mean"`` over utterances or ``"sum"``.
    clamp, fastemit_lambda : float
        As for :func:`~speechbrain_triton.ops.transducer_loss`: they change
        the gradient of the logits.
    workspace : int
        Bytes for the logits and values of f that exist at one time, exceeded
        only where a single frame has more.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``; the last one, which
        ``"auto"`` falls back to, computes all logits at once.

    Returns
    -------
    torch.Tensor
        float32 (float64 for float64 inputs): (B,) or a scalar. Double
        backward is supported by way of all logits at once, for -log p
        itself: not with ``clamp`` or ``fastemit_lambda``, nor on the Triton
        path under ``torch.compile``.

    Raises
    ------
    ValueError
        For a shape, option, length or (on the CPU) label that is not allowed.
    TypeError
        For floating lengths or targets, integer inputs, or, outside of
        autocast, inputs of different dtypes.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> encoder, predictor = torch.zeros(2, 3, 8), torch.zeros(2, 2, 8)
    >>> weight, bias = torch.zeros(4, 8), torch.zeros(4)
    >>> targets = torch.tensor([[1], [3]])
    >>> lengths = torch.tensor([3, 2]), torch.tensor([1, 1])
    >>> transducer_joint_loss(
    ...     encoder, predictor, weight, bias, targets, *lengths
    ... )
    tensor([4.4466, 3.4657])
    """
    check_choice("nonlinearity", nonlinearity, tuple(NONLINEARITIES))
    check_choice("reduction", reduction, REDUCTIONS)
    check_joint(encoder, predictor, weight, bias)
    shape = (*encoder.shape[:2], predictor.shape[1], weight.shape[0])
    check_integers(
        shape, encoder.device, targets, logit_lengths, target_lengths
    )
    check_options(shape[3], blank, fastemit_lambda)
    if workspace < 1:
        raise ValueError(f"workspace={workspace} must be at least 1 byte.")
    if encoder.device.type == "cpu" and not torch.compiler.is_compiling():
        check_lengths(shape, logit_lengths, target_lengths)
        check_labels(shape, targets, target_lengths)
    tensors = (
        *(encoder, predictor, weight, bias),
        *(targets, logit_lengths, target_lengths),
    )
    dtype = autocast_dtype(encoder) or encoder.dtype
    obstacle = size_obstacle(shape)
    if weight.dtype is torch.float64 and dtype is not torch.float64:
        obstacle = "weight is float64"
    what = "transducer_joint_loss"
    if not use_triton(backend, what, encoder.device, dtype, obstacle):
        return transducer_joint_loss_reference(
            *tensors,
            nonlinearity=nonlinearity,
            blank=blank,
            reduction=reduction,
            clamp=clamp,
            fastemit_lambda=fastemit_lambda,
        )
    options = Options(
        nonlinearity,
        blank % shape[3],
        float(clamp),
        float(fastemit_lambda),
        dtype,
        workspace,
    )
    loss = run_transducer_joint_loss(tensors, options, reduction != "none")
    return loss / shape[0] if reduction == "mean" else loss


def check_joint(
    encoder: torch.Tensor,
    predictor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """Refuse inputs of a joint network that do not fit each other.

    Raises
    ------
    ValueError
        For a shape or device.
    TypeError
        For a dtype.
    """
    if encoder.dim() != 3 or 0 in encoder.shape[1:]:
        raise ValueError(
            "encoder must be (batch, frames, channels), neither of the last "
            f"two 0, got shape {tuple(encoder.shape)}."
        )
    B, _, J = encoder.shape
    named = {"predictor": predictor, "weight": weight, "bias": bias}
    for name, expected in (
        ("predictor", (B, "labels + 1", J)),
        ("weight", ("vocabulary", J)),
        ("bias", (weight.shape[0] if weight.dim() else 0,)),
    ):
        tensor = named[name]
        if tensor is not None and not _fits(tensor, expected):
            sizes = ", ".join(map(str, expected))
            raise ValueError(
                f"{name} must be ({sizes}) for an encoder of "
                f"{tuple(encoder.shape)}, got shape {tuple(tensor.shape)}."
            )
    mixed = autocast_dtype(encoder) is not None
    for name, tensor in {"encoder": encoder, **named}.items():
        if tensor is None:
            continue
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating, got {tensor.dtype}.")
        if tensor.dtype is not encoder.dtype and not mixed:
            raise TypeError(
                f"{name} is {tensor.dtype} and encoder {encoder.dtype}: "
                "outside of autocast they must be of the same dtype."
            )
        check_device(name, tensor, encoder.device, "encoder")


def _fits(tensor: torch.Tensor, expected: tuple[int | str, ...]) -> bool:
    """Whether a shape is that; a name stands for any size but 0."""
    return tensor.dim() == len(expected) and all(
        size == wanted if isinstance(wanted, int) else size > 0
        for size, wanted in zip(tensor.shape, expected, strict=True)
    )
