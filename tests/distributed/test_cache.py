"""Processes that start together on one empty Triton cache."""

import pytest
import torch
from processes import HERE, run


def race(rounds, side_by_side, folder, *devices):
    printed = run(
        *(HERE / "cache_worker.py", rounds, side_by_side, folder, *devices),
        timeout=200,
        # In the interpreter nothing is compiled.
        TRITON_INTERPRET=None,
    )
    assert f"{rounds} rounds right" in printed


def test_two_processes_compile_into_one_cache(tmp_path):
    race(6, 1, tmp_path, "cpu", "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_start_on_one_cache(tmp_path):
    race(20, 5, tmp_path, "cuda:0", "cuda:1")


@pytest.mark.gpu
def test_two_processes_on_one_gpu_start_on_one_cache(tmp_path):
    race(20, 5, tmp_path, "cuda:0", "cuda:0")
