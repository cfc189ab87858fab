"""NVIDIA's compute-sanitizer finds no stray access and no race.

Without a GPU, tests/interpreter.py checks each address of each kernel.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("run_cases.py")
TOOL = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path="/usr/local/cuda/bin"
)
# What it says where the driver or the sandbox keeps it out.
REFUSED = ("Device not supported", "Unable to", "not supported")


@pytest.mark.gpu
@pytest.mark.skipif(TOOL is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_is_content(tool):
    process = subprocess.run(
        [
            *(TOOL, "--tool", tool, "--error-exitcode", "9"),
            # PyTorch's own kernels are not asked about.
            *("--kernel-name-exclude", "kernel_substring=at::"),
            *("--print-limit", "5", sys.executable, WORKER),
        ],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # Each tensor an allocation of its own, whose ends are watched.
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        },
        capture_output=True,
        text=True,
        timeout=1200,
    )
    said = process.stdout + process.stderr
    if "geglu" not in said and any(words in said for words in REFUSED):
        pytest.skip(said.strip().splitlines()[0])
    assert process.returncode == 0, said[-4000:]
    assert "ERROR SUMMARY: 0 errors" in said or "0 hazards" in said, said
