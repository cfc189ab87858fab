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

import compile_recorded as recorded
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from speechbrain_triton.ops.bias_relu import kernels as relu_kernels
from speechbrain_triton.ops.bias_relu import launch as relu_launch
from speechbrain_triton.ops.conv_block import kernels as block_kernels
from speechbrain_triton.ops.conv_block import launch as block_launch
from speechbrain_triton.ops.conv_stem import kernels as stem_kernels
from speechbrain_triton.ops.conv_stem import launch as stem_launch
from speechbrain_triton.ops.conv_stem import patches
from speechbrain_triton.ops.depthwise_conv1d import kernels, launch
from speechbrain_triton.ops.depthwise_conv2d import kernels as kernels_2d
from speechbrain_triton.ops.depthwise_conv2d import launch as launch_2d
from speechbrain_triton.ops.depthwise_conv2d.geometry import geometry_of
from speechbrain_triton.ops.layer_norm import kernels as norm_kernels
from speechbrain_triton.ops.layer_norm import launch as norm_launch
from speechbrain_triton.ops.reduction import sum_partials_kernel
from speechbrain_triton.ops.reflection_pad2d import kernels as pad_kernels
from speechbrain_triton.ops.reflection_pad2d import launch as pad_launch
from speechbrain_triton.ops.transducer_joint_loss import (
    kernels as joint_kernels,
)
from speechbrain_triton.ops.transducer_joint_loss import (
    launch as joint_launch,
)
from speechbrain_triton.ops.transducer_joint_loss import slices
from speechbrain_triton.ops.transducer_loss import kernels as loss_kernels
from speechbrain_triton.ops.transducer_loss import launch as loss_launch
from speechbrain_triton.ops.transducer_loss.lattice import paths_kernel

WIDTH = 512
PARAMETERS = ("weight_ptr", "bias_ptr", "depthwise_ptr")
FLOATS = (
    "partial_ptr",
    "total_ptr",
    "grad_ptr",
    "dpatch_ptr",
    "normaliser_ptr",
    "blank_ptr",
    "label_ptr",
    "odds_ptr",
    "edge_ptr",
    "cost_ptr",
    "dcost_ptr",
    "dencoder_ptr",
    "dpredictor_ptr",
    "sums_ptr",
    "factor_ptr",
)
INTEGERS = ("lengths_ptr", "targets_ptr", "frames_ptr", "labels_ptr")
NUMBERS = ("eps", "label_weight", "clamp")
Simple = int | float | str | None
TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
BINARY = {"cuda": "cubin", "hip": "hsaco"}


def jobs(long):
    """(kernel, constants, warps, dtype of x, dtype of weight) to compile.

    A sixth entry may limit the registers.

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
    for activation in ("none", "gelu", "relu", "leaky_relu"):
        yield from norm(activation, "bf16")
    yield reduction_of_sums()
    for dtype in ("bf16", "fp16", "fp32"):
        yield from stem(3, dtype)
        yield from bias_relu(dtype)
        yield from reflection(dtype)
    yield from stem(5, "bf16")
    yield from conv_2d(long)
    yield from transducer_loss(long)
    yield from transducer_joint(long)
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


def stem(K, dtype):
    """The stem's kernels as their launchers start them."""
    torch_dtype = getattr(torch, TORCH[dtype])
    shape = stem_launch.shape_of(100, 80, K, 2, "same")
    block, rows = stem_launch.tile(WIDTH, torch_dtype)
    taps = stem_launch.taps_at_once(K, torch_dtype)
    constants = dict(
        zip(("K", "STRIDE", "PAD_T", "PAD_F"), shape.constants, strict=True),
        C=WIDTH,
        LOST=0,
        WIDTH=shape.width,
        BLOCK_C=block,
        BLOCK_M=rows,
        TAPS=taps,
        HAS_BIAS=True,
        HAS_DEPTHWISE_BIAS=True,
        HAS_LENGTHS=True,
        UPCAST=False,
        DTYPE=getattr(tl, TORCH[dtype]),
    )
    warps = stem_launch.NUM_WARPS
    for kernel, registers in (
        (stem_kernels.stem_kernel, stem_launch.STEM_REGISTERS),
        (stem_kernels.stem_sums_kernel, stem_launch.SUMS_REGISTERS),
        (stem_kernels.patch_grad_kernel, None),
    ):
        limit = registers if taps == stem_launch.MAX_TAPS else None
        yield kernel, constants, warps, dtype, "fp32", limit
    for kernel, more in (
        (patches.patch_kernel, {"BLOCK_M": stem_launch.PATCH_ROWS}),
        (
            stem_kernels.stem_parameters_kernel,
            {
                "BLOCK_P": stem_launch.partials_at_once(K),
                "BLOCK_C": stem_launch.SUM_CHANNELS,
            },
        ),
        (patches.fold_kernel, {"BLOCK_M": stem_launch.FOLD_ROWS}),
    ):
        yield kernel, constants | more, warps, dtype, "fp32"


