"""The transducer loss: the public function."""

import math

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.inputs import check_device, is_integer
from speechbrain_triton.ops.transducer_loss.autograd import run_transducer_loss
from speechbrain_triton.ops.transducer_loss.reference import (
    REDUCTIONS,
    reduce,
    transducer_loss_reference,
)

# Utterances are one axis of a launch, cells are counted in 32 bits.
MAX_BATCH = 65535
MAX_CELLS = 2**30


def transducer_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    logit_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *,
    blank: int = 0,
    reduction: str = "none",
    clamp: float = -1.0,
    fastemit_lambda: float = 0.0,
    inplace: bool = False,
    backend: str = "auto",
) -> torch.Tensor:
    """Transducer (RNN-T) loss of raw logits (Graves, 2012).

    -log p of each utterance, p being the sum over all paths through its
    lattice of frames and labels. The log-softmax is not materialised: one
    pass over the logits leaves three float32 numbers for each (t, u), the
    lattice's two recurrences run over those in float32 log space, and backward
    writes the gradient in one pass more, in the logits' dtype. Results do not
    vary from run to run.

    Frames and labels behind an utterance's lengths are not read, and their
    gradient is zero. An utterance that no path can produce has an infinite
    loss and a gradient of zero: where labels have logits of -inf, where there
    are no frames, and, on a GPU, where a length or a label is out of range
    (on the CPU that is an error). A log-probability below -1e30 counts as
    that of zero. An utterance with NaN or +inf among its logits, or with a
    (t, u) where all are -inf, has a NaN loss. No utterance affects another
    one's loss or gradient.

    Arguments
    ---------
    logits : torch.Tensor
        (B, T, U + 1, V), un-softmaxed, in float32, bfloat16 or float16
        (float64 on the torch path); copied if not contiguous.
    targets : torch.Tensor
        (B, U), integers from 0 to V - 1, none of them the blank; any value
        behind an utterance's labels.
    logit_lengths : torch.Tensor
        Frames of each utterance (B,), whole numbers from 0 to T.
    target_lengths : torch.Tensor
        Labels of each utterance (B,), whole numbers from 0 to U. There may be
        more of them than frames.
    blank : int
        Index of the blank; a negative one counts from V, as in torchaudio.
    reduction : str
        ``"none"``, ``"mean"`` over utterances or ``"sum"``.
    clamp : float
        As in torchaudio: where positive, each element of the gradient of
        -log p is clamped to [-clamp, clamp], before it is multiplied by what
        comes from behind the loss, such as 1 / B for ``"mean"``.
    fastemit_lambda : float
        FastEmit (Yu et al., 2021) rewards early labels: gradients that pass
        through the log-probability of an emitted label count
        (1 + fastemit_lambda) times, those through blanks once. The value
        stays -log p (NeMo multiplies it by 1 + fastemit_lambda; its gradient
        is the same).
    inplace : bool
        Allow backward to write the gradient over the logits, which saves a
        tensor of their size and **destroys them**: nothing may use them
        after backward, which is possible once. Autograd raises if another
        operation kept them for its own backward. They must not be a leaf.
        The torch path and ``torch.compile`` make no use of it.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        float32 (float64 for float64 logits): (B,) or a scalar. Double
        backward is supported for -log p itself: not with ``clamp``,
        ``fastemit_lambda`` or ``inplace``, nor on the Triton path under
        ``torch.compile``.

    Raises
    ------
    ValueError
        For a shape, option or (on the CPU) value that is not allowed.
    TypeError
        For floating lengths or targets, or integer logits.
    RuntimeError
        If ``backend="triton"`` cannot run; in backward, for a second one that
        is not possible.

    Example
    -------
    >>> logits = torch.zeros(2, 3, 2, 4, requires_grad=True)
    >>> targets = torch.tensor([[1], [3]])
    >>> loss = transducer_loss(
    ...     logits, targets, torch.tensor([3, 2]), torch.tensor([1, 1])
    ... )
    >>> loss.detach()  # 3 and 2 paths, each step with probability 1/4
    tensor([4.4466, 3.4657])
    """
    check_choice("reduction", reduction, REDUCTIONS)
    check_logits(logits)
    shape = tuple(logits.shape)
    check_integers(shape, logits.device, targets, logit_lengths, target_lengths)
    check_options(shape[3], blank, fastemit_lambda)
    if inplace and logits.is_leaf and logits.requires_grad:
        raise ValueError(
            "inplace=True would overwrite logits that are a leaf, such as a "
            "parameter: they must be the result of an operation."
        )
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        check_lengths(shape, logit_lengths, target_lengths)
        check_labels(shape, targets, target_lengths)
    what = "transducer_loss"
    obstacle = size_obstacle(shape)
    if not use_triton(backend, what, logits.device, logits.dtype, obstacle):
        return transducer_loss_reference(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            blank=blank,
            reduction=reduction,
            clamp=clamp,
            fastemit_lambda=fastemit_lambda,
        )
    cost = run_transducer_loss(
        logits,
        targets,
        logit_lengths,
        target_lengths,
        blank % shape[3],
        float(clamp),
        float(fastemit_lambda),
        inplace,
    )
    return reduce(cost, reduction)


