"""The convolution module against SpeechBrain's, whose results it must give."""

import math

import pytest
import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from stock import exact_outcome, outcome, pair
from tolerance import assert_as_exact_as_stock, relative_error
from torch.utils.checkpoint import checkpoint

from speechbrain_triton.modules import TritonConvolutionModule
from speechbrain_triton.modules.coverage import module_obstacle

# Enough channels that the error of a vector over them is no matter of luck.
B, T, C = 2, 21, 96


def stock_parameters():
    return ConvolutionModule(8, 3).named_parameters()


def chunks(size):
    return None if size is None else DynChunkTrainConfig(size)


def padding_mask(B, T, device):
    """True on the frames past each row's length."""
    lengths = torch.tensor([T, *range(T - 6, T - 6 - B + 1, -1)])
    mask = torch.arange(T)[None, :] >= lengths[:, None]
    return mask[..., None].to(device)


def assert_is_stock(stock, ours, T, launches, *args, B=B):
    device = stock.conv.weight.device
    x, dy = torch.randn(2, B, T, C, device=device)
    launches.clear()
    result = outcome(ours, x, dy, *args)
    assert launches["conv_kernel"] == 2
    assert launches["weight_grad_kernel"] == 1
    assert_as_exact_as_stock(
        result,
        outcome(stock, x, dy, *args),
        exact_outcome(stock, x, dy, *args),
    )
    return result


@pytest.mark.parametrize(
    ("chunk_size", "masked", "bias"),
    [
        (None, True, True),
        (None, False, False),
        (1, True, True),
        (8, True, True),
        (8, False, False),
        (T, True, True),
        (T + 7, True, True),
    ],
)
def test_values_and_gradients_are_stocks(
    chunk_size, masked, bias, device, launches
):
    stock, ours = pair(C, 7, bias=bias, device=device)
    mask = padding_mask(B, T, device) if masked else None
    result = assert_is_stock(stock, ours, T, launches, mask, chunks(chunk_size))
    if masked:
        assert (result["y"][mask.expand_as(result["y"])] == 0).all()


@pytest.mark.parametrize(
    ("T", "chunk_size"), [(1, None), (2, 16), (16, None), (31, 16)]
)
def test_values_and_gradients_are_stocks_below_the_kernel_size(
    T, chunk_size, device, launches
):
    stock, ours = pair(C, 31, device=device)
    assert_is_stock(stock, ours, T, launches, None, chunks(chunk_size), B=1)


@pytest.mark.parametrize("kernel_size", [2, 3, 8])
def test_causal_module_is_stocks(kernel_size, device, launches):
    stock, ours = pair(C, kernel_size, causal=True, device=device)
    assert_is_stock(stock, ours, T, launches, padding_mask(B, T, device))


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk_size", [None, 8])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 30, 31, 32])
def test_every_shape_is_stocks_or_is_refused_with_the_reason(
    kernel_size, chunk_size, causal, dilation, device, launches
):
    """Stock's oddities included: frames more or fewer than came in."""
    options = dict(causal=causal, dilation=dilation)
    stock, auto = pair(C, kernel_size, backend="auto", device=device, **options)
    x = torch.randn(1, 20, C, device=device)
    args = (None, chunks(chunk_size))

    def call(module):
        with torch.no_grad():
            try:
                return module(x, *args)
            except AssertionError as refused:
                return str(refused)

    expected = call(stock)
    obstacle = module_obstacle(stock)
    if obstacle is not None:
        with pytest.raises(ValueError, match="does not cover") as caught:
            TritonConvolutionModule(C, kernel_size, backend="triton", **options)
        assert obstacle in str(caught.value)
        launches.clear()
        results = [call(auto)]
        assert not launches
    else:
        auto.backend = "triton"
        launches.clear()
        results = [call(auto)]
        assert launches["conv_kernel"] == isinstance(expected, torch.Tensor)
    for result in results:
        if isinstance(expected, str):
            assert result == expected
        else:
            torch.testing.assert_close(result, expected)


