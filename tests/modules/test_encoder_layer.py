"""The encoder layer's streaming: no copy of the left context, same result."""

import copy

import pytest
import torch
from speechbrain.lobes.models.transformer.Conformer import (
    ConformerEncoderLayer,
)
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig
from test_convolution_streaming import D, encoder

import speechbrain_triton as st
from speechbrain_triton.modules import (
    TritonConformerEncoderLayer,
    TritonConvolutionModule,
)
from speechbrain_triton.modules.streaming import streaming

CONFIG = DynChunkTrainConfig(8, 2)


def layers(model):
    return [m for m in model.modules() if isinstance(m, ConformerEncoderLayer)]


def chunks_of(model, x, sizes, before=None):
    """Encode x in chunks; ``before`` may change each, and the context."""
    return _stream(model, x, sizes, before)[0]


def stream(model, x, sizes, before=None):
    """The same, joined; and the context."""
    outputs, context = _stream(model, x, sizes, before)
    return torch.cat(outputs, dim=1), context


def _stream(model, x, sizes, before):
    context = model.make_streaming_context(CONFIG)
    outputs, start = [], 0
    for i, size in enumerate(sizes):
        chunk = x[:, start : start + size]
        if before is not None:
            chunk = before(i, context, chunk)
        outputs.append(model.encode_streaming(chunk, context))
        start += size
    return outputs, context


@pytest.mark.parametrize("kernel_size", [7, 31])
@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("size", [4, 8, 16, 32])
@torch.no_grad()
def test_stream_equals_stock(size, B, kernel_size, device, launches):
    model = encoder(device, kernel_size=kernel_size)
    x = torch.randn(B, 3 * size, D, device=device)
    expected, kept = stream(model, x, [size] * 3)
    st.apply_kernels(model, conv="triton")
    ours, context = stream(model, x, [size] * 3)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    # One launch a layer and chunk, without the frames of the left context.
    assert launches["conv_kernel"] == 2 * 3
    for a, b in zip(
        context.encoder_context.layers, kept.encoder_context.layers, strict=True
    ):
        torch.testing.assert_close(
            a.dcconv_left_context, b.dcconv_left_context, rtol=0, atol=1e-5
        )


@torch.no_grad()
def test_left_context_is_not_computed_again(device, monkeypatch):
    from speechbrain_triton.modules import convolution

    seen = []
    original = convolution.run_conv_module_on_chunk

    def spy(x, *args):
        seen.append(x.shape[1])
        return original(x, *args)

    monkeypatch.setattr(convolution, "run_conv_module_on_chunk", spy)
    model = encoder(device, kernel_size=31)
    st.apply_kernels(model, conv="triton")
    stream(model, torch.randn(1, 12, D, device=device), [4, 4, 4])
    assert seen == [4] * 6


def test_stream_with_gradients_equals_stock(device, launches):
    """Then the last frames are computed again, as in SpeechBrain."""
    model = encoder(device, kernel_size=7)
    x = torch.randn(1, 24, D, device=device)
    expected, _ = stream(model, x, [8] * 3)
    st.apply_kernels(model, conv="triton")
    ours, _ = stream(model, x, [8] * 3)
    assert launches["conv_kernel"] == 2 * 3
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pattern", ["00111", "11000", "10011", "01010"])
@torch.no_grad()
def test_flag_may_change_in_the_middle_of_a_stream(pattern, device):
    model = encoder(device, kernel_size=7)
    x = torch.randn(1, 40, D, device=device)
    expected, _ = stream(model, x, [8] * 5)

    def switch(i, context, chunk):
        if pattern[i] == "1":
            st.apply_kernels(model, conv="triton")
        else:
            st.restore(model)
        return chunk

    ours, _ = stream(model, x, [8] * 5, switch)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [[1, 0], [1]])
@torch.no_grad()
def test_caller_may_reorder_or_drop_utterances(rows, device):
    model = encoder(device, kernel_size=7)
    x = torch.randn(2, 32, D, device=device)

    def pick(i, context, chunk):
        if i == 2:
            for layer in context.encoder_context.layers:
                layer.mha_left_context = layer.mha_left_context[rows]
                layer.dcconv_left_context = layer.dcconv_left_context[rows]
        return chunk[rows] if i >= 2 else chunk

    expected = chunks_of(model, x, [8] * 4, pick)
    st.apply_kernels(model, conv="triton")
    for ours, stock in zip(
        chunks_of(model, x, [8] * 4, pick), expected, strict=True
    ):
        torch.testing.assert_close(ours, stock, rtol=0, atol=1e-5)


