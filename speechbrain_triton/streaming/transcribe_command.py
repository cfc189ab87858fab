"""The command ``speechbrain-triton transcribe``."""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

# A key of exported hyperparameters alone.
_EXPORTED = "fea_streaming_extractor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Arguments
    ---------
    parser : argparse.ArgumentParser
        The command's parser.
    """
    parser.epilog = (
        "Words appear on stdout as their chunk comes, and at the end the "
        "real-time factor and the latency of chunks on stderr: the time from "
        "a chunk's last sample to its words, after a warm-up. Loading a model "
        "runs what its hyperparams.yaml names."
    )
    parser.add_argument(
        "model",
        type=Path,
        metavar="FOLDER_OR_RUN",
        help="a folder of 'export', or the output folder of a run",
    )
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a sound file: WAV, FLAC, OGG, MP3 and more",
    )
    parser.add_argument(
        "--chunk_size",
        "--chunk-size",
        type=_positive,
        metavar="N",
        help="encoder frames in a chunk; by default as in the run's test",
    )
    parser.add_argument(
        "--left_context",
        "--left-context",
        type=_left_context,
        metavar="N",
        help="chunks that a chunk sees to its left, or 'full' for all; by "
        "default as in the run's test",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="decode the whole file at once, with the chunks as a mask: the "
        "same text, for comparison",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "triton", "torch"),
        help="of all kernels; by default as in the folder's hyperparams.yaml",
    )
    parser.add_argument(
        "--device", help="cpu or cuda; by default a GPU where there is one"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document at the end instead of words",
    )


def run(args: argparse.Namespace) -> int:
    """Transcribe a file.

    Arguments
    ---------
    args : argparse.Namespace
        With the arguments of :func:`add_arguments`.

    Returns
    -------
    int
        0.

    Raises
    ------
    ValueError
        If the model cannot be loaded, or the file not be read.
    OSError
        If one of them is not there.
    """
    from speechbrain_triton.streaming.audio import read_sound
    from speechbrain_triton.streaming.loading import explained
    from speechbrain_triton.streaming.recognizer import (
        recognize_stream,
        recognize_whole,
        warm_up,
    )

    samples, rate = read_sound(args.file)
    asr = _load(args)
    with explained(args.model):
        config = _config(args, asr.hparams.streaming_config)
        warm_up(asr, config)
        kernels = asr.hparams.kernels.lines()
    samples = _resample(args.file, samples, rate, asr.hparams.sample_rate)
    _check_length(args.file, samples, asr)
    if args.whole:
        chunks = [recognize_whole(asr, samples, config)]
    else:
        chunks = recognize_stream(asr, samples, config)
    done = []
    for chunk in chunks:
        done.append(chunk)
        if not args.json:
            print(chunk.text, end="", flush=True)
    seconds = len(samples) / asr.hparams.sample_rate
    document = _document(args, asr, config, seconds, done)
    document["kernels"] = kernels
    if args.json:
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        print(flush=True)
        print(_summary(document), file=sys.stderr)
    return 0


def _load(args):
    from speechbrain_triton.runs.settings import read_hyperparameters
    from speechbrain_triton.streaming.export import load_draft, write_folder
    from speechbrain_triton.streaming.loading import load_folder

    _check_device(args.device)
    path = args.model / "hyperparams.yaml"
    if path.is_file() and _EXPORTED in read_hyperparameters(path):
        return load_folder(args.model, args.device, args.backend)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(args.model, folder)
        return load_draft(args.model, folder, args.device, args.backend)


def _check_device(device):
    import torch

    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"--device={device} cannot be used: {reason}"
        ) from error


def _config(args, default):
    from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

    chunk_size, left = default.chunk_size, default.left_context_size
    if args.chunk_size is not None:
        chunk_size = args.chunk_size
    if args.left_context is not None:
        left = None if args.left_context == "full" else args.left_context
    return DynChunkTrainConfig(chunk_size, left)


def _resample(path, samples, rate, wanted):
    from speechbrain_triton.streaming.audio import resample

    try:
        return resample(samples, rate, wanted)
    except ValueError as error:
        raise ValueError(f"'{path}': {error}") from error


def _check_length(path, samples, asr):
    ms = 1000 / asr.hparams.sample_rate
    least = asr.hparams.fea_streaming_extractor.stride
    if len(samples) < least:
        raise ValueError(
            f"'{path}' holds {len(samples) * ms:.0f} ms of sound, and the "
            f"model needs {least * ms:.0f} ms, an encoder frame."
        )


def _document(args, asr, config, seconds, chunks):
    busy = sum(chunk.latency for chunk in chunks)
    left = config.left_context_size
    stride = asr.hparams.fea_streaming_extractor.stride
    return {
        "file": str(args.file),
        "text": "".join(chunk.text for chunk in chunks),
        "tokens": [token for chunk in chunks for token in chunk.tokens],
        "mode": "whole" if args.whole else "streaming",
        "chunk_size": config.chunk_size,
        "left_context": "full" if left is None else left,
        "chunk_seconds": config.chunk_size * stride / asr.hparams.sample_rate,
        "seconds": seconds,
        "real_time_factor": busy / seconds,
        "latency_ms": None if args.whole else _latency(chunks),
        "chunks": [
            {"end": chunk.end, "latency": chunk.latency, "text": chunk.text}
            for chunk in chunks
        ],
        "device": str(asr.device),
    }


def _latency(chunks):
    times = sorted(1000 * chunk.latency for chunk in chunks)
    # The smallest time that 95 % of the chunks do not exceed.
    p95 = times[-(-95 * len(times) // 100) - 1]
    return {"median": statistics.median(times), "p95": p95}


def _summary(document):
    line = (
        f"{document['seconds']:.1f} s of sound: real-time factor "
        f"{document['real_time_factor']:.3f}"
    )
    if document["latency_ms"] is None:
        return f"{line}, decoded at once"
    return (
        f"{line}; {len(document['chunks'])} chunks of "
        f"{1000 * document['chunk_seconds']:.0f} ms: median latency "
        f"{document['latency_ms']['median']:.1f} ms, 95 % within "
        f"{document['latency_ms']['p95']:.1f} ms"
    )


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a whole number of at least 1"
        )
    return int(text)


def _left_context(text):
    if text == "full":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"'{text}' is neither a whole number of at least 0 nor 'full'"
        )
    return int(text)