def test_shapes_that_are_covered():
    """By reason, so that a coverage that shrinks unseen fails."""

    def obstacle(kernel_size, **options):
        return module_obstacle(ConvolutionModule(8, kernel_size, **options))

    for kernel_size in (1, 3, 31, 79):
        assert obstacle(kernel_size) is None
    for kernel_size in (2, 3, 30, 31):
        assert obstacle(kernel_size, causal=True) is None
    assert "even kernel_size 30" in obstacle(30)
    assert "kernel_size 1" in obstacle(1, causal=True)
    assert obstacle(3, dilation=2) == "dilation 2"
    assert obstacle(131) == "the kernels hold at most 80 taps, not 131"
    wide = ConvolutionModule(8200, 3)
    assert "at most 8192 channels" in module_obstacle(wide)


@pytest.mark.parametrize("chunk_size", [None, 16])
def test_frames_reach_just_as_far_as_in_stock(chunk_size, device, launches):
    """Probed by noise: the LayerNorm would cancel one constant."""
    stock, ours = pair(C, 31, device=device)
    x = torch.randn(1, 48, C, device=device)
    reach = {31: (16, 47), 32: (32, 48) if chunk_size else (17, 48)}
    with torch.no_grad():
        for module in (stock, ours):
            plain = module(x, None, chunks(chunk_size))
            for frame, (first, last) in reach.items():
                probed = x.clone()
                probed[:, frame] += torch.randn(C, device=device)
                changed = module(probed, None, chunks(chunk_size)) != plain
                seen = changed.any(dim=2)[0].nonzero().flatten().tolist()
                assert seen == list(range(first, last))
    assert launches["conv_kernel"] == 3


def test_padded_frames_leak_into_valid_ones_just_as_in_stock(device, launches):
    """A flaw to keep: hiding it would move the WER of old checkpoints."""
    stock, ours = pair(C, 7, device=device)
    x = torch.randn(1, T, C, device=device)
    mask = padding_mask(2, T, device)[1:]
    with torch.no_grad():
        padded = ours(x, mask)
        alone = ours(x[:, : T - 6])
        torch.testing.assert_close(padded, stock(x, mask))
    torch.testing.assert_close(padded[:, : T - 9], alone[:, :-3])
    assert (padded[:, T - 9 : T - 6] != alone[:, -3:]).all()
    assert launches["conv_kernel"] == 2


@pytest.mark.parametrize("expanded", [True, False])
def test_output_may_be_masked_again_in_training(expanded, device, launches):
    stock, ours = pair(C, 7, dropout=0.0, device=device)
    mask = padding_mask(B, T, device)
    if expanded:
        mask = mask[-1:].expand(B, -1, 1)
    grads = {}
    for module in (stock.train(), ours.train()):
        y = module(torch.ones(B, T, C, device=device), mask, chunks(16))
        y.masked_fill_(mask, 0.0)
        y.add_(1.0)
        (y**2).sum().backward()
        grads[module] = [p.grad for p in module.parameters()]
    assert launches["conv_kernel"] == 2
    for mine, theirs in zip(grads[ours], grads[stock], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_dropout_draws_the_numbers_of_stock(device, launches):
    stock, ours = pair(C, 3, dropout=0.5, device=device)
    x = torch.randn(B, T, C, device=device)
    results = []
    for module in (stock, ours):
        torch.manual_seed(1)
        results.append(module.train()(x))
    torch.testing.assert_close(*results)
    assert launches["conv_kernel"] == 1


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("chunk_size", "x_half"), [(None, False), (8, False), (8, True)]
)
def test_autocast_gives_the_dtypes_and_precision_of_stock(
    x_half, chunk_size, half, device, launches
):
    stock, ours = pair(C, 3, device=device)
    x, dy = torch.randn(2, B, T, C, device=device).to(half)
    x = x if x_half else x.float()
    args = (padding_mask(B, T, device), chunks(chunk_size))
    with torch.autocast(device, half):
        result = outcome(ours, x, dy, *args)
        expected = outcome(stock, x, dy, *args)
    assert launches["conv_kernel"] == 2
    assert {n: t.dtype for n, t in result.items()} == {
        n: t.dtype for n, t in expected.items()
    }
    assert result["y"].dtype == half
    exact = exact_outcome(stock, x, dy, *args)
    assert_as_exact_as_stock(result, expected, exact)


