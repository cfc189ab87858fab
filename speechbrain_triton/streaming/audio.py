"""Sound files as one channel at a model's sample rate."""

import math
import os
import re
from pathlib import Path

import numpy as np
import soundfile
import torch

# In Hz; nobody speaks below it, and sound of 1 Hz would become 16000 times as
# long.
_LOWEST_RATE = 1000
_MOST_PHASES = 20_000_000
# 4 GiB of float32: 18 hours of one channel at 16 kHz.
_MOST_SAMPLES = 2**30
# As libsndfile says, which then takes what is there for the whole.
_SHORT = re.compile(r"^ *(?:data|SSND|Data Size) *: (\d+) \(should be ", re.M)
# In bytes: who writes to a pipe announces about 2 or 4 GiB.
_UNKNOWN_SIZE = 2**31 - 2**16


def read_sound(path: str | os.PathLike) -> tuple[torch.Tensor, int]:
    """Read a sound file that libsndfile knows: WAV, FLAC, OGG, MP3 and more.

    Arguments
    ---------
    path : path
        The file. Its channels are averaged.

    Returns
    -------
    samples : torch.Tensor
        (n,), float32, full scale at 1.
    sample_rate : int
        Samples a second.

    Raises
    ------
    OSError
        If there is no such file.
    ValueError
        If it is broken, cut off or too long, holds no sound, or samples that
        are no numbers.

    Example
    -------
    >>> path = getfixture("tmp_path") / "silence.wav"
    >>> soundfile.write(path, np.zeros((800, 2)), 8000)
    >>> samples, rate = read_sound(path)
    >>> samples.shape, rate
    (torch.Size([800]), 8000)
    """
    path = Path(path)
    # libsndfile has one message for all that cannot be opened.
    if not path.is_file():
        kind = "is no file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"The sound file '{path}' {kind}.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"The sound file '{path}' may not be read.")
    try:
        # Bytes: soundfile encodes a name as strict UTF-8.
        with soundfile.SoundFile(os.fsencode(path)) as file:
            if file.frames * file.channels > _MOST_SAMPLES:
                raise ValueError(
                    f"'{path}' announces {file.frames:,} samples of "
                    f"{file.channels} channels; at most {_MOST_SAMPLES:,} "
                    "samples are read."
                )
            sound = file.read(dtype="float32", always_2d=True)
            cut_off = len(sound) < file.frames or _is_short(file.extra_info)
            rate = file.samplerate
    except soundfile.LibsndfileError as error:
        raise ValueError(
            f"'{path}' is not a sound file that can be read, such as WAV, "
            f"FLAC, OGG or MP3: {error.error_string.rstrip('.')}."
        ) from error
    if cut_off:
        raise ValueError(
            f"'{path}' is cut off: it holds less sound than it announces."
        )
    if not len(sound):
        raise ValueError(f"'{path}' holds no sound.")
    if not np.isfinite(sound).all():
        raise ValueError(f"'{path}' has samples that are not finite numbers.")
    return torch.from_numpy(sound).mean(1), rate


def resample(samples: torch.Tensor, rate: int, wanted: int) -> torch.Tensor:
    """Change the sample rate, with torchaudio where it has to change.

    Arguments
    ---------
    samples : torch.Tensor
        (n,), float.
    rate : int
        Samples a second that there are.
    wanted : int
        Samples a second that there should be.

    Returns
    -------
    torch.Tensor
        (about n * wanted / rate,).

    Raises
    ------
    ValueError
        If the rates fit together badly, or torchaudio is needed and cannot be
        imported.

    Example
    -------
    >>> resample(torch.zeros(800), 8000, 16000).shape
    torch.Size([1600])
    """
    if rate == wanted:
        return samples
    # torchaudio keeps a filter for each phase, of more than as many samples as
    # the other rate has, both without their common divisor.
    phases = rate * wanted // math.gcd(rate, wanted) ** 2
    if rate < _LOWEST_RATE or phases > _MOST_PHASES:
        raise ValueError(
            f"the sound has {rate} samples a second, which cannot be made "
            f"{wanted}; usual rates such as 8000, 16000, 44100 or 48000 can."
        )
    try:
        from torchaudio import functional
    except (ImportError, OSError) as error:
        raise ValueError(
            f"the sound has {rate} samples a second and the model needs "
            f"{wanted}; resampling needs torchaudio, which cannot be imported."
        ) from error
    return functional.resample(samples, rate, wanted)


def _is_short(log: str) -> bool:
    announced = _SHORT.search(log)
    return bool(announced) and int(announced[1]) < _UNKNOWN_SIZE
