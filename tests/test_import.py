"""Importing the package: no GPU, no Triton, nothing patched."""

import os
import subprocess
import sys
import time

import pytest

from speechbrain_triton import cli

NO_TRITON = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *args):
        if name.partition(".")[0] != "triton":
            return self.finder.find_spec(name, *args)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
MODULE = """
import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
import speechbrain_triton as st

module = ConvolutionModule(8, 3)
x = torch.randn(2, 5, 8)
stock = module(x)
"""


def python(code, *options, interpret=None):
    """Run code in a fresh process and return what it printed."""
    environment = dict(os.environ)
    environment.pop("TRITON_INTERPRET", None)
    if interpret is not None:
        environment["TRITON_INTERPRET"] = interpret
    run = subprocess.run(
        [sys.executable, *options, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run


def test_import_touches_no_gpu_no_triton_and_no_globals():
    python(
        "import sys, torch, torch.nn as nn\n"
        "from speechbrain.lobes.models.transformer import Conformer\n"
        "loaded = 'triton' in sys.modules\n"
        "before = dict(vars(Conformer)), dict(vars(nn)), dict(vars(torch))\n"
        "import speechbrain_triton, speechbrain_triton.modules\n"
        "import speechbrain_triton.ops\n"
        "after = dict(vars(Conformer)), dict(vars(nn)), dict(vars(torch))\n"
        "assert before == after\n"
        "assert ('triton' in sys.modules) == loaded\n"
        "ours = [m for n, m in sys.modules.items()"
        " if n.startswith('speechbrain_triton')]\n"
        "assert not any(hasattr(module, 'triton') for module in ours)\n"
        "assert not torch.cuda.is_initialized()\n"
    )


# What a bare import of torch or of SpeechBrain loads is none of our doing.
TORCH, HOST = "import torch", "import speechbrain, hyperpyyaml"
PICTURES = {"matplotlib", "rich", "jinja2"}
HEAVY = PICTURES | {"triton", "speechbrain", "scipy", "numba"}


@pytest.mark.parametrize(
    "module, before, unloaded",
    [
        ("speechbrain_triton", "", HEAVY | {"torch", "numpy"}),
        ("speechbrain_triton.cli", "", HEAVY | {"torch", "numpy"}),
        ("speechbrain_triton.backend", TORCH, HEAVY),
        ("speechbrain_triton.ops", TORCH, HEAVY),
        ("speechbrain_triton.modules", HOST, PICTURES | {"triton", "numba"}),
        ("speechbrain_triton.training", HOST, PICTURES | {"triton", "numba"}),
        ("speechbrain_triton.streaming", HOST, PICTURES | {"triton", "numba"}),
        ("speechbrain_triton.runs", "", PICTURES | {"triton", "torch"}),
        ("speechbrain_triton.corpora", "", {"triton", "torch", "matplotlib"}),
    ],
)
def test_import_loads_no_more_than_it_needs(module, before, unloaded):
    run = python(
        f"import sys\n{before}\n"
        "before = set(sys.modules)\n"
        f"import {module}\n"
        "print(*set(sys.modules) - before)\n"
    )
    loaded = set(run.stdout.split())
    assert module in loaded
    assert not loaded & unloaded


@pytest.mark.parametrize("command", cli._COMMANDS)
def test_help_of_a_command_does_not_wait_for_torch(command):
    run = python(
        "import sys\n"
        "from speechbrain_triton.cli import main\n"
        f"assert main([{command!r}, '--help']) == 0\n"
        "assert not {'torch', 'speechbrain'} & set(sys.modules)\n"
    )
    assert f"speechbrain-triton {command}" in run.stdout


def test_import_makes_no_warning():
    python("import speechbrain_triton", "-W", "error")


def test_import_takes_less_than_a_second():
    # Other programs may want the processor: the least of three counts.
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        python("import speechbrain_triton")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1


def test_import_is_clean_of_deprecation_warnings_of_ours():
    python(
        "import speechbrain.lobes.models.transformer.Conformer\n"
        "import speechbrain.utils.dynamic_chunk_training, warnings\n"
        "warnings.simplefilter('error', DeprecationWarning)\n"
        "warnings.simplefilter('error', FutureWarning)\n"
        "import speechbrain_triton\n"
        "import speechbrain_triton.ops, speechbrain_triton.modules\n"
        "import torch\n"
        "m = speechbrain_triton.modules.TritonConvolutionModule(8, 3)\n"
        "m(torch.randn(1, 5, 8)).sum().backward()\n"
    )


@pytest.mark.parametrize("interpret", [None, "1"])
def test_without_triton_auto_runs_in_torch(interpret):
    python(
        NO_TRITON + MODULE + "report = st.apply_kernels(module, conv='auto')\n"
        "assert report.conv.path == 'torch', report\n"
        "assert torch.equal(module(x), stock)\n"
        "from speechbrain_triton.ops import depthwise_conv1d\n"
        "depthwise_conv1d(x, module.conv.weight, module.conv.bias)\n"
        "assert st.restore(module) == 1\n",
        interpret=interpret,
    )


def test_without_triton_the_flag_triton_names_the_need_in_one_sentence():
    run = python(
        NO_TRITON + MODULE + "st.apply_kernels(module, conv='triton')\n"
        "try:\n"
        "    module(x)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert run.stdout == (
        "ConvolutionModule: backend='triton' cannot run here because the "
        "package triton is not installed; use 'auto' or 'torch'.\n"
    )
    assert "the package triton is not installed" in run.stderr


def test_without_gpu_the_flag_triton_names_the_need_in_one_sentence():
    run = python(
        MODULE + "st.apply_kernels(module, conv='triton')\n"
        "try:\n"
        "    module(x)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert "cannot run here because the tensors are on the CPU" in run.stdout


def test_interpreter_runs_the_kernels_where_it_was_chosen_in_time():
    python(
        MODULE + "st.apply_kernels(module, conv='triton')\n"
        "torch.testing.assert_close(module(x), stock)\n"
        "from speechbrain_triton.ops.depthwise_conv1d import launch\n"
        "assert type(launch.conv_kernel).__name__ == 'InterpretedFunction'\n",
        interpret="1",
    )
