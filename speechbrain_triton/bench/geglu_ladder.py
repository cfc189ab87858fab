"""The way from a matmul to the whole of GEGLU, step by step, forward."""

import torch
import torch.nn.functional as F

from speechbrain_triton.bench.geglu_linear import EAGER, parameters
from speechbrain_triton.bench.shapes import LinearCase
from speechbrain_triton.bench.timing import Inputs
from speechbrain_triton.bench.variant import ForwardVariant, Outputs
from speechbrain_triton.ops import geglu_linear
from speechbrain_triton.ops.geglu_linear.launch import Gating, launch_geglu


def variants(case: LinearCase, device: str) -> dict[str, ForwardVariant]:
    """Build a step in PyTorch and, where the package has it, on Triton.

    The package multiplies by itself only where it gates in the same kernel,
    so that there is Triton of two steps: of the whole, and of the gate behind
    PyTorch's matmul.

    Arguments
    ---------
    case : LinearCase
        Shape, dtype and step.
    device : str
        Where the parameters are.

    Returns
    -------
    dict of ForwardVariant
        ``"eager"``, ``"exact"`` and maybe ``"triton"``.
    """
    params = tuple(p.detach() for p in parameters(case, device))
    exact = tuple(parameter.double() for parameter in params)

    def variant(step, params):
        return ForwardVariant(
            lambda x: step(x, *params), params[0].dtype, EAGER
        )

    result = {
        "eager": variant(STEPS[case.step], params),
        "exact": variant(STEPS[case.step], exact),
    }
    if case.step in ON_TRITON:
        result["triton"] = variant(ON_TRITON[case.step], params)
    return result


def draw(case: LinearCase, device: str) -> Inputs:
    """Draw x (M, K), or for the gate alone z (M, 2 N)."""
    columns = 2 * case.N if case.step == "gelu_mul" else case.K
    x = torch.randn(case.M, columns, device=device)
    return (x.to(case.torch_dtype),)


def _matmul(x, weight, bias) -> Outputs:
    return F.linear(x, weight, bias)


def _matmul_gelu(x, weight, bias) -> Outputs:
    first, second = F.linear(x, weight, bias).chunk(2, -1)
    return first, F.gelu(second)


def _matmul_gelu_mul(x, weight, bias) -> Outputs:
    return _gelu_mul(F.linear(x, weight, bias))


def _second_half(x, weight, bias) -> Outputs:
    return F.gelu(F.linear(x, weight.chunk(2)[1], bias.chunk(2)[1]))


def _first_half(x, weight, bias) -> Outputs:
    return F.linear(x, weight.chunk(2)[0], bias.chunk(2)[0])


def _both_halves(x, weight, bias) -> Outputs:
    halves = zip(weight.chunk(2), bias.chunk(2), strict=True)
    return tuple(F.linear(x, *half) for half in halves)


def _gelu_mul(z, *_) -> Outputs:
    first, second = z.chunk(2, -1)
    return first * F.gelu(second)


def _fused(x, weight, bias) -> Outputs:
    return geglu_linear(x, weight, bias, backend="triton")


def _gate_on_triton(z, *_) -> Outputs:
    return launch_geglu(z, Gating.of("none", 0.0, 0))


STEPS = {
    "matmul": _matmul,
    "matmul_gelu": _matmul_gelu,
    "matmul_gelu_mul": _matmul_gelu_mul,
    "second_half": _second_half,
    "first_half": _first_half,
    "both_halves": _both_halves,
    "gelu_mul": _gelu_mul,
}
ON_TRITON = {"matmul_gelu_mul": _fused, "gelu_mul": _gate_on_triton}
