"""The feed-forward block with GEGLU: the public function."""

import torch

from speechbrain_triton.backend import check_choice, use_triton
from speechbrain_triton.ops.dropout import check_dropout, check_seed
from speechbrain_triton.ops.geglu_ffn.autograd import run_geglu_ffn
from speechbrain_triton.ops.geglu_ffn.reference import geglu_ffn_reference
from speechbrain_triton.ops.geglu_linear.op import check_halves
from speechbrain_triton.ops.geglu_linear.reference import APPROXIMATIONS
from speechbrain_triton.ops.inputs import check_device, product_dtype


def geglu_ffn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor | None,
    *,
    approximate: str = "none",
    dropout: float = 0.0,
    seed: int | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """A Transformer's feed-forward block with a gated hidden layer.

    ``dropout(first half * gelu(second half)) @ out_weight.T + out_bias`` of
    ``x @ weight.T + bias`` (Shazeer, "GLU Variants Improve Transformer",
    2020, https://arxiv.org/abs/2002.05202). See
    :func:`~speechbrain_triton.ops.geglu_linear` for the hidden layer. For
    backward only the first linear layer's output is kept, 2 F elements a row,
    beside x: the hidden layer is computed again. Double backward is supported.

    Arguments
    ---------
    x : torch.Tensor
        (..., D) in float32, bfloat16 or float16 (float64 on the torch path).
    weight : torch.Tensor
        (2 F, D), of the first layer, in x's dtype, or under autocast in any.
    bias : torch.Tensor or None
        (2 F,).
    out_weight : torch.Tensor
        (D', F), of the second layer.
    out_bias : torch.Tensor or None
        (D',).
    approximate : str
        ``"none"`` for GELU by the error function, or ``"tanh"``. The former is
        within 2e-7 of its size, but in the kernel for Hopper, where a
        polynomial in place of erf is within 6e-6, far below half precision.
    dropout : float
        Probability of dropping an element of the hidden layer, in [0, 1].
    seed : int, optional
        Of dropout's mask; by default drawn from PyTorch's generator: on the
        Triton path a seed from that on the CPU. A CUDA graph repeats the
        seed of its capture.
    backend : str
        ``"auto"``, ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        (..., D') in x's dtype; under autocast in autocast's.

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
    >>> x = torch.rand(4, 100, 64)
    >>> weight, out_weight = torch.rand(512, 64), torch.rand(64, 256)
    >>> geglu_ffn(x, weight, None, out_weight, None).shape
    torch.Size([4, 100, 64])
    """
    check_choice("approximate", approximate, APPROXIMATIONS)
    dropout = check_dropout(dropout)
    check_seed(seed)
    check_halves(x, weight, bias)
    _check_second_layer(x, weight, out_weight, out_bias)
    parameters = {
        "weight": weight,
        "bias": bias,
        "out_weight": out_weight,
        "out_bias": out_bias,
    }
    dtype = product_dtype(x, parameters)
    obstacle = None
    if torch.float64 in (weight.dtype, out_weight.dtype):
        obstacle = "a weight is float64"
    tensors = x, *parameters.values()
    if not use_triton(backend, "geglu_ffn", x.device, dtype, obstacle):
        return geglu_ffn_reference(
            *tensors, approximate=approximate, dropout=dropout, seed=seed
        )
    return run_geglu_ffn(*tensors, approximate, dropout, seed, dtype)


def _check_second_layer(x, weight, out_weight, out_bias) -> None:
    F = weight.shape[0] // 2
    if out_weight.dim() != 2 or out_weight.shape[1] != F:
        raise ValueError(
            f"out_weight must be (D', {F}) behind {F} hidden channels, got "
            f"shape {tuple(out_weight.shape)}."
        )
    if out_bias is not None and out_bias.shape != out_weight.shape[:1]:
        raise ValueError(
            f"out_bias must be ({out_weight.shape[0]},), got shape "
            f"{tuple(out_bias.shape)}."
        )
    check_device("out_weight", out_weight, x.device)
    check_device("out_bias", out_bias, x.device)
