"""A linear layer and GEGLU: its variants, inputs and matmuls."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

from speechbrain_triton.bench.shapes import LinearCase
from speechbrain_triton.bench.timing import Inputs, rotate
from speechbrain_triton.bench.variant import Variant, doubles
from speechbrain_triton.ops import geglu_linear

EAGER = ("eager", "exact")
# Liger's GELU is the tanh approximation, and so is what it is compared with.
TANH = ("tanh", "exact_tanh")


def variants(case: LinearCase, device: str) -> dict[str, Variant]:
    """Build the implementations with the same parameters.

    ``eager`` is plain PyTorch with GELU by the error function. ``liger`` has
    a linear layer for each half, as Liger Kernel's own module, and the gate by
    its function, whose GELU is the tanh approximation: ``tanh`` and
    ``exact_tanh`` are the same in plain PyTorch.

    Arguments
    ---------
    case : LinearCase
        Shape and dtype.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of Variant
        ``"eager"``, ``"triton"``, ``"exact"``, ``"liger"``, ``"tanh"`` and
        ``"exact_tanh"``.
    """
    weight, bias = parameters(case, device)
    params = {"weight": weight, "bias": bias}
    halves = {
        f"the {half} half's {name}": part.detach().clone().requires_grad_()
        for name, parameter in params.items()
        for half, part in zip(
            ("first", "second"), parameter.chunk(2), strict=True
        )
    }
    return {
        "eager": Variant(_eager, params, against=EAGER),
        "triton": Variant(_triton, params, against=EAGER),
        "exact": Variant(_eager, doubles(params), against=EAGER),
        "liger": Variant(_liger, halves, against=TANH),
        "tanh": Variant(_tanh, halves, against=TANH),
        "exact_tanh": Variant(_tanh, doubles(halves), against=TANH),
    }


def parameters(
    case: LinearCase, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw weight (2 N, K) and bias (2 N,) in the case's dtype."""
    weight = torch.randn(2 * case.N, case.K, device=device) / case.K**0.5
    bias = torch.randn(2 * case.N, device=device)
    return tuple(
        parameter.to(case.torch_dtype).requires_grad_()
        for parameter in (weight, bias)
    )


def _eager(x, weight, bias):
    first, second = F.linear(x, weight, bias).chunk(2, -1)
    return first * F.gelu(second)


def _triton(x, weight, bias):
    return geglu_linear(x, weight, bias, backend="triton")


def _liger(x, first_weight, second_weight, first_bias, second_bias):
    first = F.linear(x, first_weight, first_bias)
    second = F.linear(x, second_weight, second_bias)
    return _liger_function().apply(second, first)


@functools.cache
def _liger_function() -> type[torch.autograd.Function]:
    """gelu(a) * b, imported by those who have it and want it."""
    from liger_kernel.ops import LigerGELUMulFunction

    return LigerGELUMulFunction


def _tanh(x, first_weight, second_weight, first_bias, second_bias):
    first = F.linear(x, first_weight, first_bias)
    second = F.linear(x, second_weight, second_bias)
    return first * F.gelu(second, approximate="tanh")


def draw(case: LinearCase, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw x (M, K) and dy (M, N) in the case's dtype."""
    x = torch.randn(case.M, case.K, device=device)
    dy = torch.randn(case.M, case.N, device=device)
    return x.to(case.torch_dtype), dy.to(case.torch_dtype)


def matmul_only(
    case: LinearCase, backward: bool, device: str
) -> tuple[Callable[..., object], list[Inputs]]:
    """PyTorch's matmuls alone, which are the op's floor.

    Forward is the linear layer with its bias, 4 M K N operations; backward
    adds the gradients of x and of weight from a given gradient of the layer's
    output, 8 M K N more. At these sizes the tensor cores need longer for them
    than memory for what must be moved, so that no copy is timed beside.

    Arguments
    ---------
    case : LinearCase
        Shape and dtype.
    backward : bool
        Whether the gradients are computed, too.
    device : str
        Where it runs.

    Returns
    -------
    tuple
        The function, and its sets of inputs.
    """
    weight, bias = (p.detach() for p in parameters(case, device))

    def forward(x):
        return F.linear(x, weight, bias)

    def both(x, dz):
        return forward(x), dz @ weight, dz.T @ x

    def draw_set():
        x, _ = draw(case, device)
        if not backward:
            return (x,)
        dz = torch.randn(case.M, 2 * case.N, device=device)
        return x, dz.to(case.torch_dtype)

    return both if backward else forward, rotate(draw_set)