def test_module_in_half_precision_gives_stocks_results(device, launches):
    stock, ours = pair(C, 3, device=device)
    stock, ours = stock.half(), ours.half()
    x, dy = torch.randn(2, B, T, C, device=device).half()
    result = outcome(ours, x, dy)
    assert launches["conv_kernel"] == 2
    assert_as_exact_as_stock(
        result, outcome(stock, x, dy), exact_outcome(stock, x, dy)
    )


@pytest.mark.parametrize("backend", ["triton", "torch", "auto"])
def test_mixed_dtypes_outside_autocast_raise_as_in_stock(backend, device):
    stock, ours = pair(C, 7, backend=backend, device=device)
    x = torch.randn(B, T, C, device=device)
    for module in (stock, ours):
        with pytest.raises(RuntimeError, match="(?i)type"):
            module.bfloat16()(x)


def test_float64_module_runs_in_torch_also_under_autocast(
    device, launches, monkeypatch
):
    """Autocast leaves float64 alone, and so the kernels cannot run."""
    stock, ours = pair(C, 7, backend="auto", device=device)
    stock, ours = stock.double(), ours.double()
    x = torch.randn(B, T, C, device=device).double()
    with torch.autocast(device, torch.bfloat16):
        torch.testing.assert_close(ours(x), stock(x))
        ours.backend = "triton"
        with pytest.raises(RuntimeError, match="ConvolutionModule.*float64"):
            ours(x)
    assert not launches


def test_failing_call_does_not_switch_triton_off(device, launches):
    _, ours = pair(C, 7, device=device)
    x = torch.randn(B, T, C, device=device)
    with pytest.raises(RuntimeError, match="float64"):
        ours.double()(x.double())
    ours.float()(x)
    assert launches["conv_kernel"] == 1


@pytest.mark.gpu
def test_auto_takes_triton_again_after_a_call_it_cannot_serve(device, launches):
    _, ours = pair(C, 7, backend="auto", device=device)
    x = torch.randn(B, T, C, device=device)
    ours.double()(x.double())
    assert not launches
    ours.float()(x)
    assert launches["conv_kernel"] == 1


@pytest.mark.parametrize("chunk_size", [None, 8])
def test_empty_batch_gives_empty_output_and_zero_gradients(
    chunk_size, device, launches
):
    _, ours = pair(C, 7, device=device)
    x = torch.randn(0, T, C, device=device)
    result = outcome(ours, x, x, None, chunks(chunk_size))
    assert result.pop("y").shape == result.pop("x").shape == (0, T, C)
    assert all((grad == 0).all() for grad in result.values())
    assert not launches


def test_no_frames_raise_a_sentence_that_names_them(device):
    _, ours = pair(C, 7, device=device)
    with pytest.raises(ValueError, match="T = 0"):
        ours(torch.randn(B, 0, C, device=device))


