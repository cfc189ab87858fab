"""Settings and fixtures of every test.

Kernel tests run on the GPU where there is one and otherwise in Triton's
interpreter, which has to be chosen before anything imports Triton.
"""

import functools
import math
import os
from collections import Counter

import pytest
import torch

ON_GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
    import interpreter

    interpreter.check_accesses()
    interpreter.hasten()


def pytest_collection_modifyitems(items):
    # What takes minutes comes first: at the end, other workers would idle.
    items.sort(key=lambda item: item.path.name != "test_compile.py")
    if ON_GPU:
        return
    skip = pytest.mark.skip(reason="needs a CUDA or ROCm device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture
def device():
    """Where kernel tests put their tensors."""
    return "cuda" if ON_GPU else "cpu"


@pytest.fixture(autouse=True)
def reproducible(monkeypatch):
    """Fix the seed and keep float32 exact: SpeechBrain turns TF32 on."""
    torch.manual_seed(0)
    if ON_GPU:
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Fill fresh floating tensors with NaN: unwritten output must fail."""

    def poisoned(allocate):
        @functools.wraps(allocate)
        def wrapper(*args, **kwargs):
            out = allocate(*args, **kwargs)
            if out.is_floating_point() and out.device.type != "meta":
                with torch.no_grad():
                    out.fill_(math.nan)
            return out

        return wrapper

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(
        torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty)
    )


@pytest.fixture
def launches(monkeypatch):
    """Count kernel launches by name: a silent fallback must fail."""
    from speechbrain_triton.ops.launcher import Launcher

    launches = Counter()
    start = Launcher.__call__

    def counted(self, grid, *args):
        name = self.kernel.fn.__name__
        assert all(size > 0 for size in grid), f"{name} on grid {grid}"
        launches[name] += 1
        start(self, grid, *args)

    monkeypatch.setattr(Launcher, "__call__", counted)
    return launches
