"""Whole encoders with the kernels on: chunk by chunk, and in training."""

import copy

import pytest
import torch
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from tolerance import assert_as_exact_as_stock

import speechbrain_triton as st

D = 24


def encoder(device, kernel_size=7, attention="RelPosMHAXL", layers=2):
    model = TransformerASR(
        tgt_vocab=10,
        input_size=D,
        d_model=D,
        nhead=2,
        num_encoder_layers=layers,
        num_decoder_layers=0,
        d_ffn=32,
        dropout=0.0,
        attention_type=attention,
        positional_encoding=None,
        encoder_module="conformer",
        kernel_size=kernel_size,
        normalize_before=True,
        causal=False,
    )
    return model.to(device).eval()


@pytest.mark.parametrize(
    ("chunk_size", "left_chunks", "kernel_size", "attention"),
    [
        (8, 2, 7, "RelPosMHAXL"),
        (16, 4, 31, "RoPEMHA"),
        (4, 1, 7, "RoPEMHA"),
    ],
)
@torch.no_grad()
def test_streaming_equals_masked_encoding(
    chunk_size, left_chunks, kernel_size, attention, device, launches
):
    """Two utterances in turns; 42 frames end in a short chunk."""
    model = encoder(device, kernel_size, attention)
    config = DynChunkTrainConfig(chunk_size, left_chunks)
    utterances = torch.randn(2, 1, 42, D, device=device)
    stock = [model.encode(x, dynchunktrain_config=config) for x in utterances]

    st.apply_kernels(model, conv="triton")
    masked = [model.encode(x, dynchunktrain_config=config) for x in utterances]
    contexts = [model.make_streaming_context(config) for _ in utterances]
    chunks = [[], []]
    launches.clear()
    for start in range(0, 42, chunk_size):
        for x, context, outputs in zip(
            utterances, contexts, chunks, strict=True
        ):
            chunk = x[:, start : start + chunk_size]
            outputs.append(model.encode_streaming(chunk, context))
    assert launches["conv_kernel"] == 2 * 2 * len(chunks[0])
    for i, outputs in enumerate(chunks):
        streamed = torch.cat(outputs, dim=1)
        torch.testing.assert_close(streamed, masked[i], rtol=0, atol=1e-5)
        torch.testing.assert_close(streamed, stock[i], rtol=0, atol=1e-5)


@torch.no_grad()
def test_streaming_contexts_are_not_written_to_by_later_calls(device, launches):
    model = encoder(device)
    st.apply_kernels(model, conv="triton")
    config = DynChunkTrainConfig(8, 2)
    contexts = [model.make_streaming_context(config) for _ in range(2)]
    model.encode_streaming(torch.randn(1, 8, D, device=device), contexts[0])

    def tensors():
        for layer in contexts[0].encoder_context.layers:
            yield from (layer.mha_left_context, layer.dcconv_left_context)

    before = [tensor.clone() for tensor in tensors()]
    for _ in range(2):
        x = torch.randn(1, 8, D, device=device)
        model.encode_streaming(x, contexts[1])
    assert launches["conv_kernel"] == 6
    for tensor, kept in zip(tensors(), before, strict=True):
        assert torch.equal(tensor, kept)


def test_unlimited_left_context_fails_as_in_stock(device):
    model = encoder(device)

    def stream():
        context = model.make_streaming_context(DynChunkTrainConfig(8))
        model.encode_streaming(torch.randn(1, 8, D, device=device), context)

    with pytest.raises(TypeError) as stock:
        stream()
    st.apply_kernels(model, conv="triton")
    with pytest.raises(TypeError) as ours:
        stream()
    assert str(ours.value) == str(stock.value)


@pytest.mark.parametrize("chunk_size", [None, 8])
def test_encoder_trains_as_stock_on_a_padded_batch(
    chunk_size, device, launches
):
    stock = encoder(device, attention="RoPEMHA")
    ours = copy.deepcopy(stock)
    st.apply_kernels(ours, conv="triton")
    config = chunk_size and DynChunkTrainConfig(chunk_size, 2)
    x, dy = torch.randn(2, 2, 21, D, device=device)
    wav_len = torch.tensor([1.0, 0.7], device=device)

    def gradients(model, x):
        y = model.encode(x, wav_len.to(x), dynchunktrain_config=config)
        weights = {
            name: parameter
            for name, parameter in model.encoder.named_parameters()
            if "convolution_module" in name
        }
        grads = torch.autograd.grad(y, list(weights.values()), dy.to(y))
        return {"y": y.detach(), **dict(zip(weights, grads, strict=True))}

    result = gradients(ours, x)
    assert launches["conv_kernel"] == 4 and launches["weight_grad_kernel"] == 2
    expected = gradients(stock, x)
    exact = gradients(stock.double(), x.double())
    assert_as_exact_as_stock(result, expected, exact)
