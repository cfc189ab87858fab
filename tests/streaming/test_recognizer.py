"""A stream gives what the masked evaluation of the same model gives."""

import pytest
import torch
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

from speechbrain_triton.modules import TritonConformerEncoderLayer
from speechbrain_triton.streaming import (
    load_folder,
    recognize_stream,
    recognize_whole,
)

MODELS = ("conformer", "fast_conformer")
CONFIGS = [(4, 2), (3, 0), (2, None), (64, 1)]


def load(folder, device, backend="torch"):
    """A model that tells the frames of a sound of ours apart."""
    asr = load_folder(folder, device=device, backend=backend)
    output = asr.hparams.transducer_lin.w
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(output.weight.shape, generator=generator)
    with torch.no_grad():
        encoded = recognize_whole(asr, sound(asr), None).encoded[0]
        asr.hparams.proj_enc.w.bias.sub_(encoded.mean(0))
        output.weight.copy_(2 * weight / encoded.std(0).mean().cpu())
        output.bias.zero_()
        output.bias[0] = 4.0
    return asr


def sound(asr, frames=13.4):
    stride = asr.hparams.fea_streaming_extractor.stride
    generator = torch.Generator().manual_seed(5)
    samples = torch.randn(int(frames * stride), generator=generator)
    samples *= 0.1 * torch.linspace(0.1, 1, len(samples))
    # Nothing is quieter than digital silence.
    samples[: len(samples) // 5] = 0
    return samples


def joined(chunks):
    return (
        "".join(chunk.text for chunk in chunks),
        tuple(token for chunk in chunks for token in chunk.tokens),
        torch.cat([chunk.encoded for chunk in chunks], dim=1),
    )


def assert_same(asr, samples, config):
    chunks = list(recognize_stream(asr, samples, config))
    text, tokens, encoded = joined(chunks)
    whole = recognize_whole(asr, samples, config)
    torch.testing.assert_close(encoded, whole.encoded, rtol=0, atol=1e-5)
    assert (text, tokens) == (whole.text, whole.tokens)
    # Empty or constant, they would show nothing.
    assert len(set(tokens)) > 1
    return chunks


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("chunk_size", "left_context"), CONFIGS)
def test_stream_equals_masked_evaluation(
    name, chunk_size, left_context, folders
):
    asr = load(folders / name, "cpu")
    config = DynChunkTrainConfig(chunk_size, left_context)
    samples = sound(asr)
    chunks = assert_same(asr, samples, config)
    assert len(chunks) == -(-14 // chunk_size)
    assert chunks[-1].end == len(samples) / 16000
    tested = recognize_whole(asr, samples, config, as_tested=True)
    if chunk_size < 8:
        assert (tested.encoded - joined(chunks)[2]).abs().max() > 1e-3
    full = recognize_whole(asr, samples, None)
    if chunk_size < 14:
        # The chunks matter, and so the mask is there.
        assert (full.encoded - joined(chunks)[2]).abs().max() > 1e-3


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("frames", [1.0, 3.999, 4.0, 4.01, 4.1, 8.0])
def test_lengths_at_the_ends_of_chunks(name, frames, folders):
    asr = load(folders / name, "cpu")
    config = DynChunkTrainConfig(4, 1)
    samples = sound(asr, frames)
    chunks = list(recognize_stream(asr, samples, config))
    whole = recognize_whole(asr, samples, config)
    _, tokens, encoded = joined(chunks)
    torch.testing.assert_close(encoded, whole.encoded, rtol=0, atol=1e-5)
    assert tokens == whole.tokens


@pytest.mark.parametrize("name", MODELS)
def test_kernels_stream_too(name, folders, device, launches):
    asr = load(folders / name, device, backend="triton")
    layers = asr.mods.enc.transformer.encoder.layers
    assert all(type(la) is TritonConformerEncoderLayer for la in layers)
    samples, config = sound(asr), DynChunkTrainConfig(4, 2)
    launches.clear()
    with torch.no_grad():
        chunks = list(recognize_stream(asr, samples, config))
    # In each layer and chunk, on the kernels' own left context.
    assert launches["conv_kernel"] == len(layers) * len(chunks) == 8
    if name == "fast_conformer":
        assert launches["stem_kernel"] == len(chunks)
    assert_same(asr, samples, config)
    plain = load(folders / name, device, backend="torch")
    expected = list(recognize_stream(plain, samples, config))
    torch.testing.assert_close(
        joined(chunks)[2], joined(expected)[2], rtol=0, atol=1e-4
    )
    assert joined(chunks)[:2] == joined(expected)[:2]


@pytest.mark.parametrize("name", MODELS)
def test_speechbrains_interface_gives_it_some_samples_later(
    name, folders, tmp_path
):
    soundfile = pytest.importorskip("soundfile")
    asr = load(folders / name, "cpu")
    config = DynChunkTrainConfig(4, 2)
    extractor = asr.hparams.fea_streaming_extractor
    size = asr.get_chunk_size_frames(config)
    assert size == 4 * extractor.stride
    # Whole chunks: SpeechBrain passes a shorter last one as it is.
    samples = sound(asr, 12).flip(0)
    path = tmp_path / "sound.wav"
    soundfile.write(path, samples.numpy(), 16000, subtype="FLOAT")
    texts = list(
        asr.transcribe_file_streaming(
            str(path), config, use_torchaudio_streaming=False
        )
    )
    assert len(texts) == 4
    late = torch.nn.functional.pad(samples, (extractor.lookahead, size))
    whole = recognize_whole(asr, late, config)
    frames = whole.encoded[:, : 4 * 4]
    _, tokens = asr.decode_chunk(asr.make_streaming_context(config), frames)
    decode = asr.hparams.tokenizer_decode_streaming
    stream = asr.hparams.make_tokenizer_streaming_context()
    text = decode(asr.hparams.tokenizer, tokens[0], stream)
    assert "".join(texts) == text
    assert len(set(tokens[0])) > 1


def test_two_streams_at_once(folders):
    asr = load(folders / "conformer", "cpu")
    config = DynChunkTrainConfig(4, 2)
    signals = sound(asr), sound(asr).flip(0)
    alone = [list(recognize_stream(asr, s, config)) for s in signals]
    streams = [recognize_stream(asr, s, config) for s in signals]
    together = list(zip(*streams, strict=True))
    for k, chunks in enumerate(zip(*together, strict=True)):
        for chunk, expected in zip(chunks, alone[k], strict=True):
            assert chunk.tokens == expected.tokens
            assert torch.equal(chunk.encoded, expected.encoded)


def test_too_short_a_signal_is_refused(folders):
    asr = load_folder(folders / "conformer", device="cpu")
    config = DynChunkTrainConfig(4, 2)
    for samples in (torch.zeros(639), torch.zeros(1, 1280)):
        with pytest.raises(ValueError, match="at least 640 samples"):
            list(recognize_stream(asr, samples, config))
        with pytest.raises(ValueError, match="at least 640 samples"):
            recognize_whole(asr, samples, config)
