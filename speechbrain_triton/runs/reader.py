"""Reading a finished SpeechBrain run folder."""

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from speechbrain_triton.runs.files import RunError, read_text
from speechbrain_triton.runs.settings import Scalar, read_hyperparameters
from speechbrain_triton.runs.wer import Utterance, read_wer_file

_STAGES = ("train", "valid", "test")
_GROUP = re.compile(rf" - (?=(?:{'|'.join(_STAGES)}) \S)")
_ITEM = re.compile(r"(?:^|, )([^:,]+): ")
# As Brain says them: a value given on the command line never reaches
# hyperparams.yaml. The second form is that of SpeechBrain before 1.1.
_RUN_OPTIONS = (
    re.compile(
        r"(\w+) which is specified in hparams was overridden by command line "
        r"input to: (\S+)"
    ),
    re.compile(r"Info: (\w+) arg overridden by command line input to: (\S+)"),
    re.compile(r"Using \w+ precision: `--(\w+)=(\w+)`"),
)
_CONSTANTS = {"True": True, "False": False, "None": None}
_PACKAGES = (
    "torch",
    "torchaudio",
    "triton",
    "speechbrain",
    "speechbrain-triton",
)
_PACKAGE = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")


@dataclass(frozen=True)
class Evaluation:
    """The decoded utterances of one test set.

    Arguments
    ---------
    name : str
        ``"test-clean"`` for the file ``wer_test-clean.txt``.
    path : Path
        That file.
    utterances : tuple of Utterance
        In the order of the file.
    """

    name: str
    path: Path
    utterances: tuple[Utterance, ...]


@dataclass(frozen=True)
class Training:
    """What ``train_log.txt`` says of the training; None where it says nothing.

    Arguments
    ---------
    epochs : int
        Last epoch trained.
    seconds_per_epoch : float
        Median of the ``seconds`` of the epochs: the first one may hold
        compilation, a resumed one is short.
    peak_mib : float
        Largest ``peak_mib`` of an epoch, in MiB.
    train_loss : float
        Of the last epoch.
    valid_loss : float
        Of the last epoch.
    epoch_loaded : int
        The epoch of the checkpoint that was tested.
    """

    epochs: int | None = None
    seconds_per_epoch: float | None = None
    peak_mib: float | None = None
    train_loss: float | None = None
    valid_loss: float | None = None
    epoch_loaded: int | None = None


@dataclass(frozen=True)
class Run:
    """A finished SpeechBrain run.

    Arguments
    ---------
    path : Path
        Its folder, as given.
    evaluations : mapping of str to Evaluation
        By name of the test set.
    settings : mapping of str to scalar
        Dotted name to value from ``hyperparams.yaml`` and, for run options
        given on the command line, ``log.txt``.
    training : Training
        From ``train_log.txt``.
    versions : mapping of str to str
        Package to version from ``env.log``, with ``python`` and ``cuda`` or
        ``rocm``.
    """

    path: Path
    evaluations: Mapping[str, Evaluation]
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    versions: Mapping[str, str] = field(default_factory=dict)


def read_run(path: str | Path) -> Run:
    """Reads the folder of a finished SpeechBrain run.

    Only ``wer_*.txt`` must be there. ``hyperparams.yaml``, ``train_log.txt``,
    ``log.txt`` and ``env.log`` are read where present; nothing is executed.

    Arguments
    ---------
    path : str or Path
        The run's ``output_folder``.

    Returns
    -------
    Run
        What the folder records.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    NotADirectoryError
        If it is a file.
    RunError
        If the run is unfinished, or one of its files cannot be understood.

    Example
    -------
    >>> from speechbrain.utils.metric_stats import ErrorRateStats
    >>> folder = Path(getfixture("tmp_path"))
    >>> stats = ErrorRateStats()
    >>> stats.append(["u1"], [["a", "c"]], [["a", "b"]])
    >>> with open(folder / "wer_test.txt", "w", encoding="utf-8") as file:
    ...     stats.write_stats(file)
    >>> read_run(folder).evaluations["test"].utterances[0].hypothesis
    ('a', 'c')
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"The run folder '{path}' does not exist.")
    if not path.is_dir():
        raise NotADirectoryError(
            f"'{path}' is a file; give the folder of a finished run."
        )
    wer_files = sorted(path.glob("wer_*.txt"))
    if not wer_files:
        raise RunError(
            f"The run folder '{path}' has no wer_*.txt: its test has not been "
            "decoded yet, or it is not the output_folder of a SpeechBrain run."
        )
    evaluations = [_read_evaluation(file) for file in wer_files]
    return Run(
        path=path,
        evaluations={e.name: e for e in evaluations},
        settings=_read_settings(path),
        training=_read_training(path / "train_log.txt"),
        versions=_read_versions(path / "env.log"),
    )


def _read_evaluation(path):
    name = path.stem.removeprefix("wer_")
    return Evaluation(name, path, read_wer_file(path))


def _read_settings(path):
    hyperparameters = path / "hyperparams.yaml"
    settings = {}
    if hyperparameters.exists():
        settings = read_hyperparameters(hyperparameters)
    log = path / "log.txt"
    if log.is_file():
        settings.update(_read_run_options(log))
    return settings


def _read_run_options(path):
    options = {}
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if "Beginning experiment!" in line:
                options.clear()
            for pattern in _RUN_OPTIONS:
                if found := pattern.search(line):
                    options[found[1]] = _CONSTANTS.get(
                        found[2], _number(found[2])
                    )
    return options


def _read_training(path):
    if not path.exists():
        return Training()
    lines = list(filter(None, map(_log_items, read_text(path).splitlines())))
    epochs = {i["epoch"]: i for i in lines if isinstance(i.get("epoch"), int)}
    # After a test, training may have gone on: then wer_*.txt are outdated.
    if not any(key.startswith("test ") for i in lines[-1:] for key in i):
        reached = f" after epoch {max(epochs)}" if epochs else ""
        raise RunError(
            f"The run in '{path.parent}' is unfinished: its train_log.txt ends"
            f"{reached} without a line of test results."
        )
    last = epochs[max(epochs)] if epochs else {}
    seconds = _numbers(epochs.values(), "seconds")
    return Training(
        epochs=max(epochs, default=None),
        seconds_per_epoch=statistics.median(seconds) if seconds else None,
        peak_mib=max(_numbers(epochs.values(), "peak_mib"), default=None),
        train_loss=next(iter(_numbers([last], "train loss")), None),
        valid_loss=next(iter(_numbers([last], "valid loss")), None),
        epoch_loaded=next(iter(_numbers(lines[-1:], "Epoch loaded")), None),
    )


def _log_items(line):
    """Takes one line of FileTrainLogger apart."""
    items = {}
    for group in _GROUP.split(line):
        parts = _ITEM.split(group.strip())[1:]
        for name, value in zip(parts[::2], parts[1::2], strict=True):
            items[name] = _number(value)
    return items


def _read_versions(path):
    if not path.is_file():
        return {}
    versions = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for title, line in zip(lines, lines[1:], strict=False):
        if title in ("Python version:", "CUDA version:", "ROCm version:"):
            versions[title.split()[0].lower()] = line.split(" ")[0]
        elif (found := _PACKAGE.fullmatch(line)) and found[1] in _PACKAGES:
            versions[found[1]] = found[2]
    return versions


def _number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _is_number(value):
    return isinstance(value, int | float)


def _numbers(lines, key):
    return [line[key] for line in lines if _is_number(line.get(key))]
