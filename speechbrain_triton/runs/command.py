"""The command ``speechbrain-triton compare``."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

# Aligning the characters of this many cells takes about a second.
_LONG_WORK = 5_000_000
_DRAWING = ("matplotlib", "jinja2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``compare``.

    Arguments
    ---------
    parser : argparse.ArgumentParser
        The command's parser.
    """
    parser.epilog = (
        "Reads wer_*.txt and, where present, hyperparams.yaml, train_log.txt, "
        "steps.csv, log.txt and env.log, and executes nothing. Keys of the "
        "JSON document: help(speechbrain_triton.runs.document)."
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="output folder of a finished run; at least two",
    )
    parser.add_argument(
        "--group-by",
        type=_names,
        metavar="KEY[,KEY]",
        help="settings that tell the sides apart, such as conv_backend; by "
        "default all but seeds and folders (two runs are always two sides)",
    )
    parser.add_argument(
        "--test-set",
        action="append",
        metavar="NAME",
        help="compare only this test set, that of wer_NAME.txt; may be given "
        "several times",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document instead of tables",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="also write the JSON document to FILE",
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write a page to look at to FILE: rates, learning curves, "
        "speed, memory, settings, and the utterances that differ most with "
        "their words aligned",
    )
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FILE",
        help="also write the page's pictures as one picture to FILE",
    )


def run(args: argparse.Namespace) -> int:
    """Compares the runs and prints the outcome.

    Arguments
    ---------
    args : argparse.Namespace
        With the arguments of :func:`add_arguments`.

    Returns
    -------
    int
        0.

    Raises
    ------
    ValueError
        If the runs cannot be compared, or what draws pictures is missing.
    OSError
        If a run folder is not there or an output file cannot be written.
    """
    from rich.console import Console

    from speechbrain_triton.files import write_atomically
    from speechbrain_triton.runs import compare_runs, read_run
    from speechbrain_triton.runs.document import comparison_to_json
    from speechbrain_triton.runs.report import print_comparison

    _check_outputs(args)
    comparison = compare_runs(
        [read_run(path) for path in args.runs],
        args.group_by,
        test_sets=args.test_set,
        track=_show_progress,
    )
    document = comparison_to_json(comparison)
    pictures = _draw(comparison, args)
    if args.output:
        write_atomically(args.output, document.encode())
    for path, content in pictures.items():
        write_atomically(path, content)
    if args.json:
        sys.stdout.write(document)
    else:
        # Names of folders are no markup: "[red]" is a folder like any other.
        console = Console(markup=False, emoji=False, highlight=False)
        print_comparison(comparison, console)
    return 0


def _check_outputs(args):
    """Refuses what would fail only after all the work."""
    from speechbrain_triton.files import check_writable

    given = {
        f"--{name}": path
        for name in ("output", "html", "png")
        if (path := getattr(args, name))
    }
    options = {}
    for option, path in given.items():
        check_writable(path)
        other = options.setdefault(os.path.realpath(path), option)
        if other != option:
            raise ValueError(f"{other} and {option} name one file, '{path}'.")
    if args.png and args.png.suffix.lower() not in ("", ".png"):
        raise ValueError(
            f"--png writes a PNG picture, not a '{args.png.suffix}' as in "
            f"'{args.png}'."
        )
    if (args.html or args.png) and not all(map(find_spec, _DRAWING)):
        raise ValueError(
            "--html and --png need matplotlib and jinja2: pip install "
            "matplotlib jinja2."
        )


def _draw(comparison, args):
    """The contents of the files to look at."""
    contents = {}
    if args.html:
        from speechbrain_triton.runs.page import comparison_to_html

        contents[args.html] = comparison_to_html(comparison).encode()
    if args.png:
        from speechbrain_triton.runs.drawing import comparison_to_png

        contents[args.png] = comparison_to_png(comparison)
    return contents


def _names(text):
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(
            f"expected setting names separated by commas, but got '{text}'"
        )
    return names


def _show_progress(pairs):
    from rich.console import Console
    from rich.progress import track

    cells = sum(len(reference) * len(text) for reference, text in pairs)
    return track(
        pairs,
        description="Aligning characters",
        console=Console(stderr=True),
        transient=True,
        disable=cells < _LONG_WORK or not sys.stderr.isatty(),
    )
