"""The window that the front end claims, and SpeechBrain's wrapper around it."""

import pytest
import torch
from plain_frontend import build
from speechbrain.lobes.features import Fbank, StreamingFeatureWrapper
from speechbrain.nnet.containers import LengthsCapableSequential
from speechbrain.utils.filter_analysis import (
    FilterProperties,
    stack_filter_properties,
)

from speechbrain_triton.modules import FastConformerFrontEnd

SHAPES = pytest.mark.parametrize(
    ("subsampling", "kernel_size"), [(4, 3), (8, 3), (8, 5), (4, 1)]
)


@SHAPES
@pytest.mark.parametrize("causal", [False, True])
def test_window_is_the_one_that_a_changed_frame_shows(
    subsampling, kernel_size, causal
):
    frontend = FastConformerFrontEnd(
        8, subsampling, 4, kernel_size, causal=causal
    ).double()
    with torch.no_grad():  # so that no ReLU hides a change
        for parameter in frontend.parameters():
            parameter.abs_()
    claim = frontend.get_filter_properties()
    assert claim.stride == subsampling
    assert (claim.dilation, claim.causal) == (1, causal)

    x = torch.rand(1, 6 * claim.window_size, 8).double()
    y = frontend(x)
    first = (claim.window_size - 1) // (1 if causal else 2)
    last = 0 if causal else first
    for frame in range(x.shape[1]):
        changed = x.clone()
        changed[:, frame] += torch.rand(8)
        moved = (frontend(changed) != y).flatten(2).any(-1)[0]
        centre = claim.stride * torch.arange(y.shape[1])
        sees = (centre - first <= frame) & (frame <= centre + last)
        assert torch.equal(moved, sees), frame


class Bank(torch.nn.Module):
    """Eight features of each sample: the wrapper takes (B, T) only."""

    def forward(self, wav):
        return torch.sin(wav[..., None] * torch.arange(1, 9))

    def get_filter_properties(self):
        return FilterProperties.pointwise_filter()


def streaming(frontend):
    layers = [Bank(), frontend]
    return StreamingFeatureWrapper(
        LengthsCapableSequential(*layers), stack_filter_properties(layers)
    )


def stream(wrapper, x, size):
    context = wrapper.make_streaming_context()
    return torch.cat(
        [wrapper(chunk, context) for chunk in x.split(size, dim=1)],
        dim=1,
    )


@pytest.mark.parametrize(
    ("subsampling", "kernel_size", "causal"),
    [(4, 3, False), (8, 3, False), (8, 5, False), (4, 3, True), (8, 3, True)],
)
@pytest.mark.parametrize("chunks", [1, 4])
@torch.no_grad()
def test_chunks_give_the_frames_of_the_whole_signal(
    subsampling, kernel_size, causal, chunks
):
    frontend = build(
        n_mels=8,
        subsampling=subsampling,
        channels=4,
        kernel_size=kernel_size,
        causal=causal,
    )
    wrapper = streaming(frontend)
    x = torch.randn(2, 24 * subsampling)
    y = stream(wrapper, x, chunks * subsampling)
    assert y.shape[1] == 24
    # The wrapper begins with frames from before the signal.
    delay = wrapper.get_output_count_per_pad_frame()
    whole = wrapper.module(x)[:, delay : 24 - delay]
    torch.testing.assert_close(y[:, 2 * delay :], whole)


@torch.no_grad()
def test_last_chunk_of_one_frame():
    wrapper = streaming(build(n_mels=8, channels=4))
    y = stream(wrapper, torch.randn(1, 33), 16)
    assert y.shape[1] == 2 + 2 + 1 and y.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_streams_behind_features(causal):
    """As a streaming recipe stacks them; with zero chunks at the end."""
    fbank = Fbank(n_mels=40)
    frontend = build(n_mels=40, channels=4, causal=causal)
    extractor = LengthsCapableSequential(fbank, frontend)
    properties = stack_filter_properties([fbank, frontend])
    assert properties.stride == 8 * 160 and not properties.causal
    wrapper = StreamingFeatureWrapper(extractor, properties)
    wav = 0.1 * torch.randn(1, 24 * properties.stride)

    # SpeechBrain's chunks are some samples short of 4 output frames, as Fbank
    # adds a frame at the end of what it gets.
    short = 4 * (properties.stride - 1)
    context = wrapper.make_streaming_context()
    for chunk in wav.split(short, dim=1)[:-1]:
        assert wrapper(chunk, context, lengths=torch.ones(1)).shape[1] == 4

    size = 4 * properties.stride
    context = wrapper.make_streaming_context()
    y = [wrapper(c, context)[:, :4] for c in wav.split(size, dim=1)]
    delay = wrapper.get_output_count_per_pad_frame()
    whole = extractor(wav)[:, delay : 24 - delay]
    torch.testing.assert_close(
        torch.cat(y, dim=1)[:, 2 * delay :], whole, rtol=1e-3, atol=1e-3
    )


def test_speechbrains_wrapper_refuses_a_causal_front_end_alone():
    frontend = FastConformerFrontEnd(channels=4, causal=True)
    with pytest.raises(ValueError, match="Causal .* not yet supported"):
        StreamingFeatureWrapper(frontend, frontend.get_filter_properties())


@torch.no_grad()
def test_causal_front_end_goes_on_from_the_frames_it_saw():
    """What a stream needs: no output waits for a later frame."""
    frontend = build(n_mels=8, channels=4, causal=True)
    x = torch.randn(1, 80, 8)
    y = frontend(x)
    for frames in range(1, 80):
        seen = frontend(x[:, :frames])
        torch.testing.assert_close(seen, y[:, : seen.shape[1]])
