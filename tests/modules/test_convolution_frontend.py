"""SpeechBrain's front end on kernels against SpeechBrain's own forward."""

import copy
import pickle

import pytest
import torch
from speechbrain.lobes.features import Fbank, StreamingFeatureWrapper
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.nnet.containers import LengthsCapableSequential
from speechbrain.utils.filter_analysis import stack_filter_properties
from stock import exact_outcome, outcome
from tolerance import assert_as_exact_as_stock
from torch import nn
from torch.utils.checkpoint import checkpoint

from speechbrain_triton.modules import TritonConvolutionFrontEnd

# The recipes' own, with fewer channels.
RECIPE = {
    "num_blocks": 2,
    "num_layers_per_block": 1,
    "out_channels": [12, 6],
    "strides": [2, 2],
    "residuals": [False, False],
}
DEEP = {"num_blocks": 2, "num_layers_per_block": 2, "out_channels": [6, 8]}
PLAIN = {**DEEP, "residuals": [False, False]}
VARIANTS = {
    "recipe": RECIPE,
    "residuals": DEEP,
    "one channel inside": {**RECIPE, "out_channels": [4, 1]},
    "no bias": {**RECIPE, "conv_bias": False},
    "kernels": {**PLAIN, "kernel_sizes": [5, 1]},
    "dilations": {**PLAIN, "dilations": [2, 3]},
    "strides": {**RECIPE, "strides": [3, 1]},
    "causal": {**PLAIN, "padding": "causal"},
    "valid": {**PLAIN, "padding": "valid", "kernel_sizes": [2, 3]},
    "no norm": {**PLAIN, "norm": None},
    "GELU": {**RECIPE, "activation": nn.GELU},
    "Hardtanh": {**DEEP, "activation": nn.Hardtanh},
    "steep": {**RECIPE, "activation": lambda: nn.LeakyReLU(0.3)},
}
F = 14
HALVES = (torch.bfloat16, torch.float16)


def pair(device, shape=(8, 20, F), dropout=0.0, **options):
    """SpeechBrain's module and ours, with the same random parameters."""
    stock = ConvolutionFrontEnd(shape, dropout=dropout, **options).to(device)
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.5)
    ours = TritonConvolutionFrontEnd(
        shape, dropout=dropout, backend="triton", **options
    )
    ours.load_state_dict(stock.state_dict(), strict=True)
    return stock, ours.to(device)


def features(device, B=2, T=17):
    return torch.randn(B, T, F, device=device)


def without_kinks(*modules):
    """Let no activation's input be near 0, where a rounding turns a slope."""
    for module in modules:
        torch.manual_seed(3)
        for layer in module.modules():
            if isinstance(layer, nn.LayerNorm):
                signs = torch.randn(layer.bias.shape).sign()
                with torch.no_grad():
                    layer.weight.clamp_(-1, 1)
                    layer.bias.copy_(6 * signs)


def assert_as_exact_in_all(ours, stock, exact):
    """Parameters' gradients as one: some have so few numbers that chance
    decides which of two is nearer.
    """

    def pooled(results):
        own = {"y", "x"}
        grads = [results[n] / exact[n].norm() for n in exact if n not in own]
        parameters = torch.cat([grad.flatten() for grad in grads])
        return {n: results[n] for n in own} | {"parameters": parameters}

    for name in exact:
        assert ours[name].dtype == stock[name].dtype, name
    assert_as_exact_as_stock(*map(pooled, (ours, stock, exact)))


@pytest.mark.parametrize("name", VARIANTS)
def test_values_and_gradients_are_stocks(name, device, launches):
    stock, ours = pair(device, **VARIANTS[name])
    x = features(device)
    dy = torch.randn_like(stock(x))
    assert not launches
    result = outcome(ours, x, dy)
    assert launches
    assert_as_exact_in_all(
        result, outcome(stock, x, dy), exact_outcome(stock, x, dy)
    )
    assert result["y"].is_contiguous()


