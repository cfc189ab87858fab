"""Sound files as one channel at a model's sample rate."""

import os
from pathlib import Path

import numpy as np
import soundfile
import torch


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
        If it holds no sound, or samples that are no numbers.

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
    try:
        sound, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(
            f"'{path}' is not a sound file that can be read: "
            f"{error.error_string.rstrip('.')}."
        ) from error
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
        If torchaudio is needed and cannot be imported.

    Example
    -------
    >>> resample(torch.zeros(800), 8000, 16000).shape
    torch.Size([1600])
    """
    if rate == wanted:
        return samples
    try:
        from torchaudio import functional
    except (ImportError, OSError) as error:
        raise ValueError(
            f"the sound has {rate} samples a second and the model needs "
            f"{wanted}; resampling needs torchaudio, which cannot be imported."
        ) from error
    return functional.resample(samples, rate, wanted)
