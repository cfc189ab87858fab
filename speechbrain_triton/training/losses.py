"""The transducer (RNN-T) loss with SpeechBrain's calling convention."""

import torch
import torchaudio

REDUCTIONS = ("mean", "batchmean", "sum", "none")


def transducer_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    input_lens: torch.Tensor,
    target_lens: torch.Tensor,
    blank_index: int,
    reduction: str = "mean",
    use_torchaudio: None = None,
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
    which is what an auxiliary loss should be weighed against.

    See A. Graves, "Sequence Transduction with Recurrent Neural Networks",
    https://arxiv.org/abs/1211.3711. It runs on
    ``torchaudio.functional.rnnt_loss``, which applies the log-softmax itself.

    Arguments
    ---------
    logits : torch.Tensor
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

    Returns
    -------
    torch.Tensor
        float32, a scalar, or (B,) for ``reduction="none"``.

    Raises
    ------
    ValueError
        For shapes that do not fit, lengths out of range, tensors on
        different devices, or an unknown reduction.
    TypeError
        If ``use_torchaudio`` is passed.

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
            "transducer_loss has no argument use_torchaudio: this loss always "
            "runs on torchaudio. Remove the argument from the YAML."
        )
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction={reduction!r} is not one of {', '.join(REDUCTIONS)}."
        )
    _check_shapes(logits, targets, input_lens, target_lens, blank_index)
    frames = _absolute_lengths("input_lens", input_lens, logits.shape[1])
    labels = _absolute_lengths("target_lens", target_lens, targets.shape[1])
    frames = frames.clamp(min=1)

    # torchaudio wants tensors that end with the longest utterance.
    most_frames, most_labels = torch.stack(
        [frames.max(), labels.max()]
    ).tolist()
    costs = torchaudio.functional.rnnt_loss(
        logits[:, :most_frames, : most_labels + 1].float().contiguous(),
        targets[:, :most_labels].int().contiguous(),
        frames,
        labels,
        blank=blank_index,
        reduction="none",
    )
    if reduction == "none":
        return costs
    return costs.sum() if reduction == "sum" else costs.mean()


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
    name: str, lens: torch.Tensor, longest: int
) -> torch.Tensor:
    """Turn relative lengths into int32 counts of at most ``longest``."""
    low, high = torch.stack([lens.min(), lens.max()]).float().tolist()
    zero_allowed = name == "target_lens"
    if not (0 <= low and high <= 1.001 and (zero_allowed or low > 0)):
        interval = "[0, 1]" if zero_allowed else "(0, 1]"
        raise ValueError(
            f"{name} must be relative lengths in {interval}; got {low:g} to "
            f"{high:g}."
        )
    return (lens * longest).round().int().clamp(max=longest)
