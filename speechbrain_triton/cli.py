"""The command ``speechbrain-triton``."""

import argparse
import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

import speechbrain_triton
from speechbrain_triton.interrupts import interruptible
from speechbrain_triton.text import printable

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
    _prepare_streams()
    try:
        with interruptible():
            args = _build_parser(chosen).parse_args(argv)
            code = args.run(args)
            sys.stdout.flush()
            return code
    except SystemExit as request:
        # argparse leaves this way; so does rich when its reader is gone.
        return request.code
    except KeyboardInterrupt:
        _say(f"{title}: interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        return _BROKEN_PIPE
    except (ValueError, OSError) as error:
        if "--traceback" in argv:
            _say(traceback.format_exc())
        _say(f"{title}: error: {_sentence(error)}")
        return _USER_ERROR
    finally:
        _settle_streams()


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


def _prepare_streams():
    """Lets any file name be printed, whatever the terminal's encoding."""
    for name in ("stdout", "stderr"):
        # Closed by the shell's >&-.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _settle_streams():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Else the interpreter's own flush at exit complains once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(text):
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def _sentence(error):
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}."
        if error.filename is not None:
            text = f"'{error.filename}': {text}"
    else:
        text = " ".join(str(error).splitlines()) or type(error).__name__
    # A file's name or content may hold what a terminal would obey.
    return printable(text)
