"""Starting the worker programs of these tests, and ending them for certain."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
# Free ports are torchrun's to find: tests may run side by side.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
# For torchrun to end its workers before it is ended itself.
GRACE = 35


def run(*arguments, timeout, **environment):
    """Run a Python program, which must end well; returns what it printed.

    Arguments
    ---------
    *arguments : str or Path
        The interpreter's.
    timeout : float
        Seconds.
    **environment : str or None
        Variables to set, or to leave out, beside those of this process.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={k: v for k, v in variables.items() if v is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        output = f"{_end(process)}\nstill running after {timeout} s"
    except BaseException:
        _end(process)
        raise
    assert process.returncode == 0, output
    return output


def run_ranks(*arguments, ranks=2, timeout, **environment):
    """The same under torchrun, as SpeechBrain's users start a training."""
    launcher = (*TORCHRUN, f"--nproc_per_node={ranks}")
    return run(*launcher, *arguments, timeout=timeout, **environment)


def _end(process):
    """End a process with all that it started; what it had printed."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=GRACE)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]
