"""Reading a finished SpeechBrain run folder."""

import fnmatch
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from speechbrain_triton.files import RunError
from speechbrain_triton.runs.settings import Scalar, read_hyperparameters
from speechbrain_triton.runs.training_log import (
    Curve,
    Training,
    learning_curves,
    parse_number,
    read_log,
    read_step_losses,
    summarize,
)
from speechbrain_triton.runs.wer import Utterance, read_wer_file

# As Brain says them: a value given on the command line never reaches
# hyperparams.yaml. The second form is that of SpeechBrain before 1.1. Without
# its \b the first would try each letter of an endless word anew.
_RUN_OPTIONS = (
    re.compile(
        r"\b(\w+) which is specified in hparams was overridden by command line "
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
# "torch==2.11.0", or "torch @ file:///wheels/torch-2.11.0-cp312-linux.whl".
_PACKAGE = re.compile(
    r"([A-Za-z0-9._-]+)(?:==(\S+)| @ \S*/[^/-]+-([^/-]+)-[^/]*\.whl\b\S*)"
)


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
    curves : mapping of str to Curve
        Names such as ``"valid WER"`` to what ``train_log.txt`` and
        ``steps.csv`` record.
    versions : mapping of str to str
        Package to version from ``env.log``, with ``python`` and ``cuda`` or
        ``rocm``.
    """

    path: Path
    evaluations: Mapping[str, Evaluation]
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def read_run(path: str | Path) -> Run:
    """Reads the folder of a finished SpeechBrain run.

    Only ``wer_*.txt`` must be there. ``hyperparams.yaml``, ``train_log.txt``,
    ``steps.csv``, ``log.txt`` and ``env.log`` are read where present; nothing
    is executed.

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
    # Path.glob finds nothing where it may not look.
    wer_files = sorted(
        path / name
        for name in os.listdir(path)
        if fnmatch.fnmatch(name, "wer_*.txt")
    )
    if not wer_files:
        raise RunError(
            f"The run folder '{path}' has no wer_*.txt: its test has not been "
            "decoded yet, or it is not the output_folder of a SpeechBrain run."
        )
    evaluations = [_read_evaluation(file) for file in wer_files]
    log = read_log(path / "train_log.txt")
    return Run(
        path=path,
        evaluations={e.name: e for e in evaluations},
        settings=_read_settings(path),
        training=summarize(log),
        curves=learning_curves(log) | read_step_losses(path / "steps.csv"),
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
                        found[2], parse_number(found[2])
                    )
    return options


def _read_versions(path):
    if not path.is_file():
        return {}
    versions = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for title, line in zip(lines, lines[1:], strict=False):
        if title in ("Python version:", "CUDA version:", "ROCm version:"):
            versions[title.split()[0].lower()] = line.split(" ")[0]
        elif (found := _PACKAGE.fullmatch(line)) and found[1] in _PACKAGES:
            versions[found[1]] = found[2] or found[3]
    return versions
