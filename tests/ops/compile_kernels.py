"""Compile every kernel for one target; a report as JSON on stdout.

Run in a process of its own, since in the interpreter nothing compiles:
``python compile_kernels.py cuda 90 32``.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from speechbrain_triton.ops.conv_block import kernels as block_kernels
from speechbrain_triton.ops.conv_block import launch as block_launch
from speechbrain_triton.ops.depthwise_conv1d import kernels, launch
from speechbrain_triton.ops.layer_norm import kernels as norm_kernels
from speechbrain_triton.ops.layer_norm import launch as norm_launch
from speechbrain_triton.ops.reduction import sum_partials_kernel

WIDTH = 512
PARAMETERS = ("weight_ptr", "bias_ptr")
BINARY = {"cuda": "cubin", "hip": "hsaco"}


def jobs(long):
    """(kernel, constants, warps, dtype of x, dtype of weight) to compile.

    Everything in bfloat16 with float32 weights, as under autocast, and each
    kernel once in the other dtypes and with the taps that need their own
    config. ``long`` chooses a Conformer's 31 taps, else 5.
    """
    K = 31 if long else 5
    for grain in (0, *(launch.GRAINS if long else (1, 8))):
        yield conv(K, False, True, grain, "bf16", "fp32")
        yield conv(K, True, False, grain, "bf16", "fp32")
        yield grad(K, grain, "bf16")
    yield conv(K, False, False, 0, "bf16", "fp32", context=True)
    for bias in (False, True):
        yield reduction(K, bias, "fp32")
    for dtype in ("fp16", "fp32"):
        yield conv(5, True, False, 1, dtype, dtype)
        yield grad(5, 1, dtype)
        yield reduction(5, True, dtype)
    for dtype in ("bf16", "fp16", "fp32"):
        yield from norm("swish", dtype)
        yield from glu(dtype)
    for activation in ("none", "gelu", "relu"):
        yield from norm(activation, "bf16")
    yield reduction_of_sums()
    if long:
        for K in (launch.MAX_PACKED_TAPS, launch.MAX_PACKED_TAPS + 1):
            yield conv(K, False, True, 0, "bf16", "fp32")
            yield grad(K, 0, "bf16")


def conv(K, transposed, bias, grain, dtype, weight_dtype, context=False):
    constants = dict(
        **depthwise(K, grain, dtype),
        TRANSPOSED=transposed,
        HAS_BIAS=bias,
        HAS_CONTEXT=context,
    )
    return kernels.conv_kernel, constants, 1, dtype, weight_dtype


def grad(K, grain, dtype):
    constants = depthwise(K, grain, dtype)
    return kernels.weight_grad_kernel, constants, 1, dtype, None


def depthwise(K, grain, dtype):
    return dict(
        C=WIDTH,
        K=K,
        TILE=launch._tile(K),
        LANES=launch.LANES,
        PACK=1 if dtype == "fp32" or K > launch.MAX_PACKED_TAPS else 2,
        GRAIN=grain,
    )


def reduction(K, bias, dtype):
    constants = dict(C=WIDTH, K=K, BLOCK_P=32, BLOCK_C=32, HAS_BIAS=bias)
    return kernels.reduce_partials_kernel, constants, 4, None, dtype


def norm(activation, dtype):
    rows = norm_launch.FORWARD_TILE // WIDTH
    constants = dict(C=WIDTH, ROWS=rows, BLOCK_C=WIDTH, ACTIVATION=activation)
    yield norm_kernels.layer_norm_kernel, constants, 1, dtype, "fp32"
    constants["ROWS"] = norm_launch.BACKWARD_TILE // WIDTH
    for extra in (False, True):
        grad = dict(COLUMN=WIDTH, WIDTH=7 * WIDTH, HAS_EXTRA=extra)
        yield (
            norm_kernels.layer_norm_grad_kernel,
            constants | grad,
            4,
            dtype,
            "fp32",
        )


def glu(dtype):
    for bias in (False, True):
        constants = dict(
            C=WIDTH,
            ROWS=block_launch.ROWS,
            BLOCK_C=block_launch.MAX_BLOCK,
            COLUMN=2 * WIDTH,
            WIDTH=7 * WIDTH,
            HAS_BIAS=bias,
        )
        for kernel in (block_kernels.glu_kernel, block_kernels.glu_grad_kernel):
            yield kernel, constants, block_launch.NUM_WARPS, dtype, "fp32"


def reduction_of_sums():
    constants = dict(N=2 * WIDTH, BLOCK_P=32, BLOCK_N=32)
    return sum_partials_kernel, constants, 4, None, "fp32"


def compile_one(target, kernel, constants, num_warps, dtype, weight_dtype):
    names = kernel.arg_names
    pointers = dict.fromkeys(
        (name for name in names if name.endswith("_ptr")), f"*{dtype}"
    )
    pointers |= dict.fromkeys(
        (name for name in names if name.endswith(PARAMETERS)),
        f"*{weight_dtype}",
    )
    pointers |= dict.fromkeys(
        (name for name in names if name in ("partial_ptr", "total_ptr")),
        "*fp32",
    )
    if not constants.get("HAS_BIAS", True):
        absent = ("bias_ptr", "dbias_ptr", "partial_ptr")
        if kernel is kernels.reduce_partials_kernel:
            absent = ("dbias_ptr",)
        constants = {**constants, **dict.fromkeys(absent)}
    if not constants.get("HAS_CONTEXT", True):
        constants = {**constants, "context_ptr": None}
    if not constants.get("HAS_EXTRA", True):
        constants = {**constants, "extra_ptr": None}
    constants = {n: v for n, v in constants.items() if n in names}

    def signature(name):
        if name in constants:
            return "constexpr"
        return "fp32" if name == "eps" else pointers.get(name, "i32")

    aligned = [
        (i,)
        for i, name in enumerate(names)
        if name in pointers and name not in constants
    ]
    source = ASTSource(
        kernel,
        {name: signature(name) for name in names},
        constexprs={(names.index(n),): v for n, v in constants.items()},
        attrs={index: [["tt.divisibility", 16]] for index in aligned},
    )
    compiled = triton.compile(
        source, target=target, options={"num_warps": num_warps}
    )
    binary = compiled.asm[BINARY[target.backend]]
    row = {
        "kernel": kernel.fn.__name__,
        "constants": constants,
        "dtype": dtype or weight_dtype,
        "bytes": len(binary),
        "elf": binary[:4] == b"\x7fELF",
        "shared": compiled.metadata.shared,
        "specialized": [
            parameter.name
            for parameter in kernel.params
            if not parameter.is_constexpr
            and not parameter.do_not_specialize
            and not parameter.name.endswith("_ptr")
        ],
    }
    if target.backend == "cuda":
        row |= resource_usage(binary)
    return row


def resource_usage(cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", report))
    return {name.lower(): int(value) for name, value in found.items()}


def main():
    assert os.environ.get("TRITON_INTERPRET") != "1"
    backend, arch, warp_size = sys.argv[1:4]
    arch = int(arch) if backend == "cuda" else arch
    target = GPUTarget(backend, arch, int(warp_size))
    for job in jobs(long=arch == 90):
        print(json.dumps(compile_one(target, *job)), flush=True)


if __name__ == "__main__":
    main()