def bias_relu(dtype):
    constants = dict(
        C=WIDTH,
        ROWS=relu_launch.ROWS,
        BLOCK_C=relu_launch.MAX_BLOCK,
        HAS_LENGTHS=True,
        COLUMN=WIDTH,
        SUMS=2 * WIDTH,
    )
    for kernel in (
        relu_kernels.bias_relu_kernel,
        relu_kernels.bias_relu_grad_kernel,
    ):
        yield kernel, constants, relu_launch.NUM_WARPS, dtype, "fp32"


def reflection(dtype):
    """Behind the first layer of a front end, and before it."""
    for C, F in ((64, 40), (1, 80)):
        _, tile = pad_launch._split(F, C)
        names = "C", "BLOCK_F", "BLOCK_C"
        constants = dict(zip(names, tile, strict=True), PAD_T=1, PAD_F=1)
        for kernel in (
            pad_kernels.reflect_kernel,
            pad_kernels.reflect_grad_kernel,
        ):
            yield kernel, constants, pad_launch.NUM_WARPS, dtype, None


def conv_2d(long):
    """As a front end calls it, and with what takes the most registers."""
    for dtype in ("bf16", "fp16", "fp32"):
        for relu in ("before", "after") if dtype != "fp16" else ("before",):
            yield from conv_2d_pair((3, 3), (2, 2), relu, dtype)
    if long:
        for kernel, stride in (((5, 5), (2, 2)), ((5, 5), (1, 1))):
            yield from conv_2d_pair(kernel, stride, "before", "bf16")
            yield from conv_2d_pair(kernel, stride, "after", "fp32")
    yield from conv_2d_pair((3, 3), (1, 1), None, "bf16")


def conv_2d_pair(kernel, stride, relu, dtype):
    """The kernels of both passes, with everything that they may have."""
    geometry = geometry_of(kernel, stride, "causal")
    axes = dict(
        zip(
            ("K_T", "K_F", "STRIDE_T", "STRIDE_F", "PAD_T", "PAD_F"),
            geometry.constants,
            strict=True,
        )
    )
    for pass_, config in (
        (kernels_2d.depthwise_conv2d_kernel, launch_2d.FORWARD),
        (kernels_2d.depthwise_conv2d_grad_kernel, launch_2d.BACKWARD),
    ):
        backward = config is launch_2d.BACKWARD
        tile = launch_2d.tile_of(WIDTH, config, geometry, backward)
        constants = dict(
            **axes,
            C=WIDTH,
            ROWS=tile.rows,
            BLOCK_C=tile.channels,
            PACK=1 if dtype == "fp32" else launch_2d.most_packed(tile, config),
            RELU=relu,
            HAS_BIAS=True,
            HAS_INPUT_BIAS=True,
            HAS_LENGTHS=True,
            INPUT_GRAD=True,
            WEIGHT_GRAD=True,
            COLUMN=WIDTH,
            SUMS=(geometry.taps + 3) * WIDTH,
        )
        if backward and relu != "after":
            constants["y_ptr"] = None
        yield pass_, constants, config.warps, dtype, "fp32"


def transducer_loss(long):
    """Rows of a recipe's vocabulary, of characters, and longer than a tile."""
    vocabularies = ((1000, "bf16"), (29, "fp16"), (5000, "fp32"))
    for V, dtype in vocabularies if long else vocabularies[:1]:
        rows, block, warps = loss_launch.row_tile(V)
        tile = dict(V=V, BLANK=0, ROWS=rows, BLOCK_V=block, CLAMP=True)
        yield loss_kernels.log_probs_kernel, tile, warps, dtype, None
        yield loss_kernels.logits_grad_kernel, tile, warps, dtype, None
    for U1 in (57, 128, 3000) if long else (57, 3000):
        lanes = loss_launch.lanes_of(U1)
        constants = dict(
            LANES=lanes,
            AHEAD=loss_launch.diagonals_ahead(lanes),
            MANY=U1 > lanes,
            BACK=True,
        )
        if U1 <= lanes:
            constants["edge_ptr"] = None
        warps = loss_launch.path_warps(lanes)
        yield paths_kernel, constants, warps, None, "fp32"


