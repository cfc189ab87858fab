"""The same bits: over repeats, and in a process that compiles everything anew.

Nothing is tuned by timing, and sums are taken in fixed orders.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from examples import example
from judging import run
from op_table import OPS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# At sizes that take several programs, whose sums are added up.
SIZES = {"cpu": (2, 21), "cuda": (16, 400)}
REPEATS = {"cpu": 1, "cuda": 10}
# Of which the interpreter has time for a process of its own.
INTERPRETED = ("conv_module", "transducer_joint_loss")
LIMIT = 300


def modes(name, device):
    every = OPS[name].modes
    return every if device == "cuda" else every[-1:]


def outcome(name, mode, device):
    """Result and gradients of an op, on the CPU."""
    case = example(name, *SIZES[device], mode)
    arguments = case.tensors(device), case.integer_tensors(device)
    results = run(case, *arguments, "triton")
    return {name: t.cpu() for name, t in results.items()}


@pytest.mark.parametrize("name", list(OPS))
def test_repeats_give_the_same_bits(name, device):
    for mode in modes(name, device):
        first = outcome(name, mode, device)
        for _ in range(REPEATS[device]):
            again = outcome(name, mode, device)
            for result, value in first.items():
                assert torch.equal(again[result], value), (mode, result)


def test_fresh_process_gives_the_same_bits(tmp_path, device, launches):
    names = INTERPRETED if device == "cpu" else list(OPS)
    found = output_of_a_process(names, device, tmp_path)
    assert found.splitlines() == list(digests(names, device))
    assert launches
    if device == "cuda":
        assert any(tmp_path.rglob("*.ttir")), "nothing was compiled"


def digests(names, device):
    """What a process makes of its ops, bit by bit."""
    for name in names:
        for mode in modes(name, device):
            digest = hashlib.sha256()
            for result in outcome(name, mode, device).values():
                flat = result.contiguous().flatten()
                digest.update(flat.view(torch.uint8).numpy().tobytes())
            yield f"{name} {mode} {digest.hexdigest()}"


def output_of_a_process(names, device, cache):
    """The same digests, by a process with an empty cache."""
    paths = (ROOT, HERE, HERE.parent, *filter(None, sys.path))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "TRITON_CACHE_DIR": str(cache),
        # Sums of PyTorch's on a CPU depend on how many share them.
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    done = subprocess.run(
        [sys.executable, __file__, device, *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    print(*digests(sys.argv[2:], sys.argv[1]), sep="\n")
