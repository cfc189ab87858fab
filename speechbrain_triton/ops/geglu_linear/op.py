"""A linear layer with GEGLU behind it: the public function."""

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.dropout import check_dropout, check_seed
from speechbrain_triton.ops.geglu_linear.autograd import run_geglu_linear
from speechbrain_triton.ops.geglu_linear.reference import (
    APPROXIMATIONS,
    geglu_linear_reference,
)
from speechbrain_triton.ops.inputs import (
    check_device,
    check_vector,
    product_dtype,
)


def geglu_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: str = "none",
    dropout: float = 0.0,
    seed: int | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """A linear layer and GEGLU: first half * gelu(second half).

    The gated linear unit with GELU as the gate (Shazeer, "GLU Variants
    Improve Transformer", 2020, https://arxiv.org/abs/2002.05202) of a linear
    layer's output, halved as ``chunk(2, -1)`` does, and dropout. Products
    accumulate in float32; float32 inputs follow PyTorch's setting for TF32.
    For backward the linear layer's output is kept, 2 F elements a row, beside
    x; dropout's mask is computed again. Double backward is supported.

    Arguments
    ---------
    x : torch.Tensor
        (..., D) in float32, bfloat16 or float16 (float64 on the torch path).
    weight : torch.Tensor
        (2 F, D) in x's dtype, or under autocast in any.
    bias : torch.Tensor, optional
        (2 F,).
    approximate : str
        ``"none"`` for GELU by the error function, or ``"tanh"``. The former is
        within 2e-7 of its size, but in the kernel for Hopper, where a
        polynomial in place of erf is within 6e-6, far below half precision.
    dropout : float
        Probability of dropping an element of the result, in [0, 1].
    seed : int, optional
        Of dropout's mask; by default drawn from PyTorch's generator: on the
        Triton path a seed from that on the CPU. A CUDA graph repeats the
        seed of its capture.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (..., F) in x's dtype; under autocast in autocast's.

    Raises
    ------
    ValueError
        For a shape or option that is not allowed.
    TypeError
        If dtypes differ outside autocast, or the seed is no whole number.
    RuntimeError
        If ``backend="triton"`` cannot run.

    Example
    -------
    >>> x, weight = torch.rand(4, 100, 64), torch.rand(512, 64)
    >>> geglu_linear(x, weight, dropout=0.1).shape
    torch.Size([4, 100, 256])
    """
    check_choice("approximate", approximate, APPROXIMATIONS)
    dropout = check_dropout(dropout)
    check_seed(seed)
    check_halves(x, weight, bias)
    dtype = product_dtype(x, {"weight": weight, "bias": bias})
    obstacle = "weight is float64" if weight.dtype is torch.float64 else None
    if not use_triton(backend, "geglu_linear", x.device, dtype, obstacle):
        return geglu_linear_reference(
            x,
            weight,
            bias,
            approximate=approximate,
            dropout=dropout,
            seed=seed,
        )
    return run_geglu_linear(x, weight, bias, approximate, dropout, seed, dtype)


def check_halves(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """Refuse a linear layer that does not fit x, or has no two halves.

    Raises
    ------
    ValueError
        For a shape that is not allowed, or tensors on different devices.
    """
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"x must be (..., channel), got shape {tuple(x.shape)}."
        )
    D = x.shape[-1]
    if weight.dim() != 2 or weight.shape[1] != D:
        raise ValueError(
            f"weight must be (2 F, {D}) for x with {D} channels, got shape "
            f"{tuple(weight.shape)}."
        )
    if weight.shape[0] == 0 or weight.shape[0] % 2:
        raise ValueError(
            "weight must have two halves of rows, got shape "
            f"{tuple(weight.shape)}."
        )
    check_device("weight", weight, x.device)
    if bias is not None:
        check_vector("bias", bias, weight.shape[0], x)
