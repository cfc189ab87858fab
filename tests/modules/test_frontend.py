"""The Fast Conformer front end against plain layers, on both paths."""

import pytest
import torch
from plain_frontend import Plain, build, outcome
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from tolerance import assert_as_exact_as_stock
from torch import nn
from torch.utils.checkpoint import checkpoint

from speechbrain_triton.modules import FastConformerFrontEnd

BACKENDS = ["torch", "triton"]
SMALL = {"n_mels": 11, "channels": 16}


def features(device, B=2, T=21, F=SMALL["n_mels"]):
    return torch.randn(B, T, F, device=device)


def assert_path(backend, launches):
    assert bool(launches) is (backend == "triton"), launches


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subsampling": 4},
        {"kernel_size": 5},
        {"kernel_size": 1, "subsampling": 4},
        {"causal": True},
        {"causal": True, "kernel_size": 5, "subsampling": 4},
        {"channels": 24, "n_mels": 8},
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_plain_layers(
    backend, options, device, launches
):
    options = {**SMALL, **options}
    frontend = build(device, backend=backend, **options)
    stock = Plain(frontend)
    x = features(device, F=options["n_mels"])
    dy = torch.randn_like(stock(x))
    ours = outcome(frontend, x, dy)
    assert_path(backend, launches)
    assert_as_exact_as_stock(
        ours,
        outcome(stock, x, dy),
        outcome(stock.exact(), x.double(), dy.double()),
    )
    assert ours["y"].is_contiguous()
    assert frontend.output_size == ours["y"][0, 0].numel()


