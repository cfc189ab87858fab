"""A finished run as a folder that SpeechBrain's StreamingASR loads."""

import contextlib
import errno
import io
import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from speechbrain.inference.ASR import StreamingASR
from speechbrain.utils.checkpoints import (
    Checkpoint,
    Checkpointer,
    average_checkpoints,
)

from speechbrain_triton.files import LARGEST, RunError
from speechbrain_triton.runs.settings import (
    Scalar,
    read_hyperparameters,
    whole_number,
)
from speechbrain_triton.streaming.hyperparams import inference_hyperparameters
from speechbrain_triton.streaming.loading import (
    check_present,
    explained,
    load_folder,
    read_parameters,
)
from speechbrain_triton.streaming.readme import write_readme

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Export:
    """What :func:`export_run` wrote.

    Arguments
    ---------
    folder : Path
        The new folder.
    checkpoints : tuple of str
        The checkpoint that it holds, or those whose average it holds.
    wer : float
        Of the best of them on the validation set, in percent.
    """

    folder: Path
    checkpoints: tuple[str, ...]
    wer: float


def export_run(run: str | os.PathLike, folder: str | os.PathLike) -> Export:
    """Make a folder for streaming inference of a finished run.

    It holds ``hyperparams.yaml``, ``model.ckpt`` (the best checkpoint's
    parameters, or the average that the run was tested with),
    ``normalizer.ckpt``, ``tokenizer.ckpt`` and ``README.md``, and is written
    once a first try to load it succeeded.

    Arguments
    ---------
    run : path
        Output folder of a run of this package's transducer recipes, trained
        with ``streaming: True``.
    folder : path
        Where to write; it must not exist, or be empty.

    Returns
    -------
    Export

    Raises
    ------
    RunError
        If the run cannot be exported; the message says why.
    OSError
        If a folder is not there, or there already.
    """
    folder = Path(folder).absolute()
    there = _nearest_folder(folder)
    with tempfile.TemporaryDirectory(prefix=".export.", dir=there) as draft:
        try:
            checkpoints = write_folder(run, draft)
            asr = load_draft(run, draft, "cpu")
            write_readme(Path(draft), folder.name, asr)
            _move(Path(draft), folder)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise OSError(
                f"'{folder}' cannot be written: {error.strerror}."
            ) from error
    names = tuple(checkpoint.path.name for checkpoint in checkpoints)
    return Export(folder, names, checkpoints[0].meta["WER"])


def write_folder(
    run: str | os.PathLike, folder: str | os.PathLike
) -> list[Checkpoint]:
    """Write what :func:`load_folder` needs into an empty folder.

    Arguments
    ---------
    run : path
        As for :func:`export_run`.
    folder : path
        An empty folder.

    Returns
    -------
    list of Checkpoint
        The best checkpoint, or those whose average was written.

    Raises
    ------
    RunError
        If the run cannot be exported; the message says why.
    FileNotFoundError
        If there is no such run.
    """
    run, folder = Path(run), Path(folder)
    if not run.is_dir():
        kind = "is not a folder" if run.exists() else "does not exist"
        raise FileNotFoundError(f"The run folder '{run}' {kind}.")
    if not (run / "hyperparams.yaml").is_file():
        raise RunError(
            f"'{run}' has no hyperparams.yaml: it is neither the output_folder "
            "of a training nor an exported folder."
        )
    with explained(run / "hyperparams.yaml"):
        text = inference_hyperparameters(run)
    settings = read_hyperparameters(run / "hyperparams.yaml")
    save = _save_folder(run, settings)
    checkpoints = _best_checkpoints(run, save, settings)
    tokenizer = _tokenizer_file(save, settings)
    _write_model(checkpoints, folder / "model.ckpt")
    shutil.copyfile(
        checkpoints[0].paramfiles["normalize"], folder / "normalizer.ckpt"
    )
    shutil.copyfile(tokenizer, folder / "tokenizer.ckpt")
    (folder / "hyperparams.yaml").write_text(text, encoding="utf-8")
    return checkpoints


