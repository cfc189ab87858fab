"""Plain PyTorch twin of the layer normalisation."""

import torch
import torch.nn.functional as F

ACTIVATIONS = {
    "none": lambda x: x,
    "swish": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
}


def layer_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float = 1e-5,
    activation: str = "none",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Layer normalisation by ``torch.nn.functional.layer_norm``.

    Specification, fallback and test oracle of
    :func:`~speechbrain_triton.ops.layer_norm.layer_norm`, with the same
    arguments but ``backend``. Half precision is computed in float32.

    Example
    -------
    >>> x = torch.rand(2, 5, 8)
    >>> layer_norm_reference(x, torch.ones(8), torch.zeros(8)).shape
    torch.Size([2, 5, 8])
    """
    compute = torch.promote_types(x.dtype, torch.float32)
    y = F.layer_norm(
        x.to(compute),
        weight.shape,
        weight.to(compute),
        bias.to(compute),
        eps,
    )
    return ACTIVATIONS[activation](y).to(x.dtype if dtype is None else dtype)
