"""What the passes over a batch are told, and what they give back."""

from typing import NamedTuple

import torch


class Options(NamedTuple):
    """What a call says besides its tensors; ``dtype`` is that of products."""

    nonlinearity: str
    blank: int
    clamp: float
    fastemit_lambda: float
    dtype: torch.dtype
    workspace: int


class Gradients(NamedTuple):
    """float32, ``scale`` times too large; None where not needed.

    Those of encoder and predictor are both there or both not.
    """

    scale: float
    encoder: torch.Tensor | None
    predictor: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None