def check_logits(logits: torch.Tensor) -> None:
    """Refuse what is no batch of logits, in one sentence."""
    if logits.dim() != 4 or 0 in logits.shape[1:]:
        raise ValueError(
            "logits must be (batch, frames, labels + 1, vocabulary), none of "
            f"the last three 0, got shape {tuple(logits.shape)}."
        )
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating, got {logits.dtype}.")


def check_integers(
    shape: tuple[int, ...],
    device: torch.device,
    targets: torch.Tensor,
    logit_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
) -> None:
    """Refuse targets and lengths that do not fit the logits.

    Arguments
    ---------
    shape : tuple of int
        Of the logits, (B, T, U + 1, V).
    device : torch.device
        Where they are.
    targets, logit_lengths, target_lengths : torch.Tensor

    Raises
    ------
    ValueError
        If their shape or device is another one.
    TypeError
        If they are not whole numbers.
    """
    B, _, U1, _ = shape
    for name, tensor, expected in (
        ("targets", targets, (B, U1 - 1)),
        ("logit_lengths", logit_lengths, (B,)),
        ("target_lengths", target_lengths, (B,)),
    ):
        if tensor.shape != expected:
            raise ValueError(
                f"{name} must be {expected} for logits of {shape}, got shape "
                f"{tuple(tensor.shape)}."
            )
        if not is_integer(tensor):
            raise TypeError(
                f"{name} must be whole numbers, got {tensor.dtype}."
            )
        check_device(name, tensor, device, "logits")


def check_options(V: int, blank: int, fastemit_lambda: float) -> None:
    """Refuse a blank outside the vocabulary, or a negative weight."""
    if not -V <= blank < V:
        raise ValueError(f"blank={blank} is outside the vocabulary of {V}.")
    if not 0 <= fastemit_lambda < math.inf:
        raise ValueError(
            f"fastemit_lambda={fastemit_lambda} must be at least 0 and finite."
        )


def check_lengths(
    shape: tuple[int, ...],
    logit_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
) -> None:
    """Refuse lengths out of range; a GPU would have to wait."""
    _, T, U1, _ = shape
    for name, lengths, most in (
        ("logit_lengths", logit_lengths, T),
        ("target_lengths", target_lengths, U1 - 1),
    ):
        wrong = lengths[(lengths < 0) | (lengths > most)]
        if len(wrong):
            raise ValueError(
                f"{name} must be from 0 to {most} for logits of {shape}, got "
                f"{wrong[0].item()}."
            )


def check_labels(
    shape: tuple[int, ...], targets: torch.Tensor, target_lengths: torch.Tensor
) -> None:
    """Refuse labels out of range; a GPU would have to wait."""
    _, _, U1, V = shape
    used = torch.arange(U1 - 1) < target_lengths[:, None]
    wrong = targets[used & ((targets < 0) | (targets >= V))]
    if len(wrong):
        raise ValueError(
            f"targets must be from 0 to {V - 1} for a vocabulary of {V}, got "
            f"{wrong[0].item()}."
        )


def size_obstacle(shape: tuple[int, ...]) -> str | None:
    """Say why the kernels do not take logits of a shape, if they do not."""
    B, T, U1, _ = shape
    if B > MAX_BATCH:
        return f"the kernels take at most {MAX_BATCH} utterances, not {B}"
    # A lattice may take twice the room of its cells.
    if T * U1 > MAX_CELLS:
        return (
            f"the kernels take at most {MAX_CELLS} pairs of frame and label "
            f"an utterance, not {T} * {U1}"
        )
    return None
