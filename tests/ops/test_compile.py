"""Every kernel compiles for five architectures, without a device.

The configs are those that the launchers use. Compiling needs a process
without the interpreter; two run at a time.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from speechbrain_triton.ops.depthwise_conv1d import kernels

WORKER = Path(__file__).with_name("compile_kernels.py")
TARGETS = [
    ("cuda", "90", "32"),
    ("cuda", "80", "32"),
    ("cuda", "100", "32"),
    ("hip", "gfx942", "64"),
    ("hip", "gfx1100", "32"),
]
KERNELS = {
    "conv_kernel",
    "weight_grad_kernel",
    "reduce_partials_kernel",
    "layer_norm_kernel",
    "layer_norm_grad_kernel",
    "glu_kernel",
    "glu_grad_kernel",
    "sum_partials_kernel",
    "bias_relu_kernel",
    "bias_relu_grad_kernel",
    "reflect_kernel",
    "reflect_grad_kernel",
    "patch_kernel",
    "stem_kernel",
    "stem_sums_kernel",
    "stem_parameters_kernel",
    "patch_grad_kernel",
    "fold_kernel",
    "depthwise_conv2d_kernel",
    "depthwise_conv2d_grad_kernel",
    "geglu_kernel",
    "geglu_grad_kernel",
    "log_probs_kernel",
    "logits_grad_kernel",
    "paths_kernel",
    "joint_kernel",
    "joint_grad_kernel",
    "predictor_grad_kernel",
    "packed_log_probs_kernel",
    "packed_logits_grad_kernel",
}
HOPPER = "geglu_linear_hopper_kernel"
# What every card has; for the stem's pipelines what cards have from compute
# capability 8.0 on; and what Hopper has.
SHARED_LIMIT = 48 * 1024
PIPELINE_LIMIT = 99 * 1024
HOPPER_LIMIT = 227 * 1024
LIMITS = {
    "stem_kernel": PIPELINE_LIMIT,
    "stem_sums_kernel": PIPELINE_LIMIT,
    HOPPER: HOPPER_LIMIT,
}


def compile_for(target, cache):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TRITON_CACHE_DIR": str(cache / "-".join(target)),
    }
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, str(WORKER), *target],
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def compilations(tmp_path_factory):
    cache = tmp_path_factory.mktemp("triton")
    with ThreadPoolExecutor(2) as pool:
        futures = {t: pool.submit(compile_for, t, cache) for t in TARGETS}
        yield futures
        for future in futures.values():
            future.cancel()


@pytest.fixture
def compiled(compilations, request):
    """The worker's rows for one target."""
    result = compilations[request.param].result()
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("compiled", TARGETS, ids="-".join, indirect=True)
def test_every_kernel_becomes_machine_code(compiled, request):
    target = request.node.callspec.params["compiled"]
    only_here = {HOPPER} if target == TARGETS[0] else set()
    assert {row["kernel"] for row in compiled} == KERNELS | only_here
    assert {row["dtype"] for row in compiled} == {"bf16", "fp16", "fp32"}
    variants = {
        (row["constants"]["TRANSPOSED"], row["constants"]["GRAIN"] > 0)
        for row in compiled
        if row["kernel"] == "conv_kernel"
    }
    assert len(variants) == 4
    for row in compiled:
        assert row["elf"] and row["bytes"] > 3000, row
        assert row["shared"] <= LIMITS.get(row["kernel"], SHARED_LIMIT), row


@pytest.mark.parametrize("compiled", [TARGETS[0]], indirect=True)
def test_nothing_spills_on_hopper(compiled):
    taps = {row["constants"].get("K") for row in compiled}
    assert taps >= {31, 33, 34}
    for row in compiled:
        # A limit may cost a few words, for a program more beside it.
        assert row["local"] == 0 and row["stack"] <= 16 * row["limited"], row
        assert row["reg"] > 0


@pytest.mark.parametrize("compiled", [TARGETS[0]], indirect=True)
def test_lengths_are_not_specialized(compiled):
    """A new T, B or chunk size must not compile a new variant."""
    for row in compiled:
        assert not row["specialized"], row


@pytest.mark.parametrize("compiled", [TARGETS[0]], indirect=True)
def test_kernel_for_hopper_uses_its_matrix_instructions(compiled):
    """In every variant: with and without z, a bias, dropout..."""
    rows = [row for row in compiled if row["kernel"] == HOPPER]
    assert all(row["products"] > 0 for row in rows), rows
    for flag in ("DROPOUT", "TANH"):
        values = {row["constants"][flag] for row in rows}
        assert values == {True, False}, flag
    for pointer in ("z_ptr", "bias_ptr"):
        absent = {pointer in row["constants"] for row in rows}
        assert absent == {True, False}, pointer


def test_every_name_among_the_lengths_is_a_kernel_argument():
    arguments = {
        name
        for kernel in vars(kernels).values()
        for name in getattr(kernel, "arg_names", ())
    }
    assert set(kernels.LENGTHS) <= arguments
