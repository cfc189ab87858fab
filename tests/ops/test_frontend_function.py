"""The front end as one function: slices of backward, and what is kept.

Its values and gradients against plain layers are in the module's tests.
"""

import pytest
import torch
from depthwise_cases import doubles
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops.frontend import (
    FrontEndParameters,
    frontend_reference,
    launch,
    run_frontend,
)
from speechbrain_triton.ops.frontend.reference import halved


def tensors_of(n_blocks, C, K=3, *, dtype=torch.float32, device="cpu"):
    shapes = {"conv_weight": (C, 1, K, K), "conv_bias": (C,)}
    for n in range(n_blocks):
        shapes |= {
            f"depthwise_weight{n}": (C, 1, K, K),
            f"depthwise_bias{n}": (C,),
            f"pointwise_weight{n}": (C, C, 1, 1),
            f"pointwise_bias{n}": (C,),
        }
    return {
        name: (0.3 * torch.randn(shape)).to(device, dtype)
        for name, shape in shapes.items()
    }


def outcome(function, x, tensors, dy, frames, dtype=None, input_grad=True):
    leaves = [t.detach().requires_grad_() for t in tensors.values()]
    x = x.detach().requires_grad_(input_grad)
    y = function(
        x,
        FrontEndParameters.of(leaves),
        frames,
        padding="same",
        dtype=dtype or x.dtype,
    )
    if input_grad:
        leaves.append(x)
    grads = torch.autograd.grad(y, leaves, dy.to(y.dtype))
    names = [*tensors, "dx"][: len(leaves)]
    return {"y": y.detach(), **dict(zip(names, grads, strict=True))}


