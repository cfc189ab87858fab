"""A finished run as a folder that SpeechBrain's StreamingASR loads."""

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

from speechbrain_triton.backend import triton_obstacle
from speechbrain_triton.runs.files import RunError
from speechbrain_triton.runs.settings import Scalar, read_hyperparameters
from speechbrain_triton.streaming.hyperparams import inference_hyperparameters
from speechbrain_triton.streaming.readme import write_readme

_FLAGS = ("conv_backend", "frontend_backend", "ffn_backend")


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
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(
            f"'{folder}' is there already; give a new or an empty folder."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent
    ) as draft:
        checkpoints = write_folder(run, draft)
        write_readme(Path(draft), folder.name, load_folder(draft, "cpu"))
        folder.mkdir(exist_ok=True)
        # Whoever sees hyperparams.yaml finds the other files too.
        for path in sorted(Path(draft).iterdir(), key=_is_hyperparams):
            os.replace(path, folder / path.name)
    names = tuple(checkpoint.path.name for checkpoint in checkpoints)
    return Export(folder, names, float(checkpoints[0].meta["WER"]))


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
        raise FileNotFoundError(f"The run folder '{run}' does not exist.")
    if not (run / "hyperparams.yaml").is_file():
        raise RunError(
            f"'{run}' has no hyperparams.yaml: it is neither the output_folder "
            "of a training nor an exported folder."
        )
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


def load_folder(
    folder: str | os.PathLike,
    device: str | None = None,
    backend: str | None = None,
) -> StreamingASR:
    """Load a folder of :func:`export_run`.

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
        If the folder's parameters do not fit its ``hyperparams.yaml``.
    """
    folder = Path(folder).absolute()
    settings = read_hyperparameters(folder / "hyperparams.yaml")
    flags = {name: backend for name in _FLAGS if name in settings}
    try:
        asr = StreamingASR.from_hparams(
            source=str(folder),
            overrides=flags if backend else {},
            run_opts={"device": device} if device else None,
        )
    except (RuntimeError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"'{folder}' cannot be loaded: {reason}") from error
    _check_backends(asr)
    _check_parameters(asr, folder / "model.ckpt")
    return asr


def _is_hyperparams(path: Path) -> bool:
    return path.name == "hyperparams.yaml"


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
    # Only the names are needed.
    state = torch.load(path, map_location="meta", weights_only=True)
    different = state.keys() ^ asr.hparams.model.state_dict().keys()
    if different:
        raise RunError(
            f"'{path}' does not fit the hyperparams.yaml beside it: only one "
            f"of them has {', '.join(sorted(different)[:3])}."
        )


def _save_folder(run: Path, settings: dict[str, Scalar]) -> Path:
    """The run's checkpoints, where they are now."""
    recorded = Path(str(settings.get("save_folder", run / "save")))
    # A run that was moved takes its checkpoints along.
    beside = run / recorded.name
    return beside if any(beside.glob("CKPT*")) else recorded


def _best_checkpoints(
    run: Path, save: Path, settings: dict[str, Scalar]
) -> list[Checkpoint]:
    # The constructor makes the folder.
    found = []
    if save.is_dir():
        found = Checkpointer(save).find_checkpoints(
            min_key="WER",
            max_num_checkpoints=settings.get("avg_checkpoints", 1),
        )
    if not found:
        raise RunError(
            f"'{run}' has no checkpoint of a validated epoch: there is none "
            f"in '{save}'."
        )
    for name in ("model", "normalize"):
        for checkpoint in found:
            if name not in checkpoint.paramfiles:
                raise RunError(f"'{checkpoint.path}' has no {name}.ckpt.")
    return found


def _tokenizer_file(save: Path, settings: dict[str, Scalar]) -> Path:
    kind = settings["token_type"]
    if kind in ("char", "word"):
        path = save / f"{kind}_labels.txt"
    else:
        path = save / f"{settings['output_neurons']}_{kind}.model"
    if not path.is_file():
        raise RunError(f"The tokenizer '{path}' is missing.")
    return path


def _write_model(checkpoints: list[Checkpoint], path: Path) -> None:
    if len(checkpoints) == 1:
        shutil.copyfile(checkpoints[0].paramfiles["model"], path)
        return
    average = average_checkpoints(checkpoints, recoverable_name="model")
    torch.save(average, path)
