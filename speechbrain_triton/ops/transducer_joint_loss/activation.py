"""The joint network's nonlinearity, and its slope, for each element."""

import triton
import triton.language as tl

from speechbrain_triton.ops.gelu import gelu_cdf


@triton.jit
def activate(x, NONLINEARITY: tl.constexpr):
    """The nonlinearity of x, float32."""
    if NONLINEARITY == "tanh":
        return _tanh(x)
    elif NONLINEARITY == "relu":
        # A comparison keeps NaN, a maximum does not.
        return tl.where(x < 0.0, 0.0, x)
    elif NONLINEARITY == "leaky_relu":
        return tl.where(x < 0.0, 0.01 * x, x)
    elif NONLINEARITY == "gelu":
        cdf, _ = gelu_cdf(x, False)
        return x * cdf
    else:
        return x


@triton.jit
def slope(x, NONLINEARITY: tl.constexpr):
    """Its derivative; at 0 that of PyTorch."""
    if NONLINEARITY == "tanh":
        y = _tanh(x)
        return 1.0 - y * y
    elif NONLINEARITY == "relu":
        return tl.where(x > 0.0, 1.0, 0.0)
    elif NONLINEARITY == "leaky_relu":
        return tl.where(x > 0.0, 1.0, 0.01)
    elif NONLINEARITY == "gelu":
        _, derivative = gelu_cdf(x, False)
        return derivative
    else:
        return tl.zeros_like(x) + 1.0


@triton.jit
def _tanh(x):
    """Within 4 units in the last place; a series where 1 - exp cancels."""
    e = tl.exp2(-2.8853900817779268 * tl.abs(x))
    large = (1.0 - e) / (1.0 + e)
    x2 = x * x
    series = 0.021869488536155203 * x2 - 0.05396825396825397
    series = series * x2 + 0.13333333333333333
    series = series * x2 - 0.3333333333333333
    series = x + x * x2 * series
    return tl.where(x2 < 0.0625, series, tl.where(x < 0.0, -large, large))
