"""The gated linear layer: what is checked and timed, on tiny shapes."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from speechbrain_triton.bench import (
    geglu_ffn,
    geglu_ladder,
    geglu_linear,
    measure,
)
from speechbrain_triton.bench.check import CheckFailed, relative_error
from speechbrain_triton.bench.shapes import FeedForwardCase, LinearCase

GEGLU = LinearCase("geglu_linear", 26, 16, 12, "float16")
LADDER = replace(GEGLU, op="geglu_ladder", step="matmul_gelu_mul")
FEED_FORWARD = FeedForwardCase("geglu_ffn", 2, 13, 16, 24, "float16")
DROPOUT = replace(FEED_FORWARD, dropout=0.25)
OPS = ("fwd", "fwd_bwd", "fwd_wall", "fwd_bwd_wall")
MODULES = ("fwd", "fwd_bwd", "fwd_gpu", "fwd_bwd_gpu")


class Gate:
    """In the place of Liger's function, which needs a card."""

    def __init__(self, approximate):
        self.approximate = approximate

    def apply(self, a, b):
        return F.gelu(a, approximate=self.approximate) * b


@pytest.fixture
def liger(monkeypatch):
    def put(approximate):
        monkeypatch.setattr(
            geglu_linear, "_liger_function", lambda: Gate(approximate)
        )

    put("tanh")
    return put


@pytest.fixture
def compiled(monkeypatch):
    """Keep what is compiled, and run it as it is."""
    compiled = []

    def compile(forward, dynamic):
        assert dynamic is False
        compiled.append(forward)
        return forward

    monkeypatch.setattr(torch, "compile", compile)
    return compiled


def names(case, impl, device):
    return [name for name, _ in measure.measure(case, impl, device)]


@pytest.mark.parametrize(
    "case",
    [
        GEGLU,
        replace(GEGLU, dtype="float32"),
        replace(GEGLU, M=1, N=5),
        LADDER,
        replace(LADDER, step="gelu_mul"),
        FEED_FORWARD,
        DROPOUT,
    ],
    ids=str,
)
def test_kernels_pass_the_gate(case, device, launches):
    measure.check(case, device=device)
    assert launches.total()


@pytest.mark.parametrize(
    "case, impl, expected",
    [
        *((GEGLU, impl, OPS) for impl in ("eager", "compile", "liger")),
        (GEGLU, "triton", OPS),
        (GEGLU, "matmul_only", OPS[:2]),
        (GEGLU, "stock", ()),
        (GEGLU, "limit", ()),
        (LADDER, "eager", ("fwd",)),
        (LADDER, "compile", ("fwd",)),
        (LADDER, "triton", ("fwd",)),
        (LADDER, "liger", ()),
        (replace(LADDER, step="matmul"), "triton", ()),
        (replace(LADDER, step="matmul"), "compile", ("fwd",)),
        (FEED_FORWARD, "stock", MODULES),
        (FEED_FORWARD, "compile", MODULES[:2]),
        (FEED_FORWARD, "triton", MODULES),
        (FEED_FORWARD, "limit", MODULES[2:]),
        (DROPOUT, "stock", MODULES),
        (DROPOUT, "compile", ()),
        (DROPOUT, "triton", MODULES),
    ],
)
def test_passes_of_each_implementation(
    case, impl, expected, device, calls, liger, compiled
):
    assert names(case, impl, device) == list(expected)
    assert list(calls) == list(expected)
    assert bool(compiled) == (impl == "compile" and bool(expected))


@pytest.mark.parametrize("impl", ["eager", "liger", "triton"])
def test_timed_calls_return_h_or_all_gradients(
    impl, device, calls, liger, launches
):
    names(GEGLU, impl, device)
    gradients = {(26, 16), (24, 16), (24,)}
    if impl == "liger":
        gradients = {(26, 16), (12, 16), (12,)}
    for name, results in calls.items():
        first, second = results[:2]
        if "bwd" in name:
            assert {tuple(grad.shape) for grad in first} == gradients
            first, second = first[0], second[0]
        else:
            assert first.shape == (26, 12) and not first.requires_grad
        assert first.dtype is torch.float16 and first.isfinite().all()
        # Rotated inputs give different results.
        assert not torch.equal(first, second)
    assert bool(launches.total()) == (impl == "triton")


