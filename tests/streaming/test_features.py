"""Frames of a stream are those of the whole signal."""

import copy

import pytest
import torch
from speechbrain.lobes.features import Fbank, StreamingFeatureWrapper
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.nnet.containers import LengthsCapableSequential
from speechbrain.processing.features import InputNormalization
from speechbrain.utils.filter_analysis import stack_filter_properties

from speechbrain_triton.modules import FastConformerFrontEnd
from speechbrain_triton.streaming import StreamingFeatures

MELS = 16


def normalization(**options):
    normalize = InputNormalization(**options)
    normalize.glob_mean = torch.linspace(-20, 0, MELS)
    normalize.glob_std = torch.linspace(8, 12, MELS)
    return normalize


def convolutions(dilation=1):
    return ConvolutionFrontEnd(
        input_shape=[8, 10, MELS],
        num_blocks=2,
        num_layers_per_block=1,
        out_channels=[4, 4],
        kernel_sizes=[3, 3],
        strides=[2, 2],
        dilations=[dilation, 1],
        residuals=[False, False],
    )


FRONT_ENDS = {
    "convolutions": convolutions,
    "fast": lambda: FastConformerFrontEnd(MELS, channels=4),
    "fast 4x": lambda: FastConformerFrontEnd(MELS, subsampling=4, channels=4),
    "causal": lambda: FastConformerFrontEnd(MELS, channels=4, causal=True),
}


def build(name="convolutions", **options):
    features = StreamingFeatures(
        Fbank(n_mels=MELS, **options), normalization(), FRONT_ENDS[name]()
    )
    return features.eval().requires_grad_(False)


def plainly(features, x):
    """The same modules on the whole signal, as in a recipe's test."""
    return features.frontend(features.normalize(features.features(x)))


def stream(features, x, chunk_size):
    """Chunk by chunk without delay."""
    context = features.start(x[:, : features.lookahead], limit=chunk_size)
    position, frames = features.lookahead, []
    while not context.finished:
        chunk = x[:, position : position + chunk_size * features.stride]
        position += chunk.shape[1]
        context.ended = position >= x.shape[1]
        frames.append(features(chunk, context))
    sizes = [f.shape[1] for f in frames]
    assert sizes[:-1] == [chunk_size] * (len(frames) - 1)
    assert 1 <= sizes[-1] <= chunk_size
    return torch.cat(frames, dim=1)


@pytest.mark.parametrize("name", FRONT_ENDS)
@pytest.mark.parametrize("chunk_size", [1, 3])
def test_frames_are_those_of_the_whole_signal(name, chunk_size):
    features = build(name)
    lengths = range(features.stride, 4 * features.stride + 400, 331)
    for length in (*lengths, 6 * features.stride):
        x = 0.1 * torch.randn(2, length)
        expected = plainly(features, x)
        torch.testing.assert_close(features.whole(x), expected)
        y = stream(features, x, chunk_size)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("win_length", "n_fft", "lookahead"), [(32, 512, 97), (25, 1024, 41)]
)
def test_windows_of_other_recipes(win_length, n_fft, lookahead):
    features = build(n_fft=n_fft, win_length=win_length)
    assert (features.stride, features.lookahead) == (640, lookahead)
    x = 0.1 * torch.randn(1, 5000)
    y = stream(features, x, 2)
    torch.testing.assert_close(y, plainly(features, x), rtol=1e-5, atol=1e-5)
    x[:, :1500] = 0
    x[:, 3000:] *= 10
    y = stream(features, x, 2)
    whole = features.whole(x, chunk_size=2)
    torch.testing.assert_close(y, whole, rtol=1e-5, atol=1e-5)
    assert (whole - plainly(features, x)).abs().max() > 1e-2


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_chunks_of_one_size_are_late_by_the_lookahead(name):
    features = build(name)
    size = (features.properties.stride - 1) * 3
    x = 0.1 * torch.randn(1, 2 * size + 300)
    x[:, size:] *= 2
    zeros = torch.zeros(1, size)
    more = features.get_recommended_final_chunk_count(size)
    context = features.make_streaming_context()
    frames = [
        features(chunk, context)
        for chunk in (*x.split(size, 1), *[zeros] * more)
    ]
    assert [f.shape[1] for f in frames] == [3, 3, 1, *[3] * more]
    y = torch.cat(frames, dim=1)
    late = torch.nn.functional.pad(x, (features.lookahead, 2 * size))
    expected = features.whole(late, chunk_size=3)[:, : y.shape[1]]
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    # All that the signal has, and more.
    assert y.shape[1] > plainly(features, x).shape[1]


