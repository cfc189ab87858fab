"""The command ``speechbrain-triton compare``."""

import argparse
import sys
from pathlib import Path

# Aligning the characters of this many cells takes about a second.
_LONG_WORK = 5_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``compare``.

    Arguments
    ---------
    parser : argparse.ArgumentParser
        The command's parser.
    """
    parser.epilog = (
        "Reads wer_*.txt and, where present, hyperparams.yaml, train_log.txt, "
        "log.txt and env.log, and executes nothing. The keys of the JSON "
        "document: help(speechbrain_triton.runs.document)."
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
        If the runs cannot be compared.
    OSError
        If a run folder is not there or the output file cannot be written.
    """
    from rich.console import Console

    from speechbrain_triton.runs import compare_runs, read_run
    from speechbrain_triton.runs.document import comparison_to_json
    from speechbrain_triton.runs.files import write_atomically
    from speechbrain_triton.runs.report import print_comparison

    comparison = compare_runs(
        [read_run(path) for path in args.runs],
        args.group_by,
        test_sets=args.test_set,
        track=_show_progress,
    )
    document = comparison_to_json(comparison)
    if args.json:
        sys.stdout.write(document)
    else:
        # Names of folders are no markup: "[red]" is a folder like any other.
        console = Console(markup=False, emoji=False, highlight=False)
        print_comparison(comparison, console)
    if args.output:
        write_atomically(args.output, document)
    return 0


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
