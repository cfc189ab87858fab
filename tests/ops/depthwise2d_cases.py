"""An oracle for the two-dimensional depthwise convolution, and its inputs.

The oracle shares nothing with the code under test: it gathers, tap by tap,
the inputs that the definition names.
"""

import torch
from depthwise_cases import doubles, outcome
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops.depthwise_conv2d import (
    depthwise_conv2d,
    depthwise_conv2d_reference,
)

ALL_KERNELS = {
    "depthwise_conv2d_kernel": 1,
    "depthwise_conv2d_grad_kernel": 1,
    "sum_partials_kernel": 1,
}


def zeros_around(K, padding, causal):
    """Zeros before and behind an axis."""
    if padding == "valid":
        return 0, 0
    if padding == "causal" and causal:
        return K - 1, 0
    return K // 2, K // 2


def reached(size, K, stride, padding, causal):
    """For each output and tap, which input is read, and whether it exists."""
    before, behind = zeros_around(K, padding, causal)
    outputs = range(0, size + before + behind - K + 1, stride)
    index = torch.tensor([[o + k - before for k in range(K)] for o in outputs])
    return index.clamp(0, size - 1), (index >= 0) & (index < size)


def oracle(
    x,
    weight,
    bias=None,
    input_bias=None,
    *,
    stride=(1, 1),
    padding="same",
    relu=None,
    lengths=None,
):
    """y[t, f] = bias + sum of w[i, k] h[s t + i - pad, s f + k - pad]."""
    T, F = x.shape[1:3]
    h = x if input_bias is None else x + input_bias
    if relu == "before":
        h = torch.where(h > 0, h, torch.zeros_like(h))
    if lengths is not None:
        seen = torch.arange(T, device=x.device) < lengths[:, None]
        h = h * seen[:, :, None, None].to(h)
    K_T, K_F = weight.shape[2:]
    rows, row_exists = reached(T, K_T, stride[0], padding, True)
    columns, column_exists = reached(F, K_F, stride[1], padding, False)
    y = 0.0
    for i in range(K_T):
        for k in range(K_F):
            tap = h[:, rows[:, i]][:, :, columns[:, k]]
            exists = row_exists[:, i, None] & column_exists[None, :, k]
            y = y + weight[:, 0, i, k] * tap * exists[:, :, None].to(h)
    if bias is not None:
        y = y + bias
    return torch.where(y > 0, y, torch.zeros_like(y)) if relu == "after" else y


def inputs(
    B,
    T,
    F,
    C,
    kernel=(3, 3),
    *,
    dtype=torch.float32,
    device="cpu",
    bias=True,
    input_bias=True,
):
    """Random tensors for a call, by argument name."""

    def randn(*shape):
        return torch.randn(shape, dtype=torch.float64).to(device, dtype)

    tensors = {"x": randn(B, T, F, C), "weight": randn(C, 1, *kernel)}
    if bias:
        tensors["bias"] = randn(C)
    if input_bias:
        tensors["input_bias"] = randn(C)
    return tensors


def assert_kernel_is_right(tensors, launches, **options):
    """Value and every gradient, by one launch each and the sum."""
    y = depthwise_conv2d_reference(**tensors, **options)
    dy = torch.randn(y.shape).to(y)
    launches.clear()
    ours = outcome(depthwise_conv2d, tensors, dy, backend="triton", **options)
    assert launches == ALL_KERNELS
    assert_as_exact_as_stock(
        ours,
        outcome(depthwise_conv2d_reference, tensors, dy, **options),
        outcome(oracle, doubles(tensors), dy.double(), **options),
    )
