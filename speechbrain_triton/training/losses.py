"""The transducer (RNN-T) loss with SpeechBrain's calling convention."""

import functools
from collections.abc import Callable

import torch

from speechbrain_triton.backend import check_choice, log_once, triton_obstacle
from speechbrain_triton.ops.transducer_joint_loss import transducer_joint_loss
from speechbrain_triton.ops.transducer_loss import transducer_loss as loss_op
from speechbrain_triton.ops.transducer_loss.op import size_obstacle
from speechbrain_triton.training.joint import BACKENDS as JOINT_BACKENDS
from speechbrain_triton.training.joint import JointLogits

REDUCTIONS = ("mean", "batchmean", "sum", "none")
SCALES = ("torchaudio", "speechbrain")
BACKENDS = ("auto", "triton", "torchaudio", "numba", "torch")

# SpeechBrain's numba loss has a thread for each label and one more.
MAX_NUMBA_LABELS = 1023


def transducer_loss(
    logits: torch.Tensor | JointLogits,
    targets: torch.Tensor,
    input_lens: torch.Tensor,
    target_lens: torch.Tensor,
    blank_index: int,
    reduction: str = "mean",
    use_torchaudio: None = None,
    *,
    backend: str = "auto",
    scale: str = "torchaudio",
) -> torch.Tensor:
    """Transducer loss of raw logits, on the CPU and on CUDA.

    It takes the place of ``speechbrain.nnet.losses.transducer_loss`` in a
    recipe's YAML and differs from it in scale. Both start from ``-log p`` of
    each utterance:

    * SpeechBrain reports ``-log p / T`` (``T`` encoder frames), while its
      gradient is that of ``-log p``; and with ``reduction="mean"`` the
      gradient is not divided by the batch size either, so that it is the
      gradient of the *sum*.
    * Here the value is what is differentiated: ``-log p``, not divided by
      ``T``, and ``"mean"`` divides value and gradient by the batch size.

    So ``reduction="sum"`` gives the gradients that SpeechBrain gives under
    any scalar reduction; with ``"mean"`` they are smaller by the batch size,
    which is what an auxiliary loss should be weighed against. For
    SpeechBrain's own values and gradients there is ``scale="speechbrain"``.

    See A. Graves, "Sequence Transduction with Recurrent Neural Networks",
    https://arxiv.org/abs/1211.3711. All backends apply the log-softmax
    themselves and give the same loss:

    * ``"triton"``: :func:`speechbrain_triton.ops.transducer_loss`, on a GPU;
    * ``"torchaudio"``: ``torchaudio.functional.rnnt_loss``;
    * ``"numba"``: SpeechBrain's own, on CUDA, with at most 1023 labels;
    * ``"torch"``: the plain PyTorch twin of the first, anywhere;
    * ``"auto"``: the first that can run of Triton, torchaudio and PyTorch;
      it logs its choice once, with the reason.

    An utterance that no path can produce has an infinite loss. With Triton
    and PyTorch its gradient is zero; torchaudio's and numba's may be NaN.

    Of a joint network with ``fused=True`` come :class:`JointLogits`, whose
    loss, the same, is computed by
    :func:`speechbrain_triton.ops.transducer_joint_loss`.

    Arguments
    ---------
    logits : torch.Tensor or JointLogits
        (B, T, U + 1, V), un-softmaxed, any floating dtype; the loss is
        computed in float32.
    targets : torch.Tensor
        (B, U), integer labels without blanks, padded with any label.
    input_lens : torch.Tensor
        (B,), lengths in ``(0, 1]`` relative to ``T``. Frames are rounded as
        in SpeechBrain, but never to none.
    target_lens : torch.Tensor
        (B,), lengths in ``[0, 1]`` relative to ``U``.
    blank_index : int
        The blank's label.
    reduction : str
        ``"mean"`` or ``"batchmean"`` over utterances, ``"sum"`` or
        ``"none"``.
    use_torchaudio : None
        Only there to explain itself to YAML files that still pass it.
    backend : str
        ``"auto"``, ``"triton"``, ``"torchaudio"``, ``"numba"`` or
        ``"torch"``.
    scale : str
        ``"torchaudio"`` for what is described above, or ``"speechbrain"`` for
        values divided by ``T`` beside gradients that are divided by nothing.

    Returns
    -------
    torch.Tensor
        float32, a scalar, or (B,) for ``reduction="none"``.

    Raises
    ------
    ValueError
        For shapes that do not fit, lengths out of range, tensors on
        different devices, or an unknown option.
    TypeError
        If ``use_torchaudio`` is passed.
    RuntimeError
        If the backend that was asked for cannot run.

    Example
    -------
    >>> logits = torch.zeros(2, 3, 2, 4, requires_grad=True)
    >>> loss = transducer_loss(
    ...     logits,
    ...     targets=torch.tensor([[1], [3]]),
    ...     input_lens=torch.tensor([1.0, 0.67]),
    ...     target_lens=torch.ones(2),
    ...     blank_index=0,
    ...     reduction="none",
    ... )
    >>> loss.detach()  # 3 and 2 paths, each step with probability 1/4
    tensor([4.4466, 3.4657])
    """
    if use_torchaudio is not None:
        raise TypeError(
            "transducer_loss has no argument use_torchaudio: who computes the "
            "loss is chosen by backend, which may be 'torchaudio'. Remove the "
            "argument from the YAML."
        )
    check_choice("reduction", reduction, REDUCTIONS)
    check_choice("backend", backend, BACKENDS)
    check_choice("scale", scale, SCALES)
    if reduction == "batchmean":
        reduction = "mean"
    _check_shapes(logits, targets, input_lens, target_lens, blank_index)
    frames, labels = _absolute_lengths(
        input_lens, target_lens, logits.shape[1], targets.shape[1]
    )
    if isinstance(logits, JointLogits):
        check_choice("backend with a fused joint", backend, JOINT_BACKENDS)
        arguments = logits, targets, frames, labels, blank_index, backend
        # Each cost by itself makes logits twice; see the op.
        if scale == "torchaudio" and reduction != "none":
            return _joint_loss(*arguments, reduction)
        costs = _joint_loss(*arguments, "none")
        return _reduce(costs, frames, reduction, scale)
    costs_of = _COSTS[_choose(logits) if backend == "auto" else backend]
    costs = costs_of(logits, targets, frames, labels, blank_index)
    return _reduce(costs, frames, reduction, scale)