@torch.no_grad()
def test_chunk_may_be_tried_again_after_an_error(device):
    model = encoder(device, kernel_size=7)
    x = torch.randn(1, 32, D, device=device)
    expected, _ = stream(model, x, [8] * 4)
    st.apply_kernels(model, conv="triton")

    def fail_once(i, context, chunk):
        if i == 2:

            def stop(*args):
                raise MemoryError

            layer = model.encoder.layers[0].ffn_module1
            hook = layer.register_forward_pre_hook(stop)
            with pytest.raises(MemoryError):
                model.encode_streaming(chunk, context)
            hook.remove()
        return chunk

    ours, _ = stream(model, x, [8] * 4, fail_once)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_stream_continues_from_a_copy_of_its_context(device, launches):
    model = encoder(device, kernel_size=7)
    st.apply_kernels(model, conv="triton")
    x = torch.randn(1, 16, D, device=device)
    context = model.make_streaming_context(CONFIG)
    model.encode_streaming(x[:, :8], context)
    copied = copy.deepcopy(context)
    first = model.encode_streaming(x[:, 8:], context)
    second = model.encode_streaming(x[:, 8:], copied)
    assert torch.equal(first, second)


@torch.no_grad()
def test_hooks_see_what_they_see_in_stock(device):
    model = encoder(device, kernel_size=7)
    shapes = []
    model.encoder.layers[0].convolution_module.register_forward_hook(
        lambda module, args, y: shapes.append(tuple(args[0].shape))
    )
    x = torch.randn(1, 16, D, device=device)
    stream(model, x, [8, 8])
    expected = shapes.copy()
    st.apply_kernels(model, conv="triton")
    stream(model, x, [8, 8])
    assert shapes == 2 * expected


@torch.no_grad()
def test_two_streams_in_turns_and_short_chunks(device):
    model = encoder(device, kernel_size=31)
    x = torch.randn(2, 1, 24, D, device=device)
    sizes = [1, 3, 8, 2, 4, 6]
    expected = [stream(model, u, sizes)[0] for u in x]
    st.apply_kernels(model, conv="triton")
    contexts = [model.make_streaming_context(CONFIG) for _ in x]
    outputs, start = [[], []], 0
    for size in sizes:
        for i, context in enumerate(contexts):
            chunk = x[i, :, start : start + size]
            outputs[i].append(model.encode_streaming(chunk, context))
        start += size
    for ours, stock in zip(outputs, expected, strict=True):
        torch.testing.assert_close(
            torch.cat(ours, dim=1), stock, rtol=0, atol=1e-5
        )


def test_layers_are_switched_with_their_modules_and_restored(device):
    model = encoder(device)
    assert {type(m) for m in layers(model)} == {ConformerEncoderLayer}
    before = [set(m.__dict__) for m in layers(model)]
    for _ in range(2):
        st.apply_kernels(model, conv="auto")
        assert {type(m) for m in layers(model)} == {TritonConformerEncoderLayer}
    st.apply_kernels(model, conv="torch")
    assert {type(m) for m in layers(model)} == {ConformerEncoderLayer}
    st.apply_kernels(model, conv="auto")
    st.restore(model)
    assert {type(m) for m in layers(model)} == {ConformerEncoderLayer}
    assert [set(m.__dict__) for m in layers(model)] == before


def test_a_layer_of_another_class_is_left_alone(device):
    class Own(ConformerEncoderLayer):
        pass

    model = encoder(device)
    model.encoder.layers[0].__class__ = Own
    st.apply_kernels(model, conv="auto")
    assert [type(m) for m in layers(model)] == [
        Own,
        TritonConformerEncoderLayer,
    ]


@torch.no_grad()
def test_an_adapter_behind_the_convolution_is_called_in_a_stream(device):
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = encoder(device)
    for layer in layers(model):
        layer.convolution_module.after_conv[2].__class__ = Doubled
    x = torch.randn(1, 24, D, device=device)
    expected, _ = stream(model, x, [8] * 3)
    st.apply_kernels(model, conv="auto")
    for layer in layers(model):
        layer.convolution_module.backend = "triton"
    ours, _ = stream(model, x, [8] * 3)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_chunk_of_another_batch_is_refused(device):
    """A read of context that is not there must not happen."""
    module = TritonConvolutionModule(D, 7, backend="triton").to(device).eval()
    frames = torch.randn(2, 3, D, device=device)
    with streaming(frames):
        assert module(torch.randn(2, 4, D, device=device)).shape == (2, 4, D)
    with (
        streaming(frames),
        pytest.raises(ValueError, match="x has 1 utterances, and the stream"),
    ):
        module(torch.randn(1, 4, D, device=device))
