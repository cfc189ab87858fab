"""The transducer loss: its variants, inputs and limit."""

from collections.abc import Callable

import torch
from speechbrain.nnet.losses import transducer_loss as speechbrain_loss

from speechbrain_triton.bench.limit import copy_pair
from speechbrain_triton.bench.shapes import TransducerCase
from speechbrain_triton.bench.timing import Inputs
from speechbrain_triton.bench.variant import LossVariant
from speechbrain_triton.bench.work import least_bytes
from speechbrain_triton.ops import transducer_loss
from speechbrain_triton.ops.transducer_loss import transducer_loss_reference

BLANK = 0


def variants(case: TransducerCase, device: str) -> dict[str, LossVariant]:
    """Build the losses, all of which take logits of the case's dtype.

    ``torchaudio`` takes no bfloat16, so that its logits are cast to float32,
    as a recipe must. ``numba`` is SpeechBrain's function under autocast, whose
    log-softmax is float32. The plain PyTorch twin is ``twin`` and, in float64,
    ``exact``.

    Arguments
    ---------
    case : TransducerCase
        Shape and dtype.
    device : str
        Whose autocast.

    Returns
    -------
    dict of LossVariant
        ``"torchaudio"``, ``"numba"``, ``"triton"``, ``"triton_inplace"``,
        ``"twin"`` and ``"exact"``.
    """
    dtype = case.torch_dtype

    def numba(logits, targets, frames, labels):
        with torch.autocast(device, dtype, dtype is not torch.float32):
            return speechbrain_loss(
                logits,
                targets,
                frames / case.T,
                labels / case.U,
                blank_index=BLANK,
                reduction="none",
            )

    return {
        "torchaudio": LossVariant(_torchaudio, dtype),
        "numba": LossVariant(numba, dtype, per_frame=True),
        "triton": LossVariant(_triton, dtype),
        "triton_inplace": LossVariant(_triton_inplace, dtype),
        "twin": LossVariant(_twin, dtype),
        "exact": LossVariant(_twin, torch.float64),
    }


def obstacle(impl: str) -> str | None:
    """Say why another's loss cannot run, if it cannot.

    Arguments
    ---------
    impl : str
        ``"torchaudio"`` or ``"numba"``.
    """
    from speechbrain_triton.training import losses

    if impl == "torchaudio":
        return losses.torchaudio_obstacle()
    return losses.numba_obstacle()


def _torchaudio(logits, targets, frames, labels):
    from torchaudio.functional import rnnt_loss

    logits = logits.float()
    return rnnt_loss(
        logits, targets, frames, labels, blank=BLANK, reduction="none"
    )


def _triton(logits, targets, frames, labels):
    return transducer_loss(
        logits, targets, frames, labels, blank=BLANK, backend="triton"
    )


def _triton_inplace(logits, targets, frames, labels):
    # Their gradient is written over the logits: a call that finds them so,
    # since the sets have gone round, takes no other time.
    return transducer_loss(
        logits.view_as(logits),
        targets,
        frames,
        labels,
        blank=BLANK,
        inplace=torch.is_grad_enabled(),
        backend="triton",
    )


def _twin(logits, targets, frames, labels):
    return transducer_loss_reference(
        logits, targets, frames, labels, blank=BLANK
    )


def draw(case: TransducerCase, device: str) -> Inputs:
    """Draw logits (B, T, U + 1, V), targets, lengths and dcost (B,).

    Arguments
    ---------
    case : TransducerCase
        Shape and dtype.
    device : str
        Where.

    Returns
    -------
    tuple of torch.Tensor
        What ``LossVariant.inputs`` takes. All utterances have T frames and U
        labels, all int32 as torchaudio wants them.
    """
    logits = torch.randn(case.B, case.T, case.U + 1, case.V, device=device)
    return (
        logits.to(case.torch_dtype),
        *draw_labels(case, device),
        torch.rand(case.B, device=device) + 0.5,
    )


def draw_labels(case: TransducerCase, device: str) -> Inputs:
    """Draw targets (B, U) and make frames and labels (B,), all int32."""

    def int32(length):
        return torch.full((case.B,), length, dtype=torch.int32, device=device)

    targets = torch.randint(
        1, case.V, (case.B, case.U), dtype=torch.int32, device=device
    )
    return targets, int32(case.T), int32(case.U)


def limit(
    case: TransducerCase, backward: bool, device: str
) -> tuple[Callable[..., object], list[Inputs]]:
    """A copy that moves as many bytes as the op must.

    Arguments
    ---------
    case : TransducerCase
        Shape and dtype.
    backward : bool
        Whether the gradient is computed, too.
    device : str
        Where the copy runs.

    Returns
    -------
    tuple
        The copy, and one set of inputs: with ``time_calls`` they do not come
        from the cache.
    """
    return _copy, [copy_pair(least_bytes(case, backward), device)]


def _copy(source, target):
    target.copy_(source)
