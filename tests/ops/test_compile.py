"""Every kernel compiles for four architectures, without a device.

The configs are those that the launchers use. Of each vendor's architectures
one has all of them: test_compile_hopper.py has NVIDIA's.
"""

import pytest
from compile_targets import KERNELS, assert_machine_code, compile_for

from speechbrain_triton.ops.depthwise_conv1d import kernels

TARGETS = [
    ("cuda", "80", "32"),
    ("cuda", "100", "32"),
    ("hip", "gfx942", "64"),
    ("hip", "gfx1100", "32"),
]


@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_every_kernel_becomes_machine_code(target, tmp_path):
    assert_machine_code(compile_for(target, tmp_path), KERNELS)


def test_every_name_among_the_lengths_is_a_kernel_argument():
    arguments = {
        name
        for kernel in vars(kernels).values()
        for name in getattr(kernel, "arg_names", ())
    }
    assert set(kernels.LENGTHS) <= arguments
