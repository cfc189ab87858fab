"""``speechbrain-triton demo``: speak a corpus, train off and on, compare."""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import speechbrain_triton

PACKAGE = Path(speechbrain_triton.__file__).parent
RECIPE = Path("SpokenNumbers", "ASR", "transducer")
BACKENDS = ("torch", "auto")
TRAINING_STEPS = 800

_RESOLVED = re.compile(r"conv=auto: .*")
_LOG_EVERY = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = (
        "An interrupted demo goes on where it was; finished steps are "
        "skipped. Two CPU cores train both models at once, in some three "
        "minutes."
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("demo"),
        help="where corpus and runs go; about 70 MB (default: ./demo)",
    )
    parser.add_argument(
        "--steps",
        type=_positive,
        default=TRAINING_STEPS,
        metavar="N",
        help=f"optimizer steps of each training (default: {TRAINING_STEPS}; "
        "fewer give a higher word error rate)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="of both trainings (default: 1)",
    )
    parser.add_argument(
        "--device",
        help="such as cpu or cuda:1 (default: the GPU, where there is one)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the comparison as one JSON document",
    )


def run(args: argparse.Namespace) -> int:
    """Make the corpus, train with the flag off and on, and compare.

    Returns
    -------
    int
        0; 1 if a training failed.

    Raises
    ------
    ValueError
        If the corpus cannot be made, or the folder holds a demo of other
        settings.
    OSError
        If a file is missing or cannot be written.
    """
    from rich.console import Console

    from speechbrain_triton.corpora import prepare_spoken_numbers

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    recipe = find_recipe(RECIPE)
    if not args.folder.name:
        raise ValueError("--folder names no folder of its own.")
    folder = args.folder.resolve()
    runs = [folder / f"conv_{backend}" for backend in BACKENDS]
    for path in runs:
        _check_settings(path, training_steps=args.steps, seed=args.seed)

    console.print(f"1. Corpus: {folder / 'corpus'}")
    try:
        prepare_spoken_numbers(folder / "corpus")
    except ImportError as error:
        raise ValueError(str(error)) from error

    console.print(f"2. Trainings: {' and '.join(map(str, runs))}")
    commands = {
        path: _command(recipe, backend, path, args)
        for backend, path in zip(BACKENDS, runs, strict=True)
        if not _is_finished(path)
    }
    for path in runs:
        if path not in commands:
            console.print(f"   {path.name}: finished before")
    if failed := _train(commands, args.steps, _jobs(args.device), console):
        log = _console_log(failed)
        tail = "\n".join(_read(log).splitlines()[-15:])
        console.print(
            f"{tail}\nThe training in {failed} failed; all of its output is "
            f"in {log}.",
            markup=False,
        )
        return 1
    if resolved := _RESOLVED.search(_read(_console_log(runs[-1]))):
        console.print(f"   {resolved[0]}", markup=False)

    console.print("3. Comparison")
    return _compare(runs, args.json)


def find_recipe(name: Path) -> Path:
    """Find a recipe beside the package in a checkout, or inside of it.

    Arguments
    ---------
    name : Path
        Such as ``AN4/ASR/transducer``.

    Returns
    -------
    Path
        The folder with ``train.py`` and ``hparams``.

    Raises
    ------
    FileNotFoundError
        If it is in neither place.

    Example
    -------
    >>> sorted(path.name for path in find_recipe(RECIPE).glob("*.py"))
    ['train.py']
    """
    places = [PACKAGE / "recipes" / name, PACKAGE.parent / "recipes" / name]
    for place in places:
        if (place / "train.py").is_file():
            return place
    raise FileNotFoundError(
        f"The recipe {name} is in neither of {places[0]} and {places[1]}; "
        "install the package again."
    )


