"""Compile the gated layers' kernels as their launchers start them.

Part of ``compile_kernels.py``. Each launch is recorded on the CPU and
compiled from its own arguments, so that no config is repeated here.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from unittest import mock

import torch
import triton
from triton.compiler import ASTSource, CompiledKernel
from triton.experimental.gluon._runtime import GluonASTSource

from speechbrain_triton.ops.geglu_linear import launch
from speechbrain_triton.ops.launcher import Launcher

NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
}
M, K = 400, 512


def plain_launches() -> Iterator[tuple]:
    """(kernel, tensors, numbers, constants, num_warps), on every target."""
    for dtype in NAMES:
        for F, approximate, dropout, bias in (
            (2048, "none", 0.1, True),
            (700, "tanh", 0.0, False),
        ):
            gating = launch.Gating.of(approximate, dropout, 1)
            z, h = (torch.zeros(M, n, dtype=dtype) for n in (2 * F, F))
            yield from recorded(launch.launch_geglu, z, gating)
            for again in (None, h):
                yield from recorded(
                    launch.launch_geglu_grad, h, z, gating, bias, again
                )


def hopper_launches() -> Iterator[tuple]:
    """The same, of the kernel for Hopper alone.

    With F of whole tiles of 128 columns, and of 64 only.
    """
    for dtype, F, approximate, dropout, keep, bias in (
        (torch.bfloat16, 2048, "none", 0.0, False, torch.float32),
        (torch.bfloat16, 2048, "none", 0.1, True, torch.float32),
        (torch.bfloat16, 1408, "tanh", 0.1, True, None),
        (torch.bfloat16, 704, "none", 0.1, True, torch.float32),
        (torch.float16, 2048, "none", 0.1, False, torch.float16),
        (torch.float16, 1408, "none", 0.0, True, None),
        (torch.float16, 704, "tanh", 0.0, False, torch.float32),
    ):
        x, weight = (torch.zeros(n, K, dtype=dtype) for n in (M, 2 * F))
        if bias is not None:
            bias = torch.zeros(2 * F, dtype=bias)
        gating = launch.Gating.of(approximate, dropout, 1)
        with mock.patch.object(launch, "is_fused", return_value=True):
            yield from recorded(
                launch.launch_geglu_linear, x, weight, bias, gating, keep
            )


def recorded(function, *arguments) -> list[tuple]:
    """What a launcher would have started, but for the sums, on their own."""
    found = []

    def record(self, grid, *launched):
        found.append((self.kernel, *launched))

    with mock.patch.object(Launcher, "__call__", record):
        function(*arguments)
    return [
        entry
        for entry in found
        if entry[0].fn.__name__ != "sum_partials_kernel"
    ]


def compile_launch(
    target, kernel, tensors, numbers, constants, num_warps
) -> tuple[CompiledKernel, dict]:
    """The compiled kernel, and what it was compiled for by name."""
    names = kernel.arg_names
    arguments = dict(zip(names, (*tensors, *numbers, *constants), strict=True))
    folded = set(names[len(tensors) + len(numbers) :])
    folded |= {n for n, value in arguments.items() if value is None}
    values = {n: arguments[n] for n in names if n in folded}
    aligned = [
        (names.index(n),)
        for n, value in arguments.items()
        if isinstance(value, torch.Tensor)
    ]
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(
        kernel,
        {
            n: "constexpr" if n in folded else type_name(value)
            for n, value in arguments.items()
        },
        constexprs={(names.index(n),): v for n, v in values.items()},
        attrs={index: [["tt.divisibility", 16]] for index in aligned},
    )
    options = {"num_warps": num_warps}
    return triton.compile(source, target=target, options=options), values


def type_name(value) -> str:
    """An argument's, as a kernel's signature has it."""
    if isinstance(value, torch.Tensor):
        return f"*{NAMES[value.dtype]}"
    if isinstance(value, int | float):
        return "i32" if isinstance(value, int) else "fp32"
    block = ",".join(map(str, value.block_shape))
    return f"tensordesc<{NAMES[value.dtype]}[{block}],{value.layout!r}>"


def warpgroup_products(cubin: bytes) -> int:
    """Hopper's matrix instructions in a kernel's machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        sass = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-sass", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return len(re.findall(r"\bHGMMA\.", sass))