def _joint_loss(logits, targets, frames, labels, blank, backend, reduction):
    loss = transducer_joint_loss(
        *(logits.encoder, logits.predictor, logits.weight, logits.bias),
        *(targets, frames, labels),
        nonlinearity=logits.nonlinearity,
        blank=blank,
        reduction=reduction,
        backend=backend,
    )
    return loss.float()


def _reduce(
    costs: torch.Tensor, frames: torch.Tensor, reduction: str, scale: str
) -> torch.Tensor:
    reported = costs.detach() / frames if scale == "speechbrain" else costs
    if reduction == "none":
        loss = costs
    elif reduction == "sum":
        loss, reported = costs.sum(), reported.sum()
    else:
        loss, reported = costs.sum(), reported.mean()
    if scale == "torchaudio":
        return reported
    return _Reported.apply(loss, reported)


class _Reported(torch.autograd.Function):
    """Shows one value and has the gradient of another."""

    @staticmethod
    def forward(ctx, loss, reported):
        return reported.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def _choose(logits: torch.Tensor) -> str:
    """The first backend that can run, for ``"auto"``."""
    obstacle = triton_obstacle(logits.device, logits.dtype)
    obstacle = obstacle or size_obstacle(tuple(logits.shape))
    if obstacle is None and logits.device.type == "cpu":
        obstacle = "TRITON_INTERPRET=1 runs kernels for debugging only"
    if obstacle is None:
        return "triton"
    choice = "torchaudio"
    if torchaudio_obstacle() is not None:
        choice = "torch"
        obstacle += f", and {torchaudio_obstacle()}"
    log_once(f"transducer_loss: {choice}, because {obstacle}.")
    return choice


@functools.cache
def torchaudio_obstacle() -> str | None:
    """Say why torchaudio's loss cannot run, if it cannot."""
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        # Its compiled part may be missing, or made for another torch.
        return f"torchaudio does not import ({error})"
    if not hasattr(torch.ops.torchaudio, "rnnt_loss_forward"):
        return "torchaudio comes without its compiled transducer loss"
    return None


