"""Compiling for one target, in a process without the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("compile_kernels.py")
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
    """The worker's rows for one target."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TRITON_CACHE_DIR": str(cache),
    }
    environment.pop("TRITON_INTERPRET", None)
    result = subprocess.run(
        [sys.executable, str(WORKER), *target],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def assert_machine_code(rows, kernels):
    """Of each kernel, in every dtype, and with little shared memory."""
    assert {row["kernel"] for row in rows} == kernels
    assert {row["dtype"] for row in rows} == {"bf16", "fp16", "fp32"}
    variants = {
        (row["constants"]["TRANSPOSED"], row["constants"]["GRAIN"] > 0)
        for row in rows
        if row["kernel"] == "conv_kernel"
    }
    assert len(variants) == 4
    for row in rows:
        assert row["elf"] and row["bytes"] > 3000, row
        assert row["shared"] <= LIMITS.get(row["kernel"], SHARED_LIMIT), row
