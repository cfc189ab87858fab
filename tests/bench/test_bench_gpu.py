"""Clocks and rows on a card, in a few seconds."""

import csv
import os
import statistics
from dataclasses import replace

import pytest
import torch

from speechbrain_triton.bench import (
    cases,
    depthwise_conv1d,
    measure,
    shapes,
    step_profile,
    train_step,
    transducer_loss,
)
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.timing import (
    rotate,
    time_calls,
    time_kernel,
    time_steps,
)
from speechbrain_triton.cli import main

pytestmark = pytest.mark.gpu
alone = pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="needs the card for itself"
)

DEPTHWISE = shapes.Case("depthwise_conv1d", 2, 70, 64, 15, "bfloat16", chunk=8)
MODULE = replace(DEPTHWISE, op="conv_module")
GEGLU = shapes.LinearCase("geglu_linear", 300, 64, 256, "bfloat16")
FEED_FORWARD = shapes.FeedForwardCase("geglu_ffn", 2, 70, 64, 256, "bfloat16")
DROPOUT = replace(FEED_FORWARD, dropout=0.1)
TRANSDUCER = shapes.TransducerCase("transducer_loss", 3, 60, 9, 128, "bfloat16")
JOINT = shapes.JointCase(
    "transducer_joint_loss", 8, 60, 9, 128, "bfloat16", J=64
)
CNN = shapes.Case("convolution_frontend", 2, 120, 32, 3, "bfloat16", F=40)

SIZES = {
    "d_model": 64,
    "nhead": 2,
    "num_encoder_layers": 2,
    "d_ffn": 128,
    "dec_dim": 32,
    "joint_dim": 32,
}
STEP = shapes.TrainingCase(
    "train_step",
    "bfloat16",
    B=4,
    seconds=2,
    labels=8,
    V=40,
    sizes=tuple(SIZES.items()),
)


def copy(source, target):
    target.copy_(source)


def copies(mib):
    def draw():
        source = torch.randn(mib * 2**18, device="cuda")
        return source, torch.empty_like(source)

    return rotate(draw)


@alone
def test_device_time_of_a_copy_is_that_between_events():
    sets = copies(256)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(10):
        start.record()
        for inputs in sets:
            copy(*inputs)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(sets))
    timing = time_kernel(copy, sets)
    expected = statistics.median(times)
    assert timing.median_ms == pytest.approx(expected, rel=0.15)
    assert timing.p20_ms <= timing.median_ms <= timing.p80_ms
    gigabytes = 2 * 256 * 2**20 / 1e9
    assert 0.05 < gigabytes / timing.median_ms < 20  # TB/s
    single = time_calls(copy, sets[:1])
    assert single.median_ms == pytest.approx(expected, rel=0.3)


@alone
def test_a_small_kernel_is_timed_without_its_launch():
    sets = copies(1)
    device, wall = time_kernel(copy, sets), time_steps(copy, sets)
    assert 0 < device.median_ms < wall.median_ms
    assert device.median_ms < 0.02


@alone
def test_a_call_of_two_kernels_takes_twice_the_time_of_one():
    def twice(source, target):
        copy(source, target)
        copy(source, target)

    sets = copies(256)
    once = time_kernel(copy, sets).median_ms
    assert time_kernel(twice, sets).median_ms == pytest.approx(
        2 * once, rel=0.2
    )


def test_memory_is_measured_and_given_back():
    sets = rotate(lambda: (torch.randn(2**24, device="cuda"),))

    def double(x):
        return x * 2

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allocated = torch.cuda.memory_allocated()
    reserved = torch.cuda.memory_reserved()
    timing = time_kernel(double, sets)
    assert timing.peak_mib == pytest.approx(64, abs=1)
    # A graph's memory would be that of four results or more.
    assert torch.cuda.memory_allocated() < allocated + 2**20
    assert torch.cuda.memory_reserved() < reserved + 2**25


