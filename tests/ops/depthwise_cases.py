"""An oracle for the depthwise convolution, and how its tests call it.

The oracle shares nothing with the code under test: it writes the definition
out as one dense float64 product with an explicit mask.
"""

import pytest
import torch

LENGTHS = (1, 5, 15, 16, 17, 31, 37, 48, 50, 64)
CHUNKS = (1, 3, 8, 15, 16, 31, 32)


def chunk_edges():
    """(T, chunk_size) for every length, also at and above the length.

    Chunk sizes from the length on are one case for all code, so one of them
    above the length is enough.
    """
    return [
        (T, chunk)
        for T in LENGTHS
        for chunk in (None, *(c for c in CHUNKS if c < T), T, T + 7)
    ]


# Those that the interpreter has time for: whole, a tile and one frame more,
# several tiles; and one or two of every other length.
CORE_LENGTHS = (1, 17, 37)
CORE_EDGES = {
    (5, 3),
    (15, 8),
    (16, 8),
    (16, 16),
    (31, 16),
    (48, 16),
    (50, 32),
    (64, 15),
}


def kernel_chunk_edges():
    """All chunk edges for a GPU, the core of them for the interpreter."""
    return [
        edge
        if edge[0] in CORE_LENGTHS or edge in CORE_EDGES
        else pytest.param(*edge, marks=pytest.mark.gpu)
        for edge in chunk_edges()
    ]


def oracle(
    x, weight, bias=None, *, padding="same", chunk_size=None, left_context=None
):
    """y[t] = bias + sum of w[s - t + P] x[s] over the s below t's horizon."""
    T, K = x.shape[1], weight.shape[2]
    centre = {"same": (K - 1) // 2, "causal": K - 1, "valid": 0}[padding]
    first = 0
    if left_context is not None:
        first = -left_context.shape[1]
        x = torch.cat((left_context, x), dim=1)

    t = torch.arange(T - K + 1 if padding == "valid" else T, device=x.device)
    s = torch.arange(first, T, device=x.device)
    horizon = torch.full_like(t, T)
    if chunk_size is not None:
        horizon = (t // chunk_size + 1) * chunk_size
    tap = s[None, :] - t[:, None] + centre
    seen = (tap >= 0) & (tap < K) & (s[None, :] < horizon[:, None])
    dense = weight[:, 0][:, tap.clamp(0, K - 1)] * seen  # [C, T_out, S]
    y = torch.einsum("cts,bsc->btc", dense, x)
    return y if bias is None else y + bias


def outcome(function, tensors, dy, **options):
    """Run a convolution forward and backward.

    Arguments
    ---------
    function : callable
        The op, its twin or the oracle.
    tensors : dict
        x, weight and, where used, bias and left_context.
    dy : torch.Tensor
        Gradient of the output.
    **options : dict
        Other arguments.

    Returns
    -------
    dict
        ``y`` and for each tensor its gradient: ``dx``, ``dweight``...
    """
    leaves = {n: t.detach().requires_grad_() for n, t in tensors.items()}
    y = function(**leaves, **options)
    grads = torch.autograd.grad(
        y, list(leaves.values()), dy, materialize_grads=True
    )
    names = ("d" + name for name in leaves)
    return {"y": y.detach(), **dict(zip(names, grads, strict=True))}


def assert_backward_repeats(function, tensors):
    """Bit by bit, and with the inputs left as they were."""
    before = {name: t.clone() for name, t in tensors.items()}
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    y = function(**leaves, backend="triton")
    dy = torch.randn_like(y)
    first, second = (
        torch.autograd.grad(y, list(leaves.values()), dy, retain_graph=True)
        for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    for name, t in leaves.items():
        assert torch.equal(t, before[name])


def doubles(tensors):
    return {name: tensor.double() for name, tensor in tensors.items()}


def inputs(
    B,
    T,
    C,
    K,
    *,
    dtype=torch.float32,
    device="cpu",
    bias=True,
    left_context=0,
    weight_dtype=None,
):
    """Random tensors for a call, by argument name."""

    def randn(*shape, dtype=dtype):
        return torch.randn(shape, dtype=torch.float64).to(device, dtype)

    weight_dtype = weight_dtype or dtype
    tensors = {
        "x": randn(B, T, C),
        "weight": randn(C, 1, K, dtype=weight_dtype),
    }
    if bias:
        tensors["bias"] = randn(C, dtype=weight_dtype)
    if left_context:
        tensors["left_context"] = randn(B, left_context, C)
    return tensors


def out_frames(T, K, padding):
    return T - K + 1 if padding == "valid" else T