def case(B, T, n_blocks, C, dtype, device, K=3):
    x = torch.randn(B, T, 20).to(device, dtype)
    factor = 2 ** (n_blocks + 1)
    dy = torch.randn(B, -(-T // factor), -(-20 // factor), C)
    return x, tensors_of(n_blocks, C, K, dtype=dtype, device=device), dy.to(x)


@pytest.fixture(params=[1, 2, 5])
def n_slices(request, monkeypatch):
    """Into how many slices a large batch, of 5 utterances, is cut."""
    size = -(-5 // request.param)
    slices = [slice(b, b + size) for b in range(0, 5, size)]
    monkeypatch.setattr(launch, "_slices", lambda u: slices)
    monkeypatch.setattr(launch, "SMALL_BYTES", 0)
    return request.param


@pytest.mark.parametrize("n_blocks", [1, 2])
def test_small_batch_comes_out_as_a_large_one(
    n_blocks, device, launches, monkeypatch
):
    x, tensors, dy = case(5, 19, n_blocks, 24, torch.float32, device)
    frames = torch.tensor([19, 3, 8, 1, 17], device=device)
    launches.clear()
    small = outcome(run_frontend, x, tensors, dy, frames)
    assert launches["patch_kernel"] == 1
    monkeypatch.setattr(launch, "SMALL_BYTES", 0)
    large = outcome(run_frontend, x, tensors, dy, frames)
    assert launches["patch_kernel"] == 3
    for name, expected in large.items():
        assert torch.equal(small[name], expected), name


def test_backward_changes_nothing_that_is_kept(device):
    x, tensors, dy = case(2, 11, 2, 16, torch.float32, device)
    leaves = [t.requires_grad_() for t in tensors.values()]
    y = run_frontend(x, FrontEndParameters.of(leaves), None, "same", x.dtype)
    once = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    again = torch.autograd.grad(y, leaves, dy)
    assert all(map(torch.equal, once, again))


@pytest.mark.parametrize("n_blocks", [1, 2])
def test_slices_add_up_to_the_whole(n_blocks, n_slices, device, launches):
    x, tensors, dy = case(5, 19, n_blocks, 24, torch.float32, device)
    frames = torch.tensor([19, 3, 8, 1, 17], device=device)
    launches.clear()
    ours = outcome(run_frontend, x, tensors, dy, frames)
    assert launches["stem_kernel"] == 1
    assert launches["patch_kernel"] == 1 + n_slices
    assert launches["stem_sums_kernel"] == n_slices
    assert launches["bias_relu_grad_kernel"] == n_slices
    assert launches["depthwise_conv2d_grad_kernel"] == (
        n_slices * (n_blocks - 1)
    )
    exact = outcome(
        frontend_reference, x.double(), doubles(tensors), dy.double(), frames
    )
    stock = outcome(frontend_reference, x, tensors, dy, frames)
    assert_as_exact_as_stock(ours, stock, exact)


def test_slices_are_equal_shares_by_bytes(monkeypatch):
    def sizes(B, nbytes):
        monkeypatch.setattr(launch, "SLICE_BYTES", nbytes)
        u = torch.zeros(B, 4, 4, 16)  # 1 KiB an utterance
        return [s.stop - s.start for s in launch._slices(u)]

    assert sizes(6, 2**20) == [6]
    assert sizes(6, 4 * 1024) == [3, 3]
    assert sizes(7, 4 * 1024) == [4, 4]
    assert sizes(3, 1) == [1, 1, 1]


def test_features_need_no_gradient(device, launches):
    x, tensors, dy = case(2, 11, 2, 16, torch.float32, device)
    launches.clear()
    outcome(run_frontend, x, tensors, dy, None, input_grad=False)
    assert "patch_grad_kernel" not in launches


@pytest.mark.parametrize("small", [True, False])
def test_kept_for_backward_is_what_the_docs_say(small, device, monkeypatch):
    """N elements and N / 4 twice, besides x, parameters and casts of them.

    Of a small batch N more, and the patches: here N too.
    """
    if not small:
        monkeypatch.setattr(launch, "SMALL_BYTES", 0)
    x, tensors, _ = case(2, 32, 2, 64, torch.float32, device)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t) or t, lambda t: t
    ):
        leaves = [t.requires_grad_() for t in tensors.values()]
        run_frontend(x, FrontEndParameters.of(leaves), None, "same", x.dtype)
    sizes = sorted(
        t.numel()
        for t in kept
        if t is not x and not any(t.shape[:2] == w.shape[:2] for w in leaves)
    )
    n = 2 * 8 * 5 * 64
    last = 2 * 4 * 3 * 64
    assert sizes == [last, last, n, n, n][: 5 if small else 3]


def test_double_backward_is_the_twins(device):
    def second(function, dtype):
        torch.manual_seed(1)
        x, tensors, _ = case(1, 9, 2, 16, dtype, device)
        leaves = [t.requires_grad_() for t in tensors.values()]
        x.requires_grad_()
        y = function(
            x, FrontEndParameters.of(leaves), None, padding="same", dtype=dtype
        )
        (dx,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(dx.pow(2).sum(), leaves, allow_unused=True)

    ours = second(run_frontend, torch.float32)
    exact = second(frontend_reference, torch.float64)
    for a, b in zip(ours, exact, strict=True):
        if b is not None:
            assert (a.double() - b).norm() <= 1e-4 * b.norm() + 1e-12


def test_backward_ignores_an_autocast_around_it(device):
    x, tensors, dy = case(2, 11, 2, 16, torch.float32, device)
    expected = outcome(run_frontend, x, tensors, dy, None)
    leaves = [t.requires_grad_() for t in tensors.values()]
    y = run_frontend(
        x, FrontEndParameters.of(leaves), None, "same", torch.float32
    )
    with torch.autocast(device, torch.bfloat16):
        grads = torch.autograd.grad(y, leaves, dy)
    for name, grad in zip(tensors, grads, strict=True):
        assert torch.equal(grad, expected[name]), name


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str
)
@pytest.mark.parametrize("K", [3, 5])
def test_right_at_the_size_of_a_training_batch(K, dtype, launches):
    x, tensors, dy = case(8, 803, 2, 256, dtype, "cuda", K)
    frames = torch.randint(1, 803, (8,), device="cuda")
    ours = outcome(run_frontend, x, tensors, dy, frames)
    stock = outcome(frontend_reference, x, tensors, dy, frames)
    exact = outcome(
        frontend_reference, x.double(), doubles(tensors), dy.double(), frames
    )
    assert_as_exact_as_stock(ours, stock, exact)


@pytest.mark.gpu
def test_memory_is_a_quarter_of_plain_layers(launches):
    x = torch.randn(64, 3200, 80, device="cuda")
    tensors = tensors_of(2, 256, device="cuda")
    dy = torch.randn(64, 400, 10, 256, device="cuda")

    def peak(function):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        outcome(
            function, x, tensors, dy, None, torch.bfloat16, input_grad=False
        )
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    peak(run_frontend)
    assert peak(run_frontend) < peak(frontend_reference) / 4


@pytest.mark.parametrize("n_blocks", [1, 2])
def test_frames_of_layers_are_those_of_the_convolutions(n_blocks):
    frames = torch.arange(1, 400)
    expected = [frames, halved(halved(frames))]
    for _ in range(n_blocks - 1):
        expected.append(halved(expected[-1]))
    found = launch.frames_of_layers(frames, n_blocks)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_a_compiled_front_end_runs_the_kernels(device, launches):
    torch.compiler.reset()
    x, tensors, dy = case(2, 11, 2, 16, torch.float32, device)

    def function(x, parameters, frames, padding, dtype):
        return run_frontend(x, parameters, frames, padding, dtype)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    expected = outcome(run_frontend, x, tensors, dy, None)
    launches.clear()
    found = outcome(compiled, x, tensors, dy, None)
    assert launches["stem_kernel"] == launches["stem_sums_kernel"] == 1
    assert launches["depthwise_conv2d_kernel"] == 1
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()