def test_speechbrains_own_frames_are_of_another_grid():
    """Each chunk's by a sample for each frame before; two frames late."""
    features, chunk_size = build(), 4
    modules = features.features, features.normalize, features.frontend
    wrapper = StreamingFeatureWrapper(
        LengthsCapableSequential(*modules),
        stack_filter_properties([modules[0], modules[2]]),
    )
    pad = wrapper.get_required_padding()
    assert pad == 2 * features.stride
    size = chunk_size * (features.stride - 1)
    x = 0.1 * torch.randn(1, 5 * size)
    context = wrapper.make_streaming_context()
    frames = [wrapper(chunk, context) for chunk in x.split(size, 1)]
    for k in range(1, 5):
        place = slice(k * chunk_size, (k + 1) * chunk_size)
        shift = pad + k * chunk_size
        shifted = plainly(features, torch.nn.functional.pad(x, (shift, 0)))
        torch.testing.assert_close(
            frames[k], shifted[:, place], rtol=1e-4, atol=1e-4
        )
        late = plainly(features, torch.nn.functional.pad(x, (pad, 0)))
        assert (frames[k] - late[:, place]).abs().max() > 1e-3


def test_what_is_quiet_before_the_loudest_moment_is_the_one_difference():
    features = build()
    stride = features.stride
    x = 1e-3 * torch.randn(1, 30 * stride)
    x[:, : 6 * stride] = 0.0
    x[:, 24 * stride :] = 0.0
    x[:, 14 * stride : 16 * stride] *= 500
    expected = plainly(features, x)
    y = stream(features, x, 4)
    whole = features.whole(x, chunk_size=4)
    torch.testing.assert_close(y, whole, rtol=1e-5, atol=1e-5)
    wrong = (y - expected).abs().flatten(2).amax(-1)[0] > 1e-5
    # Only the silence before the noise, no frame of it nor behind it.
    assert wrong[:4].all() and not wrong[7:].any()


def test_streams_do_not_mix():
    features = build()
    x = 0.1 * torch.randn(2, 9 * features.stride)
    contexts = [features.make_streaming_context() for _ in x]
    frames = [[], []]
    for chunk in x.split(3 * features.stride, dim=1):
        for row, context in enumerate(contexts):
            before = copy.deepcopy(context)
            frames[row].append(features(chunk[row : row + 1], context))
            again = features(chunk[row : row + 1], before)
            assert torch.equal(frames[row][-1], again)
    both = features.make_streaming_context()
    together = [features(c, both) for c in x.split(3 * features.stride, dim=1)]
    torch.testing.assert_close(
        torch.cat([torch.cat(f, dim=1) for f in frames]),
        torch.cat(together, dim=1),
        rtol=1e-5,
        atol=1e-5,
    )


def test_nothing_but_silence_follows_a_short_chunk():
    features = build()
    context = features.make_streaming_context()
    assert features(torch.randn(1, 700), context).shape[1] == 2
    assert features(torch.zeros(1, 1280), context).shape[1] == 2
    with pytest.raises(ValueError, match="640 samples each, can only be"):
        features(torch.randn(1, 1280), context)


@pytest.mark.parametrize(
    ("features", "normalize", "frontend", "message"),
    [
        ({"deltas": True}, {}, {}, "deltas or context"),
        ({}, {"norm_type": "sentence"}, {}, "norm_type='sentence'"),
        ({}, {}, {"dilation": 2}, "dilated front end"),
    ],
)
def test_what_cannot_be_streamed_is_refused(
    features, normalize, frontend, message
):
    with pytest.raises(ValueError, match=message):
        StreamingFeatures(
            Fbank(n_mels=MELS, **features),
            normalization(**normalize),
            convolutions(**frontend),
        )
