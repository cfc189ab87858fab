"""Loading an exported folder, and saying what is wrong with it."""

import contextlib
import math
import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from speechbrain.inference.ASR import StreamingASR

from speechbrain_triton.backend import triton_obstacle
from speechbrain_triton.files import LARGEST, RunError, check_file
from speechbrain_triton.runs.settings import (
    Scalar,
    read_hyperparameters,
    whole_number,
)

_FLAGS = ("conv_backend", "frontend_backend", "ffn_backend")
_LONGEST_REASON = 300


def load_folder(
    folder: str | os.PathLike,
    device: str | None = None,
    backend: str | None = None,
) -> StreamingASR:
    """Load a folder of :func:`speechbrain_triton.streaming.export_run`.

    Arguments
    ---------
    folder : path
        The exported folder.
    device : str, optional
        ``"cpu"`` or ``"cuda"``; by default what SpeechBrain takes.
    backend : str, optional
        Of all kernels: ``"auto"``, ``"triton"`` or ``"torch"``; by default
        what the folder's ``hyperparams.yaml`` says.

    Returns
    -------
    StreamingASR

    Raises
    ------
    ValueError
        If a backend is unknown, or ``"triton"`` and cannot run here.
    RunError
        If a file is missing or broken, or the folder's files do not fit its
        ``hyperparams.yaml``.
    """
    folder = Path(folder).absolute()
    settings = read_hyperparameters(folder / "hyperparams.yaml")
    _check_files(folder, settings)
    flags = {name: backend for name in _FLAGS if name in settings}
    with explained(folder):
        asr = StreamingASR.from_hparams(
            source=str(folder),
            overrides=flags if backend else {},
            run_opts={"device": device} if device else None,
        )
    _check_backends(asr)
    _check_parameters(asr, folder / "model.ckpt")
    _check_tokenizer(asr, folder / "tokenizer.ckpt")
    return asr


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Name the file or folder in whatever is raised while it is used.

    What a hyperparams.yaml names is run, and a checkpoint may hold anything:
    no list of exceptions would be complete.

    Arguments
    ---------
    path : Path
        What is used.

    Raises
    ------
    RunError
        In the place of every other exception.

    Example
    -------
    >>> with explained(Path("my_model")):
    ...     raise KeyError("CNN")
    Traceback (most recent call last):
    speechbrain_triton.files.RunError: 'my_model' cannot be loaded: \
KeyError: 'CNN'
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        reason = textwrap.shorten(reason, _LONGEST_REASON, placeholder=" ...")
        raise RunError(f"'{path}' cannot be loaded: {reason}") from error


def read_parameters(path: Path) -> Mapping:
    """Read the names and shapes of a checkpoint, and execute nothing.

    Arguments
    ---------
    path : Path
        Of ``torch.save``.

    Returns
    -------
    mapping
        Mostly of str to tensors of the device ``"meta"``.

    Raises
    ------
    RunError
        If it is no such file.
    """
    check_present(path)
    with explained(path):
        state = torch.load(path, map_location="meta", weights_only=True)
        if not isinstance(state, Mapping):
            raise TypeError(f"it holds a {type(state).__name__}, not a mapping")
    return state


def check_present(path: Path, largest: float = math.inf) -> None:
    """Refuse a file of a folder that is missing or holds nothing.

    Arguments
    ---------
    path : Path
        The file.
    largest : float
        Most bytes that it may have.

    Raises
    ------
    RunError
        If it is missing, empty, too large or not a regular file.
    """
    if not os.path.lexists(path):
        raise RunError(f"'{path}' is missing.")
    if not check_file(path, largest):
        raise RunError(f"'{path}' is empty.")


def _check_files(folder: Path, settings: Mapping[str, Scalar]) -> None:
    # SpeechBrain says neither which of them is broken nor, mostly, how.
    for name in ("model.ckpt", "normalizer.ckpt"):
        read_parameters(folder / name)
    check_present(folder / "tokenizer.ckpt", LARGEST)
    whole_number(folder / "hyperparams.yaml", settings, "sample_rate")


def _check_backends(asr: StreamingASR) -> None:
    """Say at once what would fail in the first chunk."""
    obstacle = triton_obstacle(torch.device(asr.device))
    for name in _FLAGS:
        if obstacle and getattr(asr.hparams, name, None) == "triton":
            raise ValueError(
                f"{name}=triton cannot run here because {obstacle}; use auto "
                "or torch."
            )


def _check_parameters(asr: StreamingASR, path: Path) -> None:
    """Refuse what SpeechBrain's transfer of parameters only warns of."""
    with explained(path.parent):
        state = asr.hparams.model.state_dict()
    different = read_parameters(path).keys() ^ state.keys()
    if different:
        raise RunError(
            f"'{path}' does not fit the hyperparams.yaml beside it: only one "
            f"of them has {', '.join(sorted(map(str, different))[:3])}."
        )
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise RunError(
                f"'{path}': {name} holds values that are no numbers."
            )


def _check_tokenizer(asr: StreamingASR, path: Path) -> None:
    """Refuse what a label encoder passes over."""
    with explained(path.parent):
        names, labels = len(asr.hparams.tokenizer), asr.hparams.output_neurons
        fits = 0 < names <= labels
    if not fits:
        raise RunError(
            f"'{path}' has {names} tokens, and the model beside it {labels}."
        )