def test_recipe_runs_the_kernels_that_it_should(device, launches):
    _, ours = pair(device, **RECIPE)
    ours(features(device)).sum().backward()
    assert launches == {
        "reflect_kernel": 2,
        "layer_norm_kernel": 2,
        "layer_norm_grad_kernel": 2,
        "sum_partials_kernel": 2,
        "reflect_grad_kernel": 1,  # the input needs no gradient
    }


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(
    "name", ["recipe", "residuals", "no bias", "valid", "GELU", "steep"]
)
def test_autocast_gives_stocks_dtypes_and_precision(
    name, dtype, device, launches
):
    stock, ours = pair(device, **VARIANTS[name])
    without_kinks(stock, ours)
    x = features(device)
    exact = exact_outcome(stock, x, dy := torch.randn_like(stock(x)))
    with torch.autocast(device, dtype):
        result, expected = outcome(ours, x, dy), outcome(stock, x, dy)
    assert launches
    assert_as_exact_in_all(result, expected, exact)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_module_in_half_precision_is_as_exact_as_stock(dtype, device, launches):
    stock, ours = pair(device, **RECIPE)
    without_kinks(stock, ours)
    stock, ours = stock.to(dtype), ours.to(dtype)
    x = features(device).to(dtype)
    dy = torch.randn_like(stock(x))
    exact = exact_outcome(stock, x, dy)
    result = outcome(ours, x, dy)
    assert_as_exact_in_all(result, outcome(stock, x, dy), exact)
    assert launches["layer_norm_grad_kernel"] == 2


def test_input_may_have_channels(device):
    stock, ours = pair(device, shape=(8, 10, F, 3), **DEEP)
    x = torch.randn(2, 17, F, 3, device=device)
    dy = torch.randn_like(stock(x))
    assert_as_exact_in_all(
        outcome(ours, x, dy),
        outcome(stock, x, dy),
        exact_outcome(stock, x, dy),
    )


@pytest.mark.parametrize("name", ["recipe", "residuals"])
def test_dropout_is_pytorchs(name, device):
    """With the same generator even the same elements are dropped."""
    stock, ours = pair(device, dropout=0.3, **VARIANTS[name])
    x = features(device)
    results = []
    for module in (stock, ours):
        torch.manual_seed(1)
        results.append(module(x))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    assert (results[0] == 0).float().mean() == pytest.approx(0.3, abs=0.1)
    assert not torch.equal(ours(x), results[1])
    torch.testing.assert_close(ours.eval()(x), stock.eval()(x))


@pytest.mark.parametrize("name", ["recipe", "valid"])
def test_any_number_of_frames_gives_what_stock_gives(name, device):
    stock, ours = pair(device, **VARIANTS[name])
    raised = 0
    for T in range(1, 13):
        x = features(device, T=T)
        try:
            expected = stock(x)
        except RuntimeError as error:
            raised += 1
            with pytest.raises(type(error)) as caught:
                ours(x)
            assert "size" in str(error) and "size" in str(caught.value)
        else:
            torch.testing.assert_close(ours(x), expected)
    assert 1 <= raised <= 8


def test_other_number_of_features_is_refused_as_by_stock(device):
    for module in pair(device, **RECIPE):
        with pytest.raises(RuntimeError, match="normalized_shape"):
            module(torch.randn(2, 9, F + 4, device=device))


def test_empty_batch(device):
    stock, ours = pair(device, **RECIPE)
    x = features(device, B=0)
    y = ours(x)
    assert y.shape == stock(x).shape
    y.sum().backward()
    assert not any(p.grad.any() for p in ours.parameters())


def test_strided_input_gives_what_its_copy_gives(device):
    _, ours = pair(device, **RECIPE)
    x = torch.randn(2, F, 46, device=device)[:, :, ::2].transpose(1, 2)
    assert torch.equal(ours(x), ours(x.contiguous()))


