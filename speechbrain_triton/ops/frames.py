"""Frames of padded batches: their lengths, and zeros behind them."""

import torch

from speechbrain_triton.ops.inputs import check_device, is_integer


def whole_frames(
    lengths: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor | None:
    """Refuse lengths that are not whole frames of x's utterances.

    Arguments
    ---------
    lengths : torch.Tensor or None
        Should be (B,), of an integer dtype.
    x : torch.Tensor
        (B, T, ...).

    Returns
    -------
    torch.Tensor or None
        The lengths as kernels read them: contiguous, int64.

    Raises
    ------
    ValueError
        If they have another shape, or are on another device than x.
    TypeError
        If they are not whole numbers.
    """
    if lengths is None:
        return None
    if lengths.shape != x.shape[:1]:
        raise ValueError(
            f"lengths must be ({x.shape[0]},), one for each utterance of x, "
            f"got shape {tuple(lengths.shape)}."
        )
    if not is_integer(lengths):
        raise TypeError(
            f"lengths must be whole numbers of frames, got {lengths.dtype}."
        )
    check_device("lengths", lengths, x.device)
    return lengths.long().contiguous()


def zeros_behind(x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """x with zeros from each utterance's length on.

    Arguments
    ---------
    x : torch.Tensor
        (B, T, ...).
    lengths : torch.Tensor or None
        (B,), whole frames; None leaves x as it is.

    Returns
    -------
    torch.Tensor
        Of x's shape.

    Example
    -------
    >>> zeros_behind(torch.ones(2, 3), torch.tensor([3, 1]))
    tensor([[1., 1., 1.],
            [1., 0., 0.]])
    """
    if lengths is None:
        return x
    frames = torch.arange(x.shape[1], device=x.device)
    outside = frames >= lengths.unsqueeze(1)  # [B, T]
    return x.masked_fill(outside.view(*outside.shape, *[1] * (x.dim() - 2)), 0)