def test_matmuls_alone_are_those_of_the_layer(device, one_set):
    call, sets = geglu_linear.matmul_only(GEGLU, False, device)
    assert call(*sets[0]).shape == (26, 24)
    call, sets = geglu_linear.matmul_only(GEGLU, True, device)
    shapes = [tuple(result.shape) for result in call(*sets[0])]
    assert shapes == [(26, 24), (26, 16), (24, 16)]
    assert {tensor.dtype for tensor in sets[0]} == {torch.float16}


def test_liger_is_compared_with_its_own_gelu(device, liger):
    case = replace(GEGLU, dtype="float32")
    measure.check(case, "liger", device)
    liger("none")
    with pytest.raises(CheckFailed, match="liger: y has relative error"):
        measure.check(case, "liger", device)


def test_halves_have_the_parameters_of_the_whole(device):
    """What the two GELUs differ by is all that the results differ by."""
    variants = geglu_linear.variants(GEGLU, device)
    inputs = geglu_linear.draw(GEGLU, device)
    erf, tanh = (
        variants[name].outcome(*inputs) for name in ("exact", "exact_tanh")
    )
    for name in ("y", "dx"):
        assert 0 < relative_error(tanh[name], erf[name]) < 2e-3


def test_a_kernel_with_another_gelu_is_refused(device, monkeypatch, calls):
    monkeypatch.setattr(
        geglu_linear,
        "geglu_linear",
        partial(geglu_linear.geglu_linear, approximate="tanh"),
    )
    with pytest.raises(CheckFailed, match="N12 float32 triton: y has"):
        names(replace(GEGLU, dtype="float32"), "triton", device)
    assert not calls


@pytest.mark.parametrize("step", geglu_ladder.STEPS)
def test_steps_of_the_ladder(step, device):
    def variants_of(step):
        torch.manual_seed(0)
        case = replace(LADDER, step=step, dtype="float32")
        return case, geglu_ladder.variants(case, device)

    _, whole = variants_of("matmul")
    case, variants = variants_of(step)
    (x,) = geglu_ladder.draw(case, device)
    outputs = tuple(variants["eager"].outcome(x).values())
    z = x if step == "gelu_mul" else whole["eager"].outcome(x)["y"]
    first, second = z.chunk(2, -1)
    expected = {
        "matmul": (z,),
        "matmul_gelu": (first, F.gelu(second)),
        "matmul_gelu_mul": (first * F.gelu(second),),
        "second_half": (F.gelu(second),),
        "first_half": (first,),
        "both_halves": (first, second),
        "gelu_mul": (first * F.gelu(second),),
    }[step]
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
    assert ("triton" in variants) == (step in ("matmul_gelu_mul", "gelu_mul"))


def test_dropout_is_checked_with_the_kernels_mask(device, monkeypatch):
    measure.check(DROPOUT, device=device)
    right = geglu_ffn.draw_seed
    monkeypatch.setattr(geglu_ffn, "draw_seed", lambda: right() + 1)
    with pytest.raises(CheckFailed, match="dropout float16 triton: y has"):
        measure.check(DROPOUT, device=device)


def test_limit_of_the_feed_forward_is_its_matmuls(device, one_set):
    call, sets = geglu_ffn.limit(FEED_FORWARD, False, device)
    shapes = [tuple(result.shape) for result in call(*sets[0])]
    assert shapes == [(26, 48), (26, 16)]
    call, sets = geglu_ffn.limit(FEED_FORWARD, True, device)
    results = call(*sets[0])
    assert [tuple(result.shape) for result in results[2:]] == [
        *[(26, 24), (16, 24)],
        *[(26, 16), (48, 16)],
    ]
    assert {result.dtype for result in results} == {torch.float16}


def test_stock_of_the_feed_forward_is_plain_pytorch(device, launches):
    variants = geglu_ffn.variants(FEED_FORWARD, device)
    inputs = geglu_ffn.draw(FEED_FORWARD, device)
    variants["stock"].outcome(*inputs)
    assert not launches
    variants["triton"].outcome(*inputs)
    assert launches.total()