@pytest.mark.parametrize("chunk_size", [None, 8])
def test_double_backward_is_right(chunk_size, device, launches):
    stock, ours = pair(C, 3, device=device)
    data = torch.randn(1, 9, C, device=device)

    def second(module, data):
        x = data.clone().requires_grad_()
        y = module(x, None, chunks(chunk_size))
        (dx,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        leaves = {"x": x, "conv.weight": module.conv.weight}
        grads = torch.autograd.grad(dx.pow(2).sum(), list(leaves.values()))
        return dict(zip(leaves, grads, strict=True))

    result = second(ours, data)
    assert launches["conv_kernel"] == 2
    expected = second(stock, data)
    exact = second(stock.double(), data.double())
    assert_as_exact_as_stock(result, expected, exact)


def test_checkpointing_under_autocast_changes_nothing(device, launches):
    _, ours = pair(C, 7, device=device)
    x, dy = torch.randn(2, B, T, C, device=device).bfloat16()

    def checkpointed(x):
        return checkpoint(ours, x, use_reentrant=False)

    with torch.autocast(device, torch.bfloat16):
        plain = outcome(ours, x, dy)
        leaf = x.detach().requires_grad_()
        y = checkpointed(leaf)
        grads = torch.autograd.grad(y, [leaf, *ours.parameters()], dy)
    assert launches["conv_kernel"] == 5
    assert torch.equal(y, plain.pop("y"))
    for mine, theirs in zip(grads, plain.values(), strict=True):
        assert torch.equal(mine, theirs)


def test_views_give_the_results_of_contiguous_tensors(device, launches):
    _, ours = pair(C, 7, device=device)
    dense = torch.randn(B, T, 2 * C, device=device)
    views = [
        dense[..., :C],
        dense[..., ::2],
        dense[:1, :, :C].expand(B, -1, -1),
        dense.transpose(0, 1).contiguous().transpose(0, 1)[..., :C],
    ]
    with torch.no_grad():
        for x in views:
            torch.testing.assert_close(ours(x), ours(x.contiguous()))
        before = ours(views[0])
        weight = ours.conv.weight
        relaid = weight.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        ours.conv.weight = torch.nn.Parameter(relaid)
        assert torch.equal(ours(views[0]), before)
    assert launches["conv_kernel"] == 10


@pytest.mark.parametrize("name", list(dict(stock_parameters())))
def test_strided_parameter_gives_the_results_of_a_contiguous_one(
    name, device, launches
):
    _, ours = pair(C, 3, device=device)
    x, dy = torch.randn(2, B, 5, C, device=device)
    expected = outcome(ours, x, dy)
    layer, leaf = name.rsplit(".", 1)
    parameter = ours.get_parameter(name)
    buffer = torch.full((*parameter.shape, 2), math.nan, device=device)
    buffer[..., 0] = parameter.detach()
    setattr(ours.get_submodule(layer), leaf, torch.nn.Parameter(buffer[..., 0]))
    result = outcome(ours, x, dy)
    assert launches["conv_kernel"] == 4
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "hook",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "layer_norm",
        "bottleneck",
        "bottleneck.0",
        "bottleneck.1",
        "conv",
        "after_conv",
        "after_conv.0",
        "after_conv.1",
        "after_conv.2",
        "after_conv.3",
    ],
)
def test_hook_on_any_inner_layer_is_called_or_refused(name, hook, device):
    _, ours = pair(C, 3, device=device)
    called = []
    getattr(ours.get_submodule(name), hook)(lambda *_: called.append(name))
    x = torch.randn(1, 5, C, device=device, requires_grad=True)
    try:
        ours(x).sum().backward()
    except RuntimeError as error:
        assert f"hooks on {name};" in str(error)
        ours.backend = "torch"
        ours(x).sum().backward()
    assert called


def test_saved_input_of_an_earlier_op_survives(device, launches):
    """exp saves its own output, which is the module's input."""
    stock, ours = pair(C, 7, device=device)
    start = torch.randn(B, T, C, device=device)
    grads = []
    for module in (stock, ours):
        leaf = start.clone().requires_grad_()
        module(leaf.exp()).pow(2).sum().backward()
        grads.append(leaf.grad)
    assert launches["conv_kernel"] == 2
    assert relative_error(grads[1], grads[0].double()) < 1e-5


def test_module_on_meta_gives_shapes():
    """Tools that count operations run models there."""
    module = TritonConvolutionModule(C, 7).to("meta")
    x = torch.empty(B, T, C, device="meta")
    assert module(x, None, chunks(8)).shape == (B, T, C)


@pytest.mark.parametrize("backend", [None, "False", "triton ", 1.0, True])
def test_unknown_backend_is_refused(backend):
    with pytest.raises(ValueError, match="backend=.*'auto', 'triton', 'torch'"):
        TritonConvolutionModule(C, 7, backend=backend)


def test_repr_shows_the_backend():
    module = TritonConvolutionModule(C, 7, backend="torch")
    assert "backend='torch'" in repr(module)
