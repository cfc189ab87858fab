"""Whole encoders with gated feed-forwards: in training and in a stream."""

import copy

import pytest
import torch
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from test_convolution_streaming import D, encoder
from tolerance import assert_as_exact_as_stock

import speechbrain_triton as st
from speechbrain_triton.modules import (
    TritonConformerEncoderLayer,
    use_feedforward,
)

CONFIG = DynChunkTrainConfig(8, 2)


def gated(device, **options):
    model = encoder(device, **options)
    report = use_feedforward(model, "geglu", keep="parameters")
    assert len(report.names) == 4
    return model


def stream(model, x, sizes, before=lambda index: None):
    context = model.make_streaming_context(CONFIG)
    outputs = []
    for index, chunk in enumerate(x.split(sizes, dim=1)):
        before(index)
        outputs.append(model.encode_streaming(chunk, context))
    return torch.cat(outputs, dim=1)


def gated_launches(launches):
    """Of the feed-forwards' kernels, not the convolution module's."""
    return sum(n for name, n in launches.items() if "geglu" in name)


@pytest.mark.parametrize("conv", ["torch", "triton"])
@pytest.mark.parametrize("chunk_size", [None, 8])
@pytest.mark.parametrize("autocast", [False, True])
def test_encoder_trains_as_in_torch_on_a_padded_batch(
    conv, chunk_size, autocast, device, launches
):
    stock = gated(device, attention="RoPEMHA")
    ours = copy.deepcopy(stock)
    st.apply_kernels(stock, conv="torch", ffn="torch")
    st.apply_kernels(ours, conv=conv, ffn="triton")
    config = chunk_size and DynChunkTrainConfig(chunk_size, 2)
    x, dy = torch.randn(2, 2, 21, D, device=device)
    wav_len = torch.tensor([1.0, 0.7], device=device)

    def gradients(model, x, autocast):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            y = model.encode(x, wav_len.to(x), dynchunktrain_config=config)
        weights = {
            name: parameter
            for name, parameter in model.encoder.named_parameters()
            if "ffn_module" in name
        }
        grads = torch.autograd.grad(y, list(weights.values()), dy.to(y))
        return {"y": y.detach(), **dict(zip(weights, grads, strict=True))}

    expected = gradients(stock, x, autocast)
    assert len(expected) == 1 + 4 * 6
    assert not launches
    result = gradients(ours, x, autocast)
    assert bool(launches["conv_kernel"]) is (conv == "triton")
    assert gated_launches(launches) > 0
    exact = gradients(stock.double(), x.double(), False)
    assert_as_exact_as_stock(result, expected, exact)


@pytest.mark.parametrize("conv", ["torch", "triton"])
@torch.no_grad()
def test_stream_equals_masked_encoding_and_torch(conv, device, launches):
    model = gated(device)
    x = torch.randn(2, 21, D, device=device)
    expected = stream(model, x, [8, 8, 5])
    masked = model.encode(x, dynchunktrain_config=CONFIG)
    assert not launches
    torch.testing.assert_close(expected, masked, rtol=0, atol=1e-5)
    st.apply_kernels(model, conv=conv, ffn="triton")
    switched = TritonConformerEncoderLayer if conv == "triton" else None
    assert type(model.encoder.layers[0]) is (
        switched or type(model.encoder.layers[1])
    )
    ours = stream(model, x, [8, 8, 5])
    assert gated_launches(launches) > 0
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    masked = model.encode(x, dynchunktrain_config=CONFIG)
    torch.testing.assert_close(masked, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_flag_may_change_in_the_middle_of_a_stream(device):
    model = gated(device)
    x = torch.randn(1, 24, D, device=device)
    expected = stream(model, x, [8] * 3)

    def switch(index):
        if index == 1:
            st.apply_kernels(model, conv="triton", ffn="triton")
        else:
            st.restore(model)

    ours = stream(model, x, [8] * 3, switch)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_both_feed_forwards_of_a_layer_run_on_kernels(device, launches):
    model = gated(device)
    st.apply_kernels(model, conv="torch", ffn="triton")
    x = torch.randn(1, 6, D, device=device)
    model.encoder.layers[0].ffn_module1(x)
    once = launches.copy()
    assert once
    launches.clear()
    model.encode(x)
    assert launches == {name: 4 * count for name, count in once.items()}
