"""A training behind the command compiles nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm_recipes import CASES, ON_GPU, arguments

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(cache, *command):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "TRITON_CACHE_DIR": str(cache),
    }
    process = subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()[-1]


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["conformer", "fast_conformer"])
def test_a_training_finds_all_of_its_kernels(case, tmp_path):
    recipe, name, more = CASES[case]
    warmup = (
        *("-m", "speechbrain_triton", "warmup"),
        *arguments(recipe, name, **{**more, **ON_GPU}),
    )
    pattern = r"(\d+) kernels: (\d+) compiled, (\d+) found in the cache, .* s\."
    for first in (True, False):
        said = re.fullmatch(pattern, run(tmp_path, *warmup))
        wanted, compiled, found = map(int, said.groups())
        assert (compiled, found) == ((wanted, 0) if first else (0, wanted))
    trained = run(tmp_path, HERE / "launch_worker.py", case, "60")
    compiled, found = map(int, trained.removeprefix("tally:").split())
    assert compiled == 0 and 0 < found <= wanted
