"""SpeechBrain's front end: what is checked and timed, on tiny shapes."""

from dataclasses import replace

import pytest
import torch
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from torch import nn

from speechbrain_triton.bench import convolution_frontend, measure, timing
from speechbrain_triton.bench.cases import CNN
from speechbrain_triton.bench.check import CheckFailed
from speechbrain_triton.bench.shapes import Case
from speechbrain_triton.modules import TritonConvolutionFrontEnd
from speechbrain_triton.modules import convolution_frontend as module_of_ours

CASE = Case("convolution_frontend", 3, 13, 16, 3, "float16", F=12)
PASSES = ("fwd", "fwd_bwd", "fwd_gpu", "fwd_bwd_gpu")
IMPLS = ("stock", "channels_last", "triton")


def names(case, impl, device):
    return [name for name, _ in measure.measure(case, impl, device)]


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward, dynamic: forward)


@pytest.mark.parametrize("case", [CASE, replace(CASE, C=24, F=17)], ids=str)
def test_kernels_pass_the_gate(case, device, launches):
    measure.check(case, device=device)
    assert launches.total()


@pytest.mark.parametrize("impl", ["channels_last", "compile"])
def test_others_are_checked_too(impl, device, compiled, launches):
    measure.check(CASE, impl, device)
    assert not launches


@pytest.mark.parametrize(
    "impl, expected", [("compile", PASSES[:2]), ("limit", ()), ("eager", ())]
)
def test_passes_of_others(impl, expected, device, calls, compiled):
    assert names(CASE, impl, device) == list(expected)
    assert list(calls) == list(expected)


def test_wall_times_are_of_steps_and_device_times_of_graphs():
    timers = [p.timer for p in measure.PASSES["convolution_frontend"]]
    assert timers == [timing.time_steps] * 2 + [timing.time_kernel] * 2


@pytest.mark.parametrize("impl", IMPLS)
def test_timed_calls_return_y_or_the_parameters_gradients(impl, device, calls):
    assert names(CASE, impl, device) == list(PASSES)
    assert list(calls) == list(PASSES)
    variants = convolution_frontend.variants(CASE, device)
    shapes = [p.shape for p in variants["stock"].params.values()]
    for name, results in calls.items():
        assert len(results) == timing.FEWEST_SETS
        if "bwd" in name:
            assert [grad.shape for grad in results[0]] == shapes
            first, second = (grads[0] for grads in results[:2])
        else:
            first, second = results[:2]
            assert first.shape == (3, 4, 3, 8) and not first.requires_grad
        assert first.isfinite().all()
        # Rotated inputs give different results.
        assert not torch.equal(first, second)


def test_the_module_is_that_of_the_recipe(device):
    variants = convolution_frontend.variants(CNN, device)
    shapes = {n: tuple(p.shape) for n, p in variants["stock"].params.items()}
    assert shapes == {
        "convblock_0.convs.conv_0.conv.weight": (64, 1, 3, 3),
        "convblock_0.convs.conv_0.conv.bias": (64,),
        "convblock_0.convs.norm_0.norm.weight": (40, 64),
        "convblock_0.convs.norm_0.norm.bias": (40, 64),
        "convblock_1.convs.conv_0.conv.weight": (32, 64, 3, 3),
        "convblock_1.convs.conv_0.conv.bias": (32,),
        "convblock_1.convs.norm_0.norm.weight": (20, 32),
        "convblock_1.convs.norm_0.norm.bias": (20, 32),
    }
    kinds = {name: type(v.module) for name, v in variants.items()}
    assert kinds == {
        "stock": ConvolutionFrontEnd,
        "channels_last": ConvolutionFrontEnd,
        "triton": TritonConvolutionFrontEnd,
        "exact": ConvolutionFrontEnd,
    }
    assert variants["triton"].module.backend == "triton"
    state = variants["stock"].module.state_dict()
    for name in ("channels_last", "triton", "exact"):
        for key, value in variants[name].module.state_dict().items():
            assert torch.equal(value.float(), state[key]), (name, key)


def test_what_is_drawn_fits_the_module(device):
    x, dy = convolution_frontend.draw(CASE, device)
    variant = convolution_frontend.variants(CASE, device)["stock"]
    assert x.shape == (3, 13, 12)
    assert variant.run_forward(*variant.inputs(x, dy)).shape == dy.shape
    assert x.dtype is dy.dtype is torch.float32
    assert not variant.inputs(x, dy)[0].requires_grad


@pytest.mark.parametrize("impl", IMPLS)
def test_it_is_timed_with_dropout_and_checked_without(impl, device):
    variant = convolution_frontend.variants(CASE, device)[impl]
    rates = [
        layer.p
        for layer in variant.module.modules()
        if isinstance(layer, nn.Dropout)
    ]
    assert rates == [0.1, 0.1]
    drawn = convolution_frontend.draw(CASE, device)
    first, second = (variant.outcome(*drawn)["y"] for _ in range(2))
    assert torch.equal(first, second) and not (first == 0).any()
    assert variant.module.training
    timed = variant.run_forward(*variant.inputs(*drawn))
    assert 0 < (timed == 0).float().mean() < 0.3


def test_training_goes_on_where_a_check_breaks_off(device):
    variant = convolution_frontend.variants(CASE, device)["stock"]
    x, dy = convolution_frontend.draw(CASE, device)
    with pytest.raises(RuntimeError):
        variant.outcome(x[..., :5], dy)
    assert variant.module.training


def test_channels_last_convolves_in_that_format(device):
    """Else it would be stock under another name."""
    drawn = convolution_frontend.draw(CASE, device)
    variants = convolution_frontend.variants(CASE, device)
    for impl in ("stock", "channels_last"):
        outputs = []
        for layer in variants[impl].module.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(
                    lambda module, _, y, to=outputs: to.append(y)
                )
        variants[impl].run_forward(*variants[impl].inputs(*drawn))
        last = outputs[-1].is_contiguous(memory_format=torch.channels_last)
        assert len(outputs) == 2 and last == (impl == "channels_last")


def test_a_wrong_norm_is_refused(device, monkeypatch, calls):
    """Also one that ignores its weight."""
    right = module_of_ours.layer_norm
    monkeypatch.setattr(
        module_of_ours,
        "layer_norm",
        lambda x, weight, bias, **options: right(
            x, weight * 0 + 1, bias, **options
        ),
    )
    with pytest.raises(CheckFailed, match="F12_C16 float16 triton: y has"):
        names(CASE, "triton", device)
    assert not calls


@pytest.mark.parametrize("name", ["conv.weight", "norm.bias"])
def test_a_wrong_gradient_is_refused(name, device, monkeypatch):
    build = convolution_frontend._build

    def built(*args, **options):
        module = build(*args, **options)
        if options:
            for key, parameter in module.named_parameters():
                if key.endswith(name):
                    parameter.register_hook(lambda grad: grad * 1.1)
        return module

    monkeypatch.setattr(convolution_frontend, "_build", built)
    match = f"the gradient of convblock_0.*{name} has"
    with pytest.raises(CheckFailed, match=match):
        measure.check(CASE, device=device)


def test_rounding_of_float32_sums_is_allowed_for():
    assert CNN.rounding == 2.0**-22