def load_draft(
    run: str | os.PathLike,
    draft: str | os.PathLike,
    device: str | None = None,
    backend: str | None = None,
) -> StreamingASR:
    """Load what :func:`write_folder` wrote, and name the run in what is wrong.

    Arguments
    ---------
    run : path
        The run.
    draft : path
        The folder of :func:`write_folder`.
    device : str, optional
        As for :func:`load_folder`.
    backend : str, optional
        As for :func:`load_folder`.

    Returns
    -------
    StreamingASR

    Raises
    ------
    RunError
        If the run's files do not fit each other.
    """
    try:
        return load_folder(draft, device, backend)
    except RunError as error:
        reason = str(error).replace(f"{draft}/", "")
        reason = reason.replace(f"'{draft}'", "it")
        raise RunError(f"'{run}' cannot be exported: {reason}") from error


def _nearest_folder(folder: Path) -> Path:
    """The folder or the nearest above: no new one is made for a failure."""
    if os.path.lexists(folder) and not (
        folder.is_dir() and not any(folder.iterdir())
    ):
        raise FileExistsError(
            f"'{folder}' is there already; give a new or an empty folder."
        )
    there = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    if not there.is_dir():
        raise NotADirectoryError(
            f"'{folder}' cannot be made: '{there}' is not a folder."
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(
            f"'{folder}' cannot be made: the folder '{there}' cannot be "
            "written."
        )
    return there


def _move(draft: Path, folder: Path) -> None:
    """Put the finished files in their place, or none of them."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    moved = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Whoever sees hyperparams.yaml finds the other files too.
        for path in sorted(draft.iterdir(), key=_is_hyperparams):
            os.replace(path, folder / path.name)
            moved.append(folder / path.name)
    except BaseException:
        for path in moved:
            path.unlink()
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _is_hyperparams(path: Path) -> bool:
    return path.name == "hyperparams.yaml"


def _save_folder(run: Path, settings: dict[str, Scalar]) -> Path:
    """The run's checkpoints, where they are now."""
    recorded = Path(str(settings.get("save_folder", run / "save")))
    # A run that was moved takes its checkpoints along.
    beside = run / recorded.name
    return beside if any(beside.glob("CKPT*")) else recorded


def _best_checkpoints(
    run: Path, save: Path, settings: dict[str, Scalar]
) -> list[Checkpoint]:
    number = whole_number(
        run / "hyperparams.yaml",
        {"avg_checkpoints": 1} | settings,
        "avg_checkpoints",
    )
    # The constructor makes the folder.
    found = []
    if save.is_dir():
        for path in save.glob("CKPT*/CKPT.yaml"):
            read_hyperparameters(path)
        with explained(save):
            found = Checkpointer(save).find_checkpoints(
                min_key="WER", max_num_checkpoints=number
            )
    if not found:
        raise RunError(
            f"'{run}' has no checkpoint of a validated epoch: there is none "
            f"in '{save}'."
        )
    for checkpoint in found:
        wer = checkpoint.meta["WER"]
        if not isinstance(wer, int | float) or not math.isfinite(wer):
            raise RunError(f"'{checkpoint.path}' has a WER of {wer!r}.")
        for name in ("model", "normalize"):
            if name not in checkpoint.paramfiles:
                raise RunError(f"'{checkpoint.path}' has no {name}.ckpt.")
            read_parameters(checkpoint.paramfiles[name])
    return found


def _tokenizer_file(save: Path, settings: dict[str, Scalar]) -> Path:
    kind = settings["token_type"]
    if kind in ("char", "word"):
        path = save / f"{kind}_labels.txt"
    else:
        path = save / f"{settings['output_neurons']}_{kind}.model"
    check_present(path, LARGEST)
    return path


def _write_model(checkpoints: list[Checkpoint], path: Path) -> None:
    if len(checkpoints) == 1:
        shutil.copyfile(checkpoints[0].paramfiles["model"], path)
        return
    with explained(checkpoints[0].path):
        average = average_checkpoints(checkpoints, recoverable_name="model")
    # On a full disk torch.save itself raises a RuntimeError of many lines.
    content = io.BytesIO()
    torch.save(average, content)
    path.write_bytes(content.getbuffer())