def transducer_joint(long):
    """Slices of a recipe's joint, and of one with characters."""
    sizes = ((1000, 640, "bf16", "gelu"), (29, 320, "fp16", "tanh"))
    for V, J, dtype, nonlinearity in sizes if long else sizes[:1]:
        joint = dict(J=J, NONLINEARITY=nonlinearity)
        yield (
            joint_kernels.joint_kernel,
            joint
            | dict(
                FRAMES=joint_launch.JOINT_FRAMES,
                CELLS=joint_launch.JOINT_CELLS,
                BLOCK_J=joint_launch.MAX_JOINT_BLOCK,
            ),
            *(1, dtype, None),
        )
        joint["FRAMES"] = slices.TILE_FRAMES
        grad = joint | dict(BLOCK_J=joint_launch.MAX_GRAD_BLOCK)
        yield joint_kernels.joint_grad_kernel, grad, 1, dtype, None
        sums = joint | dict(
            BLOCK_TILES=joint_launch.BLOCK_TILES,
            BLOCK_J=joint_launch.SUMS_BLOCK,
        )
        yield joint_kernels.predictor_grad_kernel, sums, 1, None, "fp32"
        rows, block, warps = loss_launch.row_tile(V)
        tile = dict(V=V, BLANK=0, ROWS=rows, BLOCK_V=block)
        kernel = joint_kernels.packed_log_probs_kernel
        yield kernel, tile, warps, dtype, None
        kernel = joint_kernels.packed_logits_grad_kernel
        yield kernel, tile | dict(CLAMP=True, SUMS=True), warps, dtype, None


def compile_one(
    target, kernel, constants, num_warps, dtype, weight_dtype, registers=None
):
    names = kernel.arg_names
    pointers = dict.fromkeys(
        (name for name in names if name.endswith("_ptr")), f"*{dtype}"
    )
    pointers |= dict.fromkeys(
        (name for name in names if name.endswith(PARAMETERS)),
        f"*{weight_dtype}",
    )
    pointers |= dict.fromkeys(
        (name for name in names if name in FLOATS), "*fp32"
    )
    pointers |= dict.fromkeys(
        (name for name in names if name in INTEGERS), "*i64"
    )
    if "segments_ptr" in names:
        pointers["segments_ptr"] = "*i32"
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
        return "fp32" if name in NUMBERS else pointers.get(name, "i32")

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
    options = {"num_warps": num_warps}
    if registers is not None and target.backend == "cuda":
        options["maxnreg"] = registers
    compiled = triton.compile(source, target=target, options=options)
    row = row_of(target, kernel, compiled, constants)
    return row | {
        "dtype": dtype or weight_dtype,
        "limited": registers is not None,
    }


def recorded_rows(target, launches):
    for kernel, tensors, *others in launches:
        compiled, constants = recorded.compile_launch(
            target, kernel, tensors, *others
        )
        row = row_of(target, kernel, compiled, constants)
        row |= {"dtype": recorded.NAMES[tensors[0].dtype], "limited": False}
        if kernel.is_gluon():
            cubin = compiled.asm["cubin"]
            row["products"] = recorded.warpgroup_products(cubin)
        yield row


def row_of(target, kernel, compiled, constants):
    """What there is to say of any kernel."""
    binary = compiled.asm[BINARY[target.backend]]
    row = {
        "kernel": kernel.fn.__name__,
        "constants": {
            name: value if isinstance(value, Simple) else str(value)
            for name, value in constants.items()
        },
        "bytes": len(binary),
        "elf": binary[:4] == b"\x7fELF",
        "shared": compiled.metadata.shared,
        "specialized": [
            parameter.name
            for parameter in kernel.params
            if not parameter.is_constexpr
            and not parameter.do_not_specialize
            and not parameter.name.endswith(("_ptr", "_desc"))
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
    launches = [*recorded.plain_launches()]
    if arch == 90:
        launches += recorded.hopper_launches()
    for row in recorded_rows(target, launches):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
