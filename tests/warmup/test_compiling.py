"""What a warm-up compiles is what a training looks for; no GPU is needed."""

import os
import subprocess
import sys
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from speechbrain_triton.ops.launcher import Launcher
from speechbrain_triton.warmup.compiling import launched_by

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run_worker(cache, *arguments):
    """How many variants a process wanted, compiled and found."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_CACHE_DIR": str(cache),
    }
    environment.pop("TRITON_INTERPRET", None)
    process = subprocess.run(
        [sys.executable, HERE / "compile_worker.py", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert process.returncode == 0, process.stderr
    *_, last = process.stdout.splitlines()
    return tuple(int(word) for word in last.removeprefix("tally:").split())


def test_a_launch_finds_what_was_compiled_before(tmp_path):
    wanted, compiled, found = run_worker(tmp_path, "an4_full", "compile")
    assert (compiled, found) == (wanted, 0) and wanted > 25
    assert run_worker(tmp_path, "an4_full", "launch") == (wanted, 0, wanted)
    assert run_worker(tmp_path, "an4_full", "compile") == (wanted, 0, wanted)


def test_launchers_launch_again_behind_it():
    launch = Launcher.__call__
    calls = []
    with pytest.raises(CancelledError), launched_by(lambda *c: calls.append(c)):
        Launcher.__call__(1, 2)
        raise CancelledError
    assert calls == [(1, 2)]
    assert Launcher.__call__ is launch
