"""Warm up a recipe for a GPU that need not be there.

    python compile_worker.py CASE compile
    python compile_worker.py CASE launch

The second does to each kernel what a training does to launch it, as far as
that goes without a GPU. Each prints how many were wanted, compiled and found.
Not in the interpreter, in which nothing compiles.
"""

import sys
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from warm_recipes import CASES, arguments

from speechbrain_triton import backend
from speechbrain_triton.ops.geglu_linear import launch
from speechbrain_triton.ops.launcher import variant_key
from speechbrain_triton.warmup.compiling import Tally, compiling, launched_by
from speechbrain_triton.warmup.steps import build_brain, plan_steps, run_step


class Launched(Exception):
    """A kernel got as far as it can."""


class Hopper:
    """Of a driver, what Triton asks for before it loads a kernel."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def launcher_cls(self, source, metadata):
        raise Launched


def use_hopper() -> None:
    triton.runtime.driver.set_active(Hopper())


def main(case: str, what: str) -> None:
    recipe, name, more = CASES[case]
    use_hopper()
    # Else a CPU is refused.
    with mock.patch.object(backend, "triton_obstacle", lambda *_: None):
        brain = build_brain(arguments(recipe, name, **more))
        tally = Tally()
        if what == "compile":
            with compiling(2, use_hopper, tally):
                take_steps(brain)
        else:
            triton.knobs.compilation.listener = lambda *, cache_hit, **_: (
                tally.add(cache_hit)
            )
            with launched_by(Launch(tally)):
                take_steps(brain)
    print("tally:", tally.wanted, tally.compiled, tally.found)


def take_steps(brain) -> None:
    for step in plan_steps(brain):
        run_step(brain, step)
    launch_fused_gate()


def launch_fused_gate() -> None:
    """Hopper's own kernel, which no model on a CPU asks for."""
    x = torch.zeros(64, 128, dtype=torch.bfloat16)
    weight = torch.zeros(512, 128, dtype=torch.bfloat16)
    gating = launch.Gating.of("none", 0.1, 5)
    with (
        mock.patch.object(launch, "is_fused", lambda *_: True),
        mock.patch.object(launch, "_hopper_multiprocessors", lambda _: 132),
    ):
        for bias in (None, x.new_zeros(512)):
            launch.launch_geglu_linear(x, weight, bias, gating, keep=True)


class Launch:
    """As launchers do it the first time."""

    def __init__(self, tally):
        self.tally, self.known = tally, set()

    def __call__(
        self, launcher, grid, tensors, numbers, constants, num_warps
    ) -> None:
        variant = launcher, variant_key(tensors, constants, num_warps)
        if variant in self.known:
            return
        self.known.add(variant)
        self.tally.wanted += 1
        try:
            launcher.kernel[grid](
                *tensors,
                *numbers,
                *constants,
                num_warps=num_warps,
                **launcher.options,
            )
        except Launched:
            return
        raise AssertionError(f"{launcher.kernel} was launched without a GPU")


if __name__ == "__main__":
    main(*sys.argv[1:])