def _command(
    recipe: Path, backend: str, path: Path, args: argparse.Namespace
) -> list[str]:
    options = {
        "data_folder": path.parent / "corpus",
        "output_folder": path,
        "conv_backend": backend,
        "frontend_backend": backend,
        "training_steps": args.steps,
        "seed": args.seed,
        "log_steps": _LOG_EVERY,
        "test_beam_search": False,
    }
    command = [
        sys.executable,
        str(recipe / "train.py"),
        str(recipe / "hparams" / "conformer_transducer.yaml"),
        "--noprogressbar",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    return command + ([f"--device={args.device}"] if args.device else [])


def _jobs(device: str | None) -> int:
    """How many trainings at a time: on a GPU each has it for itself."""
    import torch

    on_cpu = (device or "").startswith("cpu") or not (
        device or torch.accelerator.is_available()
    )
    return min(2, os.cpu_count() or 1) if on_cpu else 1


def _train(
    commands: dict[Path, list[str]], steps: int, jobs: int, console
) -> Path | None:
    """Run the trainings and show how far they are.

    Returns
    -------
    Path or None
        The folder of the training that failed; the others end with it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [
        TextColumn("   {task.fields[name]}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    ]
    waiting, running = list(commands), {}
    # A file gets lines in place of bars.
    bars = console if console.is_terminal else Console(quiet=True)
    with Progress(*columns, console=bars) as progress:
        tasks = {
            path: progress.add_task(
                "waiting", start=False, total=steps, name=path.name
            )
            for path in commands
        }
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    path = waiting.pop(0)
                    running[path] = _start(commands[path], path)
                    progress.start_task(tasks[path])
                    if not console.is_terminal:
                        console.print(f"   {path.name}: training")
                for path, process in list(running.items()):
                    code = process.poll()
                    done, state = _state(path, steps, code)
                    progress.update(
                        tasks[path], completed=done, description=state
                    )
                    if code:
                        return path
                    if code == 0:
                        progress.stop_task(tasks[path])
                        if not console.is_terminal:
                            console.print(f"   {path.name}: {state}")
                        del running[path]
                time.sleep(0.3)
        finally:
            for process in running.values():
                process.terminate()
                process.wait()
    return None


def _start(command: Sequence[str], path: Path) -> subprocess.Popen:
    path.mkdir(parents=True, exist_ok=True)
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]
    environment = {
        # Two threads speed this small model up by a third at best, and slow
        # it down tenfold when another program wants the second core.
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    with _console_log(path).open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment
        )


def _state(path: Path, steps: int, code: int | None) -> tuple[int, str]:
    """Say how many steps are done and what is going on."""
    done, loss = _last_step(path)
    if code is not None:
        return (steps, "finished") if code == 0 else (done, "failed")
    if done == 0:
        return 0, "starting"
    if done + _LOG_EVERY > steps:
        return done, "testing on unseen voices"
    return done, f"training, loss {loss:.2f}"


def _last_step(path: Path) -> tuple[int, float]:
    """Read how far a training is from the file that it appends to."""
    # The last line may be half written.
    lines = _read(path / "steps.csv").split("\n")[:-1]
    if not lines:
        return 0, 0.0
    step, loss = lines[-1].split(",")
    return int(step), float(loss)


def _check_settings(path: Path, **wanted: int) -> None:
    """Refuse to go on with, or to reuse, a run of other settings."""
    from speechbrain_triton.runs.settings import read_hyperparameters

    yaml_path = path / "hyperparams.yaml"
    if not yaml_path.is_file():
        return
    found = read_hyperparameters(yaml_path)
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ValueError(
                f"{path} holds a run with {name}={found.get(name)}, not "
                f"{value}; name another --folder."
            )


def _is_finished(path: Path) -> bool:
    return " - test loss: " in _read(path / "train_log.txt")


def _console_log(path: Path) -> Path:
    return path / "console.log"


def _read(path: Path) -> str:
    if not path.is_file():
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _compare(runs: Sequence[Path], as_json: bool) -> int:
    from speechbrain_triton.runs import command

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = ["--json"] if as_json else []
    return command.run(parser.parse_args([*map(str, runs), *options]))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a whole number of at least 1"
        )
    return int(text)
