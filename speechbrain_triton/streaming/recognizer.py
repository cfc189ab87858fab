"""Recognition of a signal chunk by chunk, or at once under a mask."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from speechbrain.inference.ASR import StreamingASR
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

# Chunks that no stream will have, for SpeechBrain's "all of them".
_ALL_CHUNKS = 2**31
# Frames in a chunk that warm everything up; a whole file may be a chunk.
_WARM = 32


@dataclass(frozen=True)
class Recognized:
    """What a chunk of a signal brought.

    Arguments
    ---------
    text : str
        To be put behind the text so far.
    tokens : tuple of int
        Its labels.
    encoded : torch.Tensor
        (1, T, J), the projected encoder output.
    end : float
        Seconds of the signal that were needed.
    latency : float
        Seconds from the chunk's last sample to the text.
    """

    text: str
    tokens: tuple[int, ...]
    encoded: torch.Tensor
    end: float
    latency: float


def recognize_stream(
    asr: StreamingASR, samples: torch.Tensor, config: DynChunkTrainConfig
) -> Iterator[Recognized]:
    """Recognize a signal chunk by chunk.

    The frames are those of the whole signal, from the first to the last:
    :func:`recognize_whole` gives the same tokens.

    Arguments
    ---------
    asr : StreamingASR
        From an exported folder.
    samples : torch.Tensor
        (n,), float, at the model's sample rate.
    config : DynChunkTrainConfig
        Chunks, in encoder frames, and left context, in chunks.

    Yields
    ------
    Recognized
        For each chunk.

    Raises
    ------
    ValueError
        If the signal is shorter than an encoder frame.
    """
    samples = _batch(asr, samples)
    extractor = asr.hparams.fea_streaming_extractor
    context = asr.make_streaming_context(_bounded(config))
    stream = extractor.start(
        samples[:, : extractor.lookahead], limit=config.chunk_size
    )
    context.fea_extractor_context = stream
    position = extractor.lookahead
    size = extractor.stride * config.chunk_size
    while not stream.finished:
        chunk = samples[:, position : position + size]
        position = min(position + size, samples.shape[1])
        stream.ended = position == samples.shape[1]
        started = time.perf_counter()
        encoded = asr.encode_chunk(context, chunk)
        words, tokens = asr.decode_chunk(context, encoded)
        yield Recognized(
            words[0],
            tuple(tokens[0]),
            encoded,
            position / asr.hparams.sample_rate,
            time.perf_counter() - started,
        )


@torch.no_grad()
def recognize_whole(
    asr: StreamingASR,
    samples: torch.Tensor,
    config: DynChunkTrainConfig | None,
    as_tested: bool = False,
) -> Recognized:
    """Recognize a signal at once.

    Arguments
    ---------
    asr : StreamingASR
        From an exported folder.
    samples : torch.Tensor
        (n,), float, at the model's sample rate.
    config : DynChunkTrainConfig or None
        Chunks and left context, as a mask; None for full context.
    as_tested : bool
        Whether features are floored at 80 dB below the loudest of the whole
        signal, as in the recipe's test and always in full context, or of the
        chunks so far, as in a stream.

    Returns
    -------
    Recognized

    Raises
    ------
    ValueError
        If the signal is shorter than an encoder frame.
    """
    samples = _batch(asr, samples)
    started = time.perf_counter()
    frames = asr.hparams.fea_streaming_extractor.whole(
        samples,
        None if as_tested or config is None else config.chunk_size,
    )
    lengths = torch.ones(1, device=samples.device)
    encoded = asr.mods.enc(frames, lengths, dynchunktrain_config=config)
    encoded = asr.mods.proj_enc(encoded)
    # Only the decoder's state matters here, and it begins the same way.
    context = asr.make_streaming_context(DynChunkTrainConfig(1, 1))
    words, tokens = asr.decode_chunk(context, encoded)
    return Recognized(
        words[0],
        tuple(tokens[0]),
        encoded,
        samples.shape[1] / asr.hparams.sample_rate,
        time.perf_counter() - started,
    )


def warm_up(asr: StreamingASR, config: DynChunkTrainConfig) -> None:
    """Recognize a moment of noise, so that kernels are compiled and loaded.

    Arguments
    ---------
    asr : StreamingASR
        From an exported folder.
    config : DynChunkTrainConfig
        Those of the stream to come.
    """
    stride = asr.hparams.fea_streaming_extractor.stride
    config = replace(config, chunk_size=min(config.chunk_size, _WARM))
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(2 * config.chunk_size * stride, generator=generator)
    for _ in recognize_stream(asr, 0.01 * samples, config):
        pass


def _batch(asr: StreamingASR, samples: torch.Tensor) -> torch.Tensor:
    stride = asr.hparams.fea_streaming_extractor.stride
    if samples.dim() != 1 or samples.shape[0] < stride:
        raise ValueError(
            f"samples of shape {tuple(samples.shape)} are not one channel of "
            f"at least {stride} samples, an encoder frame."
        )
    return samples.to(asr.device, torch.float32)[None]


def _bounded(config: DynChunkTrainConfig) -> DynChunkTrainConfig:
    """SpeechBrain's streaming takes no None for the left context."""
    if config.left_context_size is not None:
        return config
    return replace(config, left_context_size=_ALL_CHUNKS)
