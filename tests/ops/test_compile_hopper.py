"""Every kernel in every config compiles for Hopper, and well."""

import pytest
from compile_targets import (
    HOPPER,
    KERNELS,
    assert_machine_code,
    compile_for,
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return compile_for(("cuda", "90", "32"), tmp_path_factory.mktemp("triton"))


def test_every_kernel_becomes_machine_code(compiled):
    assert_machine_code(compiled, KERNELS | {HOPPER})


def test_nothing_spills(compiled):
    taps = {row["constants"].get("K") for row in compiled}
    assert taps >= {31, 33, 34}
    for row in compiled:
        # A limit may cost a few words, for a program more beside it.
        assert row["local"] == 0 and row["stack"] <= 16 * row["limited"], row
        assert row["reg"] > 0


def test_lengths_are_not_specialized(compiled):
    """A new T, B or chunk size must not compile a new variant."""
    for row in compiled:
        assert not row["specialized"], row


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
