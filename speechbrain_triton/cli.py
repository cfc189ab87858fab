"""The command ``speechbrain-triton``."""

import argparse
import importlib
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence

import speechbrain_triton

PROGRAM = "speechbrain-triton"
_COMMANDS = {
    "compare": (
        "speechbrain_triton.runs.command",
        "compare the word error rates of finished training runs",
    ),
    "demo": (
        "speechbrain_triton.demo",
        "train on a built-in corpus with the kernels off and on, and compare",
    ),
    "doctor": (
        "speechbrain_triton.doctor",
        "say which kernels would run on this machine, and why",
    ),
    "warmup": (
        "speechbrain_triton.warmup.command",
        "compile the kernels of a training before it starts",
    ),
    "bench": (
        "speechbrain_triton.bench.command",
        "measure the kernels against PyTorch on this machine",
    ),
    "export": (
        "speechbrain_triton.streaming.export_command",
        "make a folder for streaming inference of a finished training run",
    ),
    "transcribe": (
        "speechbrain_triton.streaming.transcribe_command",
        "recognize a sound file chunk by chunk, words as they come",
    ),
}
_USER_ERROR = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    A command's ValueError or OSError is taken for a mistake of the user: its
    message goes to stderr as one line.

    Arguments
    ---------
    argv : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int
        Exit code: 0, what the command returns, 2 for a user's mistake, 130
        after Ctrl-C, 141 if nobody reads the output any more.

    Example
    -------
    >>> main(["compare", "no such run", "nor this"])
    2
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    title = f"{PROGRAM} {chosen}" if chosen in _COMMANDS else PROGRAM
    _tolerate_any_name()
    _end_as_by_ctrl_c()
    try:
        args = _build_parser(chosen).parse_args(argv)
        code = args.run(args)
        sys.stdout.flush()
        return code
    except SystemExit as request:
        # argparse leaves this way; so does rich when its reader is gone.
        return request.code
    except KeyboardInterrupt:
        print(f"{title}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Else the interpreter's own flush at exit complains once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (ValueError, OSError) as error:
        if "--traceback" in argv:
            traceback.print_exc()
        print(f"{title}: error: {_sentence(error)}", file=sys.stderr)
        return _USER_ERROR


def _build_parser(chosen):
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Triton kernels for Conformer transducer training in "
        "SpeechBrain.",
        allow_abbrev=False,
        epilog=f"'{PROGRAM} COMMAND --help' explains a command.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"{PROGRAM} {speechbrain_triton.__version__}",
    )
    parser.add_argument(
        "--traceback",
        action="store_true",
        help="on an error, show where in the program it arose",
    )
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    for name, (module_name, summary) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
        )
        # Only the chosen command's module: others may import torch.
        if name == chosen:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _end_as_by_ctrl_c():
    """Lets a command that is terminated end what it has started, too."""

    def interrupt(*_):
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)
        signal.signal(signal.SIGHUP, interrupt)


def _tolerate_any_name():
    """Lets any file name be printed, whatever the terminal's encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _sentence(error):
    if isinstance(error, OSError) and error.filename is not None:
        return f"'{error.filename}': {error.strerror}."
    return " ".join(str(error).splitlines()) or type(error).__name__