@pytest.mark.parametrize("n_mels", [40, 79, 80, 128])
def test_any_number_of_frames_will_do(n_mels):
    frontend = build(n_mels=n_mels, channels=4)
    stock = Plain(frontend)
    for T in range(1, 18):
        x = features("cpu", T=T, F=n_mels)
        y = frontend(x)
        assert y.shape == (2, -(-T // 8), -(-n_mels // 8), 4)
        torch.testing.assert_close(y, stock(x))


@pytest.mark.parametrize("T", [1, 2, 8, 9, 17])
def test_kernels_take_any_number_of_frames(T, device, launches):
    frontend = build(device, backend="triton", **SMALL)
    x = features(device, T=T)
    torch.testing.assert_close(frontend(x), Plain(frontend)(x))
    assert launches


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("training", [True, False])
def test_empty_batch(backend, training, device):
    frontend = build(device, backend=backend, **SMALL).train(training)
    x = features(device, B=0).requires_grad_()
    y = frontend(x, x.new_zeros(0))
    assert y.shape == (0, 3, 2, 16)
    y.sum().backward()
    assert all((p.grad == 0).all() for p in frontend.parameters())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(backend, dtype, device, launches):
    frontend = build(device, backend=backend, **SMALL)
    x = features(device).requires_grad_()
    lengths = torch.tensor([1.0, 0.6], device=device)
    with torch.autocast(device, dtype):
        y = frontend(x, lengths)
        with torch.autocast(device, enabled=False):
            assert frontend(x, lengths).dtype is torch.float32
        assert frontend(x.detach().to(dtype)).dtype is dtype
    assert y.dtype is dtype
    y.float().pow(2).sum().backward()
    assert_path(backend, launches)
    for tensor in (x, *frontend.parameters()):
        assert tensor.grad.dtype is torch.float32
        assert tensor.grad.isfinite().all() and tensor.grad.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_is_as_exact_as_plain_layers(backend, device):
    frontend = build(device, backend=backend, **SMALL)
    stock = Plain(frontend)
    x = features(device)
    dy = torch.randn_like(stock(x))
    with torch.autocast(device, torch.bfloat16):
        ours, theirs = outcome(frontend, x, dy), outcome(stock, x, dy)
    exact = outcome(stock.exact(), x.double(), dy.double())
    assert_as_exact_as_stock(ours, theirs, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_dtypes_outside_of_autocast_are_named(backend, device):
    frontend = build(device, backend=backend, **SMALL).bfloat16()
    with pytest.raises(RuntimeError, match="(?i)float.*bfloat16"):
        frontend(features(device))


def test_float64_is_the_torch_paths(device, launches):
    frontend = build(device, **SMALL).double()
    x = features(device).double()
    torch.testing.assert_close(frontend(x), Plain(frontend)(x))
    frontend.backend = "triton"
    with pytest.raises(RuntimeError, match="the tensors are float64"):
        frontend(x)
    assert not launches


@pytest.mark.parametrize("backend", BACKENDS)
def test_recomputed_activations_give_the_same_gradients(backend, device):
    frontend = build(device, backend=backend, **SMALL)
    x, lengths = features(device), torch.tensor([1.0, 0.6], device=device)
    dy = torch.randn_like(frontend(x))

    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = frontend

        def forward(self, *args):
            return checkpoint(self.inner, *args, use_reentrant=False)

    with torch.autocast(device, torch.bfloat16):
        once = outcome(frontend, x, dy, lengths)
        again = outcome(Recomputed(), x, dy, lengths)
    for name in once:
        assert torch.equal(once[name], again[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_stay_and_backward_may_be_repeated(backend, device):
    frontend = build(device, backend=backend, **SMALL)
    x = features(device).requires_grad_()
    lengths = torch.tensor([1.0, 0.6], device=device)
    tensors = [x, lengths, *frontend.parameters()]
    before = [tensor.detach().clone() for tensor in tensors]

    loss = (frontend(x, lengths) + 1).pow(2).sum()
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * once)

    for tensor, value in zip(tensors, before, strict=True):
        assert torch.equal(tensor, value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_changed_in_place_is_refused_as_behind_a_relu(backend, device):
    """Its backward needs the output: an error, and no wrong gradient."""
    frontend = build(device, backend=backend, **SMALL)
    y = frontend(features(device))
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_nan_is_not_hidden_by_the_last_relu(device):
    frontend = build(device, backend="triton", **SMALL)
    with torch.no_grad():
        frontend.blocks[1].pointwise.bias[3] = torch.nan
    y = frontend(features(device), torch.tensor([0.3, 1.0], device=device))
    assert y[:, 0, :, 3].isnan().all()
    assert not y[0, 1:].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_give_what_contiguous_tensors_give(backend, device):
    frontend = build(device, backend=backend, **SMALL)
    F = SMALL["n_mels"]
    base = torch.randn(3, F, 2 * 21, device=device)
    lengths = torch.tensor([0.5, 9.0, 1.0], device=device)[::2]
    for x in (
        base.transpose(1, 2)[1:, ::2],
        torch.randn(2, 21, 2 * F, device=device)[..., :F],
        torch.randn(21, F, device=device).expand(2, -1, -1),
    ):
        torch.testing.assert_close(
            frontend(x, lengths),
            frontend(x.contiguous(), lengths.contiguous()),
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize("subsampling", [4, 8])
def test_encoder_takes_the_output_as_it_is(subsampling):
    frontend = FastConformerFrontEnd(79, subsampling, channels=8)
    encoder = TransformerASR(
        tgt_vocab=5,
        input_size=frontend.output_size,
        d_model=16,
        nhead=2,
        num_encoder_layers=1,
        num_decoder_layers=0,
        d_ffn=16,
        encoder_module="conformer",
        attention_type="RoPEMHA",
        normalize_before=True,
        causal=False,
    )
    x, lengths = features("cpu", T=40, F=79), torch.tensor([1.0, 0.3])
    out = frontend.out_lengths(lengths, 40)
    encoded = encoder.encode(frontend(x, lengths), out)
    assert encoded.shape == (2, 40 // subsampling, 16)


def test_fresh_weights_keep_the_variance_of_the_features():
    for options in ({}, {"kernel_size": 5}, {"subsampling": 4}):
        frontend = FastConformerFrontEnd(80, channels=128, **options)
        y = frontend(features("cpu", T=80, F=80))
        assert 0.3 < y.pow(2).mean() < 3
