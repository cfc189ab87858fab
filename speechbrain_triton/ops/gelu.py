"""GELU and its slope, as kernels compute them."""

import triton
import triton.language as tl


@triton.jit
def gelu_cdf(z, TANH: tl.constexpr):
    """gelu(z) / z, and gelu'(z)."""
    if TANH:
        # Far beyond where tanh is 1, so that the slope stays finite.
        square = tl.minimum(z * z, 1e4)
        # sigmoid(2 u) = (1 + tanh(u)) / 2
        exponent = -2.302208198 - 0.1029432396 * square
        cdf = 1.0 / (1.0 + tl.exp2(exponent * z))
        du = 1.5957691216057308 * (1.0 + 0.134145 * square)
        return cdf, cdf + z * du * cdf * (1.0 - cdf)
    density = tl.exp2(-0.7213475204444817 * z * z)
    tail = tail_over_density(1.0 / (1.0 + 0.3 * tl.abs(z))) * density
    cdf = tl.where(z > 0.0, 1.0 - tail, tail)
    return cdf, cdf + 0.3989422804014327 * z * density


@triton.jit
def tail_over_density(t):
    """The normal distribution's tail behind |z| over exp(-z * z / 2).

    In t = 1 / (1 + 0.3 |z|): a minimax fit of the relative error, which is
    below 1.5e-7 up to |z| = 14, where the density leaves float32. At about
    half of erf's instructions it is right in the tail too, where 1 + erf
    cancels, and the density that gelu' needs comes with it.
    """
    tail = 0.03567477 * t - 0.15720308
    tail = tail * t + 0.2063535
    tail = tail * t - 0.05368364
    tail = tail * t + 0.12856163
    tail = tail * t + 0.09991349
    tail = tail * t + 0.12075396
    tail = tail * t + 0.1196293
    return tail * t
