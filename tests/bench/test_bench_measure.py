"""What is checked and timed, on tiny shapes and without a clock."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from speechbrain_triton.bench import (
    conv_module,
    depthwise_conv1d,
    frontend,
    measure,
    timing,
)
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.shapes import Case

DEPTHWISE = Case("depthwise_conv1d", 2, 13, 16, 5, "float16", chunk=4)
MODULE = replace(DEPTHWISE, op="conv_module")
STREAM = replace(MODULE, T=4, dtype="float32", chunk=0, stream=True)
FRONTEND = Case("frontend", 3, 13, 16, 3, "float16", F=10)
# Of x but for a front end, and of all parameters.
GRADIENTS = {"depthwise_conv1d": 3, "conv_module": 11, "frontend": 10}
CASES = (DEPTHWISE, replace(DEPTHWISE, chunk=0), MODULE, STREAM, FRONTEND)


def names(case, impl, device):
    return [name for name, _ in measure.measure(case, impl, device)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_pass_the_gate(case, device, launches):
    measure.check(case, device=device)
    assert launches.total()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_stock_is_checked_too(case, device, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward, dynamic: forward)
    measure.check(case, "compile", device)
    monkeypatch.setattr(
        torch,
        "compile",
        lambda forward, dynamic: lambda x, *p: forward(x, *p) * 1.1,
    )
    with pytest.raises(CheckFailed, match="compile: y has relative error"):
        measure.check(case, "compile", device)


def test_a_wrong_kernel_is_refused_before_it_is_timed(
    device, monkeypatch, calls
):
    right = depthwise_conv1d.depthwise_conv1d
    monkeypatch.setattr(
        depthwise_conv1d,
        "depthwise_conv1d",
        lambda x, *args, **kwargs: (
            right(x, *args, **kwargs) + 0.1 * (x - x.detach())
        ),
    )
    sentence = (
        "depthwise_conv1d B2_T13_C16_K5_chunk4 float16 triton: dx has "
        "relative error .*; no time is reported."
    )
    with pytest.raises(CheckFailed, match=sentence):
        names(DEPTHWISE, "triton", device)
    assert not calls


def test_a_kernel_that_is_wrong_without_autograd_is_refused(
    device, monkeypatch
):
    right = depthwise_conv1d.depthwise_conv1d
    monkeypatch.setattr(
        depthwise_conv1d,
        "depthwise_conv1d",
        lambda *args, **kwargs: (
            right(*args, **kwargs) * (1 + 0.1 * (not torch.is_grad_enabled()))
        ),
    )
    with pytest.raises(CheckFailed, match="y without autograd has"):
        measure.check(DEPTHWISE, device=device)


@pytest.mark.parametrize(
    "case, impl, expected",
    [
        (DEPTHWISE, "stock", ["fwd", "fwd_bwd", "fwd_wall", "fwd_bwd_wall"]),
        (DEPTHWISE, "triton", ["fwd", "fwd_bwd", "fwd_wall", "fwd_bwd_wall"]),
        (DEPTHWISE, "limit", ["fwd", "fwd_bwd"]),
        (DEPTHWISE, "compile", []),
        (MODULE, "stock", ["fwd", "fwd_bwd", "fwd_gpu", "fwd_bwd_gpu"]),
        (MODULE, "triton", ["fwd", "fwd_bwd", "fwd_gpu", "fwd_bwd_gpu"]),
        (MODULE, "limit", ["fwd_gpu", "fwd_bwd_gpu"]),
        (MODULE, "channels_last", []),
        (FRONTEND, "stock", ["fwd", "fwd_bwd", "fwd_gpu", "fwd_bwd_gpu"]),
        (
            FRONTEND,
            "channels_last",
            ["fwd", "fwd_bwd", "fwd_gpu", "fwd_bwd_gpu"],
        ),
        (FRONTEND, "triton", ["fwd", "fwd_bwd", "fwd_gpu", "fwd_bwd_gpu"]),
        (FRONTEND, "limit", ["fwd_gpu", "fwd_bwd_gpu"]),
        (STREAM, "stock", ["step", "step_gpu"]),
        (STREAM, "triton", ["step", "step_gpu"]),
        (STREAM, "limit", []),
        (STREAM, "compile", []),
    ],
)
def test_passes_of_each_implementation(case, impl, expected, device, calls):
    assert names(case, impl, device) == expected
    assert list(calls) == expected


def test_compile_has_wall_times_of_modules_only(device, calls, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward, dynamic: forward)
    assert names(MODULE, "compile", device) == ["fwd", "fwd_bwd"]


def test_device_times_are_of_graphs_and_wall_times_are_not():
    for op, device_times in (
        ("depthwise_conv1d", {"fwd", "fwd_bwd"}),
        ("conv_module", {"fwd_gpu", "fwd_bwd_gpu"}),
        ("frontend", {"fwd_gpu", "fwd_bwd_gpu"}),
    ):
        timers = {p.name: p.timer for p in measure.PASSES[op]}
        for name, timer in timers.items():
            expected = (
                timing.time_kernel
                if name in device_times
                else timing.time_steps
            )
            assert timer is expected, name


@pytest.mark.parametrize("impl", ["stock", "triton"])
@pytest.mark.parametrize("case", [DEPTHWISE, MODULE, FRONTEND], ids=str)
def test_timed_calls_return_y_or_all_gradients(case, impl, device, calls):
    names(case, impl, device)
    for name, results in calls.items():
        # Rotated inputs give different results.
        assert len(results) == timing.FEWEST_SETS
        if "bwd" in name:
            first, second = (grads[0] for grads in results[:2])
            assert {len(grads) for grads in results} == {GRADIENTS[case.op]}
        else:
            first, second = results[:2]
            assert first.dtype is torch.float16 and not first.requires_grad
        assert first.isfinite().all()
        assert not torch.equal(first, second)


def test_front_ends_of_torch_differ_in_memory_format(device):
    """Else channels_last would be stock under another name."""
    x, _ = frontend.draw(FRONTEND, device)
    variants = frontend.variants(FRONTEND, device)
    for impl in ("stock", "channels_last"):
        outputs = []
        hook = nn.modules.module.register_module_forward_hook(
            lambda module, _, y, to=outputs: to.append(y.stride())
        )
        y = variants[impl].forward(x)
        hook.remove()
        assert y.shape == (3, 2, 2, 16) and y.is_contiguous()
        last = {stride[1] == 1 for stride in outputs[:-1]}
        assert last == {impl == "channels_last"}


def test_stock_convolves_in_its_own_layout(device, one_set):
    stock = depthwise_conv1d.variants(DEPTHWISE, device)["stock"]
    drawn = depthwise_conv1d.draw(DEPTHWISE, device)
    for given, made in zip(drawn, stock.inputs(*drawn), strict=True):
        assert made.shape == (2, 16, 13) and made.is_contiguous()
        assert torch.equal(made.transpose(1, 2), given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bytes_of_the_depthwise_limit(dtype):
    case = replace(DEPTHWISE, dtype=dtype)
    x = torch.empty(case.B, case.T, case.C, dtype=case.torch_dtype)
    assert depthwise_conv1d.least_bytes(case, False) == 2 * x.nbytes
    assert depthwise_conv1d.least_bytes(case, True) == 5 * x.nbytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_the_module_limit(dtype):
    case = replace(MODULE, dtype=dtype)
    x = torch.empty(case.B, case.T, case.C)
    z = x.to(case.torch_dtype)
    h = torch.cat([z, z], -1)
    norm, block = x.nbytes + z.nbytes, h.nbytes + z.nbytes
    block_grad = z.nbytes + 2 * h.nbytes
    norm_grad = z.nbytes + 2 * x.nbytes
    assert conv_module.least_bytes(case, False) == norm + block
    assert conv_module.least_bytes(case, True) == (
        norm + block + block_grad + norm_grad
    )


def test_bytes_of_the_front_ends_limit():
    def layer(factor):
        frames, bins = -(-13 // factor), -(-10 // factor)
        return torch.empty(3, frames, bins, 16, dtype=torch.float16).nbytes

    x, n, m = torch.empty(3, 13, 10).nbytes, layer(4), layer(8)
    forward = (x + n) + (n + m)
    assert frontend.least_bytes(FRONTEND, False) == forward
    assert frontend.least_bytes(FRONTEND, True) == (
        forward + 3 * m + (m + 2 * n) + (n + x)
    )


@pytest.mark.parametrize("case", [DEPTHWISE, MODULE, FRONTEND], ids=str)
@pytest.mark.parametrize("backward", [False, True])
def test_limits_copy_so_many_bytes(case, backward, device, one_set):
    op = measure.OPS[case.op]
    call, sets = op.limit(case, backward, device)
    for inputs in sets:
        source, target = (t for t in inputs if t.dtype is torch.uint8)
        target.zero_()
        call(*inputs)
        assert torch.equal(source, target)
        assert source.nbytes + target.nbytes == op.least_bytes(case, backward)


def test_limit_of_the_module_has_its_matmuls(device, one_set):
    frames, C = MODULE.B * MODULE.T, MODULE.C
    for backward, expected in (
        (False, [(frames, 2 * C), (frames, C)]),
        (
            True,
            [
                (frames, 2 * C),
                (frames, C),
                *[(frames, C), (C, C)],
                *[(frames, C), (2 * C, C)],
            ],
        ),
    ):
        call, sets = conv_module.limit(MODULE, backward, device)
        results = call(*sets[0])
        assert [tuple(result.shape) for result in results] == expected
        assert {result.dtype for result in results} == {torch.float16}