def test_double_backward_is_stocks(device):
    stock, ours = pair(device, **DEEP)
    x = features(device, T=9).requires_grad_()
    seconds = []
    for module in (stock, ours):
        y = module(x)
        leaves = [x, *module.parameters()]
        (dx,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        seconds.append(
            torch.autograd.grad(dx.pow(2).sum(), leaves, materialize_grads=True)
        )
    for ours, theirs in zip(*seconds[::-1], strict=True):
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_gradients(reentrant, device):
    _, ours = pair(device, dropout=0.2, **RECIPE)
    x = features(device).requires_grad_()
    grads = []
    for run in (ours, lambda x: checkpoint(ours, x, use_reentrant=reentrant)):
        ours.zero_grad()
        x.grad = None
        torch.manual_seed(2)
        run(x).pow(2).sum().backward()
        grads.append([x.grad, *(p.grad for p in ours.parameters())])
    for plain, recomputed in zip(*grads, strict=True):
        assert torch.equal(plain, recomputed)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("recipe", None), ("recipe", torch.bfloat16), ("residuals", None)],
    ids=str,
)
def test_compiled_module_is_stocks_at_every_length(
    name, dtype, device, launches
):
    torch.compiler.reset()
    stock, ours = pair(device, **VARIANTS[name])
    without_kinks(stock, ours)
    # Inductor builds C++ on a CPU: there the graphs are enough.
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(
        ours, backend=backend, fullgraph=True, dynamic=True
    )
    for B, T in ((2, 17), (3, 12)):
        x = features(device, B, T)
        dy = torch.randn_like(stock(x))
        exact = exact_outcome(stock, x, dy)
        launches.clear()
        with torch.autocast(
            device, dtype or torch.bfloat16, enabled=dtype is not None
        ):
            result = outcome(compiled, x, dy)
            assert launches["layer_norm_grad_kernel"] >= 2
            expected = outcome(stock, x, dy)
        result = dict(zip(expected, result.values(), strict=True))
        assert_as_exact_in_all(result, expected, exact)
    torch.compiler.reset()


def test_state_is_that_of_stock():
    stock, ours = pair("cpu", **DEEP)
    assert list(ours.state_dict()) == list(stock.state_dict())
    assert ours.get_filter_properties() == stock.get_filter_properties()
    assert list(ours.children()) and len(ours) == len(stock)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
def test_copy_is_a_front_end_of_its_own(duplicate, device):
    _, ours = pair(device, **RECIPE)
    other = duplicate(ours)
    x = features(device)
    assert torch.equal(other(x), ours(x))
    assert other.backend == "triton"
    with torch.no_grad():
        ours.convblock_0.convs.conv_0.conv.weight.add_(1)
    assert not torch.equal(other(x), ours(x))


def test_torch_path_is_stocks_own(device, launches):
    stock, ours = pair(device, **RECIPE)
    ours.backend = "torch"
    x = features(device)
    assert torch.equal(ours(x), stock(x))
    ours.backend = "auto"
    assert torch.equal(ours.double()(x.double()), stock.double()(x.double()))
    assert not launches and not ours.takes_triton(x.double())
    ours.backend = "triton"
    with pytest.raises(RuntimeError, match="the tensors are float64"):
        ours(x.double())


def test_streams_in_speechbrains_wrapper(device):
    stock, ours = pair(device, shape=(8, 10, 80), **RECIPE)
    wavs = torch.randn(1, 16000, device=device)
    outputs = []
    for module in (stock, ours):
        bank = Fbank(n_mels=80).to(device)
        properties = [m.get_filter_properties() for m in (bank, module)]
        wrapper = StreamingFeatureWrapper(
            LengthsCapableSequential(bank, module),
            stack_filter_properties(properties),
        )
        context = wrapper.make_streaming_context()
        size = wrapper.get_required_padding() + 1920
        outputs.append(
            torch.cat(
                [
                    wrapper(chunk, context)
                    for chunk in wavs.split(size, 1)
                    if chunk.shape[1] == size
                ],
                1,
            )
        )
    torch.testing.assert_close(*outputs[::-1], rtol=1e-4, atol=1e-4)


def test_built_with_triton_it_refuses_what_has_no_kernels():
    options = {"out_channels": [1, 4], "num_blocks": 2}
    match = "the 1 channel of convblock_0.convs.conv_0, which SpeechBrain takes"
    with pytest.raises(ValueError, match=match):
        TritonConvolutionFrontEnd((8, 10, F), backend="triton", **options)
    with pytest.raises(ValueError, match="backend='yes' is not one of"):
        TritonConvolutionFrontEnd((8, 10, F), backend="yes")
