"""The list of cases, and what is chosen from it."""

import pytest

from speechbrain_triton.bench import command
from speechbrain_triton.bench.cases import (
    CASES,
    DEPTHWISE,
    FRONTEND,
    MODULE,
    select,
)


def test_no_case_is_timed_twice():
    assert len(set(CASES)) == len(CASES)
    assert {case.op for case in CASES} == set(command.OPS)


def test_shapes_are_written_as_in_the_tables():
    assert DEPTHWISE.shape == "B64_T400_C512_K31"
    assert FRONTEND.shape == "B64_T3200_F80_C256"
    chunked = select(["conv_module"], "B16_T400_C512_K31_chunk8")
    assert [(case.B, case.chunk) for case in chunked] == [(16, 8)]


def test_selection_keeps_order_and_ops():
    assert select(command.OPS) == list(CASES)
    modules = select(["conv_module"])
    assert modules[0] == MODULE
    assert modules == [case for case in CASES if case.op == "conv_module"]


def test_quick_takes_the_first_of_each_op():
    assert select(command.OPS, quick=True) == [DEPTHWISE, MODULE, FRONTEND]
    # Where an op has no such shape, the other's is left.
    (only,) = select(command.OPS, "T20_", quick=True)
    assert (only.op, only.T) == ("depthwise_conv1d", 20)


def test_a_shape_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="'K32' in its shape.*like B64_T400"):
        select(command.OPS, "K32")
