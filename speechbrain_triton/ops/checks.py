"""Refusals that several ops share."""

import torch


def check_frames(lengths: torch.Tensor, x: torch.Tensor) -> None:
    """Refuse lengths that are not whole frames of x's utterances.

    Arguments
    ---------
    lengths : torch.Tensor
        Should be (B,), of an integer dtype.
    x : torch.Tensor
        (B, T, ...).

    Raises
    ------
    ValueError
        If they have another shape, or are on another device than x.
    TypeError
        If they are not whole numbers.
    """
    if lengths.shape != x.shape[:1]:
        raise ValueError(
            f"lengths must be ({x.shape[0]},), one for each utterance of x, "
            f"got shape {tuple(lengths.shape)}."
        )
    if (
        lengths.is_floating_point()
        or lengths.is_complex()
        or lengths.dtype is torch.bool
    ):
        raise TypeError(
            f"lengths must be whole numbers of frames, got {lengths.dtype}."
        )
    if lengths.device != x.device:
        raise ValueError(
            f"lengths is on {lengths.device} and x on {x.device}: they must "
            "be on the same device."
        )
