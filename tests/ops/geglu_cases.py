"""Definitions of the gated layers, and how their tests call them.

The definitions share nothing with the code under test but dropout's mask,
which has tests of its own.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from depthwise_cases import doubles, outcome
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops import geglu_ffn, geglu_linear
from speechbrain_triton.ops.dropout import keep_mask
from speechbrain_triton.ops.geglu_ffn import geglu_ffn_reference
from speechbrain_triton.ops.geglu_linear import geglu_linear_reference

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)
APPROXIMATIONS = ("none", "tanh")
FUSED = "geglu_linear_hopper_kernel"


def gelu(z, approximate="none"):
    """z P(Z <= z) for a normal Z, or its approximation, in their formulas."""
    if approximate == "tanh":
        u = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
        return z * (1 + torch.tanh(u)) / 2
    return z * torch.erfc(-z / math.sqrt(2)) / 2


def linear_definition(
    x, weight, bias=None, *, approximate="none", dropout=0.0, seed=0
):
    z = x @ weight.mT
    if bias is not None:
        z = z + bias
    F = weight.shape[0] // 2
    h = z[..., :F] * gelu(z[..., F:], approximate)
    rate = round(dropout * 65536) / 65536
    if rate == 0:
        return h
    if rate == 1:
        return h * 0
    kept = keep_mask(math.prod(h.shape[:-1]), F, dropout, seed, h.device)
    return h * kept.view(h.shape) / (1 - rate)


def ffn_definition(
    x, weight, bias=None, out_weight=None, out_bias=None, **options
):
    y = linear_definition(x, weight, bias, **options) @ out_weight.mT
    return y if out_bias is None else y + out_bias


def linear_inputs(
    *shape, F, dtype=torch.float32, device="cpu", bias=True, weight_dtype=None
):
    """x of a shape and parameters that give z a deviation of about one."""
    K = shape[-1]
    tensors = {
        "x": torch.randn(shape),
        "weight": torch.randn(2 * F, K) / K**0.5,
    }
    if bias:
        tensors["bias"] = torch.randn(2 * F)
    return converted(tensors, dtype, device, weight_dtype)


def ffn_inputs(*shape, F, D=6, bias=True, **options):
    tensors = linear_inputs(*shape, F=F, bias=bias, **options)
    more = {"out_weight": torch.randn(D, F) / F**0.5}
    if bias:
        more["out_bias"] = torch.randn(D)
    weight = tensors["weight"]
    return tensors | converted(more, weight.dtype, weight.device)


def converted(tensors, dtype, device, weight_dtype=None):
    return {
        name: t.to(device, dtype if name == "x" else weight_dtype or dtype)
        for name, t in tensors.items()
    }


def run_ffn(function):
    """With biases that may be absent, as ``geglu_linear`` has them."""

    def run(x, weight, bias=None, out_weight=None, out_bias=None, **options):
        return function(x, weight, bias, out_weight, out_bias, **options)

    return run


class Case(NamedTuple):
    """An op, its twin, its definition and its inputs."""

    op: Callable
    twin: Callable
    definition: Callable
    inputs: Callable


LINEAR = Case(
    geglu_linear, geglu_linear_reference, linear_definition, linear_inputs
)
FFN = Case(
    run_ffn(geglu_ffn), run_ffn(geglu_ffn_reference), ffn_definition, ffn_inputs
)
CASES = {"linear": LINEAR, "ffn": FFN}


def kernels_of(tensors):
    """What a call and its backward start, for a linear layer like this."""
    from speechbrain_triton.ops.geglu_linear.launch import is_fused

    x = tensors["x"].reshape(-1, tensors["x"].shape[-1]).contiguous()
    fused = is_fused(x, tensors["weight"].contiguous())
    kernels = {FUSED if fused else "geglu_kernel": 1, "geglu_grad_kernel": 1}
    if "bias" in tensors:
        kernels["sum_partials_kernel"] = 1
    return kernels


def assert_right(case, tensors, launches, scale=1.0, **options):
    """Against the definition in float64, with the kernels taken."""
    dy = scale * torch.randn_like(case.twin(**tensors))
    launches.clear()
    ours = outcome(case.op, tensors, dy, backend="triton", **options)
    assert launches == kernels_of(tensors)
    assert_as_exact_as_stock(
        ours,
        outcome(case.twin, tensors, dy, **options),
        outcome(case.definition, doubles(tensors), dy.double(), **options),
    )
    return ours


def gelu_through_op(z, **options):
    """gelu(z) for z (F,), as the op computes it: the first half is one."""
    weight = torch.cat((torch.ones_like(z), z))[:, None]
    return geglu_linear(z.new_ones(1, 1), weight, **options)[0]


def mask_through_op(M, F, device, **options):
    """Which elements of h (M, F) the op's dropout keeps."""
    x, weight = torch.ones(M, 1), torch.ones(2 * F, 1)
    h = geglu_linear(x.to(device), weight.to(device), **options)
    return h != 0
