"""The command ``speechbrain-triton export``."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Arguments
    ---------
    parser : argparse.ArgumentParser
        The command's parser.
    """
    parser.epilog = (
        "The new folder holds hyperparams.yaml, the best checkpoint's "
        "parameters (or the average that the run was tested with), the "
        "normalizer's statistics, the tokenizer and a README.md."
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="RUN",
        help="output folder of a run with streaming: True",
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="where to write; a new or an empty folder",
    )


def run(args: argparse.Namespace) -> int:
    """Export a run.

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
        If the run cannot be exported.
    OSError
        If a folder is not there, or there already.
    """
    from speechbrain_triton.streaming import export_run

    export = export_run(args.source, args.folder)
    what = export.checkpoints[0]
    if len(export.checkpoints) > 1:
        what = f"the average of {len(export.checkpoints)} checkpoints, best"
    print(
        f"Exported {what} (validation WER {export.wer:.2f} %) to "
        f"'{export.folder}'. Try: "
        f"speechbrain-triton transcribe '{export.folder}' FILE"
    )
    return 0