@functools.cache
def numba_obstacle() -> str | None:
    """Say why SpeechBrain's numba loss cannot run, if it cannot."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    try:
        from speechbrain.integrations.numba.transducer_loss import Transducer

        # numba loads what its kernels need with the first of them only.
        one = torch.ones(1, dtype=torch.int32, device="cuda")
        log_probs = torch.zeros(1, 1, 2, 2, device="cuda").log_softmax(-1)
        Transducer.apply(log_probs, one[None], one, one, 0, "none")
    except Exception as error:  # numba raises what it likes
        reason = (str(error) or repr(error)).splitlines()[0]
        return f"SpeechBrain's loss does not run with this numba ({reason})"
    return None


def _refuse(backend: str, obstacle: str | None) -> None:
    if obstacle is not None:
        raise RuntimeError(
            f"transducer_loss: backend={backend!r} cannot run here because "
            f"{obstacle}; use 'auto' or 'torch'."
        )


def _op_costs(
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    labels: torch.Tensor,
    blank: int,
    backend: str,
) -> torch.Tensor:
    """-log p of each utterance (B,), float32, as the other two give it."""
    return loss_op(
        logits, targets, frames, labels, blank=blank, backend=backend
    ).float()


def _torchaudio_costs(logits, targets, frames, labels, blank):
    _refuse("torchaudio", torchaudio_obstacle())
    import torchaudio

    # torchaudio wants tensors that end with the longest utterance.
    most_frames, most_labels = torch.stack(
        [frames.max(), labels.max()]
    ).tolist()
    return torchaudio.functional.rnnt_loss(
        logits[:, :most_frames, : most_labels + 1].float().contiguous(),
        targets[:, :most_labels].int().contiguous(),
        frames,
        labels,
        blank=blank,
        reduction="none",
    )


def _numba_costs(logits, targets, frames, labels, blank):
    _refuse("numba", _numba_obstacle(logits.device, targets.shape[1]))
    from speechbrain.integrations.numba.transducer_loss import Transducer

    # It reports -log p / T and has the gradient of -log p.
    reported = Transducer.apply(
        logits.float().log_softmax(-1),
        targets.contiguous(),
        frames,
        labels,
        blank,
        "none",
    )
    return _Reported.apply(reported, reported.detach() * frames)


def _numba_obstacle(device: torch.device, n_labels: int) -> str | None:
    if device.type != "cuda":
        return f"the tensors are on a {device.type} device"
    if n_labels > MAX_NUMBA_LABELS:
        return f"it takes at most {MAX_NUMBA_LABELS} labels, not {n_labels}"
    return numba_obstacle()


_COSTS: dict[str, Callable[..., torch.Tensor]] = {
    "triton": functools.partial(_op_costs, backend="triton"),
    "torchaudio": _torchaudio_costs,
    "numba": _numba_costs,
    "torch": functools.partial(_op_costs, backend="torch"),
}


def _check_shapes(
    logits: torch.Tensor,
    targets: torch.Tensor,
    input_lens: torch.Tensor,
    target_lens: torch.Tensor,
    blank_index: int,
) -> None:
    if logits.ndim != 4 or targets.ndim != 2:
        raise ValueError(
            "logits must be (batch, frames, labels + 1, vocabulary) and "
            f"targets (batch, labels); got {tuple(logits.shape)} and "
            f"{tuple(targets.shape)}."
        )
    batch, frames, positions, vocabulary = logits.shape
    if batch == 0 or frames == 0:
        raise ValueError(
            "logits need at least one utterance and one frame; got "
            f"{tuple(logits.shape)}."
        )
    if targets.shape != (batch, positions - 1):
        raise ValueError(
            f"targets must be ({batch}, {positions - 1}) for logits of "
            f"{tuple(logits.shape)}; got {tuple(targets.shape)}."
        )
    for name, lens in (
        ("input_lens", input_lens),
        ("target_lens", target_lens),
    ):
        if lens.shape != (batch,):
            raise ValueError(
                f"{name} must be ({batch},); got {tuple(lens.shape)}."
            )
    if not 0 <= blank_index < vocabulary:
        raise ValueError(
            f"blank_index={blank_index} is outside the vocabulary of "
            f"{vocabulary}."
        )
    devices = {t.device for t in (logits, targets, input_lens, target_lens)}
    if len(devices) > 1:
        raise ValueError(
            "logits, targets, input_lens and target_lens must be on one "
            f"device; got {', '.join(sorted(map(str, devices)))}."
        )


def _absolute_lengths(
    input_lens: torch.Tensor, target_lens: torch.Tensor, T: int, U: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn relative lengths into int32 counts: from 1 to T, from 0 to U."""
    lens = torch.stack([input_lens.float(), target_lens.float()])
    # Read at once: on a GPU this waits for all that was started.
    ranges = torch.stack([lens.amin(1), lens.amax(1)], dim=1).tolist()
    for name, (low, high) in zip(
        ("input_lens", "target_lens"), ranges, strict=True
    ):
        zero_allowed = name == "target_lens"
        if not (0 <= low and high <= 1.001 and (zero_allowed or low > 0)):
            interval = "[0, 1]" if zero_allowed else "(0, 1]"
            raise ValueError(
                f"{name} must be relative lengths in {interval}; got {low:g} "
                f"to {high:g}."
            )
    frames = (input_lens * T).round().int().clamp(min=1, max=T)
    return frames, (target_lens * U).round().int().clamp(max=U)
