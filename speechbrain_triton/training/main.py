"""What every recipe's train.py does, apart from preparing its corpus."""

import fcntl
import gc
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import speechbrain as sb
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.utils.distributed import (
    ddp_barrier,
    ddp_init_group,
    if_main_process,
    run_on_main,
)
from speechbrain.utils.logger import get_logger
from speechbrain.utils.run_opts import RunOptions

from speechbrain_triton.backend import triton_obstacle
from speechbrain_triton.training.brain import TransducerBrain
from speechbrain_triton.training.data import (
    make_datasets,
    make_train_loader_options,
)
from speechbrain_triton.training.tokens import make_tokenizer

logger = get_logger(__name__)

_INTERRUPTED = 130


def run_recipe(
    prepare: Callable[[dict], None], argv: Sequence[str] | None = None
) -> int:
    """Prepare the corpus, train, and test: the body of a recipe's train.py.

    Arguments
    ---------
    prepare : callable
        Takes the hyperparameters and writes the manifests. It runs on the
        main process alone and must leave finished manifests as they are.
    argv : sequence of str, optional
        The command line after the program's name; ``sys.argv`` by default.

    Returns
    -------
    int
        The exit code: 0, 2 after a sentence on stderr about a wrong argument,
        flag or data folder, or 130 after Ctrl-C.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        return _run(prepare, argv)
    except KeyboardInterrupt:
        if if_main_process():
            _say(
                "interrupted; the same command goes on from the last "
                "checkpoint, if there is one."
            )
        return _INTERRUPTED


def _run(prepare: Callable[[dict], None], argv: list[str]) -> int:
    yaml_path, run_opts, overrides = sb.parse_arguments(argv)
    ddp_init_group(run_opts)
    try:
        overrides = _keep_run_options(yaml_path, run_opts, overrides)
        with open(yaml_path, encoding="utf-8") as file:
            hparams = load_hyperpyyaml(file, overrides)
        _check_flags(hparams)
        _check_device(hparams, run_opts)
        sb.create_experiment_directory(
            experiment_directory=hparams["output_folder"],
            hyperparams_to_save=yaml_path,
            overrides=overrides,
        )
        # The flags were read before there was a log.
        for name in ("feedforwards", "kernels"):
            if name in hparams:
                logger.info("%s: %s", name, hparams[name])
        lock = _lock(hparams["output_folder"])
        run_on_main(prepare, args=[hparams])
        tokenizer = make_tokenizer(
            hparams["token_type"],
            hparams["train_csv"],
            hparams["save_folder"],
            hparams["output_neurons"],
        )
        train_set, valid_set, test_sets = make_datasets(hparams, tokenizer)
        loader_options = make_train_loader_options(train_set, hparams)
        _check_checkpoint(hparams)
    except (ValueError, KeyError, OSError, ImportError) as error:
        # str() of a KeyError is the repr of its message.
        message = error.args[0] if isinstance(error, KeyError) else error
        _say(message)
        return 2

    brain = TransducerBrain(
        tokenizer=tokenizer,
        modules=hparams["modules"],
        opt_class=hparams["opt_class"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
    )
    # A bar would fill a file with all of its states.
    brain.noprogressbar = brain.noprogressbar or not sys.stderr.isatty()
    # SpeechBrain tells the epoch only to samplers that it made itself.
    brain.train_sampler = loader_options.get("batch_sampler")
    if not hparams["skip_training"]:
        brain.fit(
            hparams["epoch_counter"],
            train_set,
            valid_set,
            train_loader_kwargs=_keep_workers(loader_options),
            valid_loader_kwargs=_keep_workers(hparams["valid_dataloader_opts"]),
        )
    brain.test(test_sets, hparams["test_dataloader_opts"])
    if sb.utils.distributed.is_distributed_initialized():
        # The main process may still be writing: none may leave before it.
        ddp_barrier()
        # What DDP holds keeps the group's threads, which must not outlive
        # Python: one that then wants its lock ends the process by SIGABRT.
        del brain
        gc.collect()
        torch.distributed.destroy_process_group()
    lock.close()
    return 0


def _say(message: object) -> None:
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)


def _lock(output_folder: str) -> IO:
    """Keep a second process of the same rank out of the folder.

    The lock is the operating system's: it ends with the process, and the
    workers of its data loaders do not inherit it.
    """
    rank = os.environ.get("RANK", "0")
    file = open(Path(output_folder) / f".lock{rank}", "w")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        file.close()
        raise ValueError(
            f"another process is working in {output_folder}; wait for it, or "
            "choose another output_folder."
        ) from error
    return file


def _keep_workers(options: dict) -> dict:
    """Let the loader's workers live on from epoch to epoch."""
    return {**options, "persistent_workers": options["num_workers"] > 0}


def _keep_run_options(
    yaml_path: str, run_opts: RunOptions, overrides: str
) -> str:
    """Move options such as --precision into the overrides of the YAML.

    SpeechBrain takes them from the command line, and the hyperparams.yaml of
    the run goes on showing what the recipe said.
    """
    text = Path(yaml_path).read_text(encoding="utf-8")
    for name in sorted(run_opts.overridden_args):
        if re.search(rf"^{name}:", text, re.MULTILINE):
            overrides += f"\n{name}: {run_opts[name]}"
    return overrides.strip()


def _check_flags(hparams: dict) -> None:
    """Refuse what YAML reads otherwise than it looks, such as yes or 1.0."""
    switches = ("streaming", "skip_training", "test_beam_search")
    optional = ("dynamic_batching", "sort_by_duration")
    for name in (*switches, *(name for name in optional if name in hparams)):
        if not isinstance(hparams[name], bool):
            raise ValueError(
                f"{name}={hparams[name]!r} is not one of True, False."
            )
    for name in ("training_steps", "valid_every", "avg_checkpoints"):
        value = hparams[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} is not a positive integer.")


def _check_device(hparams: dict, run_opts: RunOptions) -> None:
    """Say at once what would fail, or fall back, in the first batch."""
    device = run_opts.device or sb.utils.distributed.infer_device()
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={device} cannot be used: {reason}") from error
    for name in ("conv_backend", "frontend_backend", "ffn_backend"):
        if hparams.get(name) != "triton":
            continue
        obstacle = triton_obstacle(torch.device(device))
        if obstacle is not None:
            raise ValueError(
                f"{name}=triton cannot run here because {obstacle}; use auto "
                "or torch."
            )
    for name in ("precision", "eval_precision"):
        if device.startswith("cpu") and hparams[name] != "fp32":
            raise ValueError(
                f"{name}={hparams[name]} needs a GPU, and this run is on the "
                "CPU, where the recipe runs in fp32 only: PyTorch has no "
                "low-precision LSTM there."
            )


def _check_checkpoint(hparams: dict) -> None:
    """Refuse to test random weights, which SpeechBrain would do quietly."""
    if not hparams["skip_training"]:
        return
    if hparams["checkpointer"].find_checkpoint(min_key="WER") is None:
        raise ValueError(
            f"skip_training=True, but {hparams['save_folder']} holds no "
            "checkpoint of a validated epoch; point save_folder at the "
            "folder save of a trained run."
        )