@pytest.mark.parametrize(
    "case, impl",
    [
        *(
            (case, impl)
            for case in (DEPTHWISE, MODULE, FEED_FORWARD, DROPOUT)
            for impl in ("stock", "triton", "limit")
        ),
        *(
            (GEGLU, impl)
            for impl in ("eager", "compile", "liger", "matmul_only", "triton")
        ),
        *(
            (replace(GEGLU, op="geglu_ladder", step=step), "triton")
            for step in ("matmul_gelu_mul", "gelu_mul")
        ),
        *(
            (TRANSDUCER, impl)
            for impl in (
                "torchaudio",
                "numba",
                "triton",
                "triton_inplace",
                "limit",
            )
        ),
        *(
            (JOINT, impl)
            for impl in (
                "torchaudio",
                "numba",
                "triton",
                "triton_fused_joint",
                "limit",
            )
        ),
        *(
            (replace(CNN, dtype=dtype), impl)
            for dtype in ("bfloat16", "float16")
            for impl in ("stock", "channels_last", "triton")
        ),
    ],
    ids=str,
)
def test_every_pass_has_a_time(case, impl):
    if impl == "liger":
        pytest.importorskip("liger_kernel")
    if impl in ("torchaudio", "numba"):
        reason = transducer_loss.obstacle(impl)
        if reason is not None:
            pytest.skip(reason)
    timings = dict(measure.measure(case, impl))
    expected = [p.name for p in measure.PASSES[case.kind] if impl in p.impls]
    assert timings and list(timings) == expected
    for name, timing in timings.items():
        assert 0 < timing.p20_ms <= timing.median_ms <= timing.p80_ms, name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("chunk", [0, 8])
@pytest.mark.parametrize("fast", [False, True])
def test_a_training_step_has_a_time_and_a_profile(dtype, chunk, fast):
    case = replace(STEP, dtype=dtype, chunk=chunk, fast=fast)
    for impl in train_step.TIMED:
        if impl in ("torchaudio", "numba") and transducer_loss.obstacle(impl):
            continue
        ((name, timing),) = measure.measure(case, impl)
        assert name == "step" and timing.median_ms > 0 and timing.peak_mib > 0
        parts = step_profile.profile_step(case, impl)
        assert tuple(parts) == step_profile.PARTS
        assert all(ms > 0 for ms in parts.values())
        # What the GPU works cannot take longer than the steps do.
        assert sum(parts.values()) < 1.2 * timing.median_ms


@alone
@pytest.mark.parametrize("case", [DEPTHWISE, MODULE], ids=str)
def test_backward_takes_longer_than_forward_alone(case):
    timings = dict(measure.measure(case, "triton"))
    for name, timing in timings.items():
        if name.startswith("fwd_bwd"):
            forward = timings[name.replace("fwd_bwd", "fwd")]
            assert timing.median_ms > forward.median_ms, name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes_can_be_captured(dtype):
    case = replace(DEPTHWISE, dtype=dtype, chunk=0)
    for impl in ("stock", "triton"):
        timings = dict(measure.measure(case, impl))
        assert timings["fwd_bwd"].median_ms > 0


def test_a_wrong_kernel_is_refused(monkeypatch):
    right = depthwise_conv1d.depthwise_conv1d
    monkeypatch.setattr(
        depthwise_conv1d,
        "depthwise_conv1d",
        lambda x, *args, **kwargs: (
            right(x, *args, **kwargs) + 0.1 * (x - x.detach())
        ),
    )
    with pytest.raises(CheckFailed, match="triton: dx has relative error"):
        list(measure.measure(DEPTHWISE, "triton"))


def test_the_command_writes_its_rows(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cases, "CASES", (DEPTHWISE, MODULE))
    path = tmp_path / "table.csv"
    arguments = ["bench", "--impl", "stock", "limit", "--output", str(path)]
    assert main(arguments) == 0
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 + 2 + 4 + 2
    assert all(float(row["median_ms"]) > 0 for row in rows)
    assert {row["gpu"] for row in rows} == {torch.cuda.get_device_name()}
    assert "fwd_bwd_gpu" in capsys.readouterr().out
