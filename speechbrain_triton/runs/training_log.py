"""What a run records of its training: ``train_log.txt`` and ``steps.csv``."""

import contextlib
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from speechbrain_triton.files import RunError, read_text

LogLine = Mapping[str, str | int | float]

_STAGES = ("train", "valid", "test")
_GROUP = re.compile(rf" - (?=(?:{'|'.join(_STAGES)}) \S)")
_ITEM = re.compile(r"(?:^|, )([^:,]+): ")
_CURVE = re.compile(r"(train|valid) \S.*")
_STEP = re.compile(r"(\d{1,15}),(\S{1,50})")
# In bytes: a line of some hundred for each epoch.
_LARGEST = 10_000_000
# Beyond it an integer is a float, and a float infinite: matplotlib cannot draw
# what numbers near the limits of their types differ by.
_LARGEST_INTEGER = 10**15
_LARGEST_FLOAT = 1e100
# The name under which the losses of steps.csv go.
STEP_LOSS = "step loss"


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
class Curve:
    """A number that was logged again and again while a run trained.

    Arguments
    ---------
    epochs : tuple of int
        The epoch of each value; empty for the losses of ``steps.csv``.
    steps : tuple of int
        The optimizer step of each value; empty if an epoch logged none.
    values : tuple of float
        May hold nan and inf.
    """

    epochs: tuple[int, ...]
    steps: tuple[int, ...]
    values: tuple[float, ...]


def read_log(path: Path) -> list[LogLine]:
    """Reads the lines that SpeechBrain's ``FileTrainLogger`` wrote.

    Arguments
    ---------
    path : Path
        ``train_log.txt``, which need not be there.

    Returns
    -------
    list of mapping
        Name to value of each line, such as ``{"epoch": 1, "train loss": 2.5}``.

    Raises
    ------
    RunError
        If the file cannot be read, or the run is unfinished.

    Example
    -------
    >>> path = Path(getfixture("tmp_path")) / "train_log.txt"
    >>> _ = path.write_text("Epoch loaded: 2 - test loss: 1.50, test WER: 5.0")
    >>> read_log(path)
    [{'Epoch loaded': 2, 'test loss': 1.5, 'test WER': 5.0}]
    """
    if not path.exists():
        return []
    text = read_text(path, _LARGEST)
    lines = list(filter(None, map(_log_items, text.splitlines())))
    # After a test, training may have gone on: then wer_*.txt are outdated.
    if not any(key.startswith("test ") for i in lines[-1:] for key in i):
        epochs = _epochs(lines)
        reached = f" after epoch {max(epochs)}" if epochs else ""
        raise RunError(
            f"The run in '{path.parent}' is unfinished: its train_log.txt ends"
            f"{reached} without a line of test results."
        )
    return lines


def summarize(lines: Sequence[LogLine]) -> Training:
    """Sums a training up.

    Arguments
    ---------
    lines : sequence of mapping
        From :func:`read_log`.

    Returns
    -------
    Training
        Of an epoch that was begun anew, the last time counts.

    Example
    -------
    >>> summarize([{"epoch": 1, "seconds": 9.5}, {"epoch": 2, "seconds": 8.5}])
    ... # doctest: +ELLIPSIS
    Training(epochs=2, seconds_per_epoch=9.0, peak_mib=None, ...)
    """
    epochs = _epochs(lines)
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


def learning_curves(lines: Sequence[LogLine]) -> dict[str, Curve]:
    """Collects what was logged of the training and validation of each epoch.

    Arguments
    ---------
    lines : sequence of mapping
        From :func:`read_log`.

    Returns
    -------
    dict
        Names such as ``"train loss"`` and ``"valid WER"`` to curves. An epoch
        without validation has no value in the latter.

    Example
    -------
    >>> learning_curves([{"epoch": 1, "steps": 71, "train loss": 2.5}])
    {'train loss': Curve(epochs=(1,), steps=(71,), values=(2.5,))}
    """
    epochs = sorted(_epochs(lines).items())
    names = dict.fromkeys(
        name for _, line in epochs for name in line if _CURVE.fullmatch(name)
    )
    curves = {}
    for name in names:
        points = [(e, line) for e, line in epochs if _is_number(line.get(name))]
        steps = _numbers((line for _, line in points), "steps")
        if points:
            curves[name] = Curve(
                epochs=tuple(epoch for epoch, _ in points),
                steps=tuple(steps) if len(steps) == len(points) else (),
                values=tuple(line[name] for _, line in points),
            )
    return curves


def read_step_losses(path: Path) -> dict[str, Curve]:
    """Reads the losses of single steps that this project's recipes can log.

    Arguments
    ---------
    path : Path
        ``steps.csv`` with a step and a loss in each line, which need not be
        there. Other lines, such as a last one half written, are passed over.

    Returns
    -------
    dict
        One curve, or none where no loss is recorded.

    Example
    -------
    >>> path = Path(getfixture("tmp_path")) / "steps.csv"
    >>> _ = path.write_text("1,9.500000\\n2,8.250000\\n3,")
    >>> read_step_losses(path)
    {'step loss': Curve(epochs=(), steps=(1, 2), values=(9.5, 8.25))}
    """
    if not path.is_file():
        return {}
    # After a resumption, steps may be there twice; the last time counts.
    losses = {}
    with open(path, encoding="utf-8", errors="replace") as lines:
        for found in filter(None, (_STEP.fullmatch(x.strip()) for x in lines)):
            if _is_number(loss := parse_number(found[2])):
                losses[int(found[1])] = loss
    if not losses:
        return {}
    steps, values = zip(*sorted(losses.items()), strict=True)
    return {STEP_LOSS: Curve(epochs=(), steps=steps, values=values)}


def parse_number(text: str) -> str | int | float:
    """The number that a text spells, else the text.

    An integer that is too large to count with is a float, and a number that
    is too large to draw is infinite.

    Example
    -------
    >>> parse_number("2"), parse_number("2e-1"), parse_number("AdamW")
    (2, 0.2, 'AdamW')
    """
    try:
        number = float(text)
    except ValueError:
        return text
    if abs(number) < _LARGEST_INTEGER:
        with contextlib.suppress(ValueError):
            return int(text)
    if abs(number) > _LARGEST_FLOAT:
        return math.copysign(math.inf, number)
    return number


def finite(values: Sequence[float]) -> list[float]:
    """The values that are neither nan nor infinite, in order.

    Example
    -------
    >>> finite([1.0, float("nan"), 2.0])
    [1.0, 2.0]
    """
    return [value for value in values if math.isfinite(value)]


def _log_items(line):
    """Takes one line of FileTrainLogger apart."""
    items = {}
    for group in _GROUP.split(line):
        parts = _ITEM.split(group.strip())[1:]
        for name, value in zip(parts[::2], parts[1::2], strict=True):
            items[name] = parse_number(value)
    return items


def _epochs(lines):
    return {i["epoch"]: i for i in lines if isinstance(i.get("epoch"), int)}


def _is_number(value):
    return isinstance(value, int | float)


def _numbers(lines, key):
    return [line[key] for line in lines if _is_number(line.get(key))]
