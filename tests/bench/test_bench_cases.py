"""The list of cases, and what is chosen from it."""

from dataclasses import replace

import pytest

from speechbrain_triton.bench import command, geglu_ladder
from speechbrain_triton.bench.cases import (
    CASES,
    CNN,
    DEPTHWISE,
    FEED_FORWARD,
    FRONTEND,
    GEGLU,
    JOINT,
    LADDER,
    MODULE,
    TRAINING,
    TRANSDUCER,
    select,
)


def test_no_case_is_timed_twice():
    assert len(set(CASES)) == len(CASES)
    assert {case.op for case in CASES} == set(command.OPS)


def test_shapes_are_written_as_in_the_tables():
    assert DEPTHWISE.shape == "B64_T400_C512_K31"
    assert FRONTEND.shape == "B64_T3200_F80_C256"
    assert GEGLU.shape == "M25600_K512_N2048"
    assert LADDER.shape == "M25600_K512_N2048_matmul"
    assert FEED_FORWARD.shape == "B64_T400_C512_F2048"
    assert TRANSDUCER.shape == "B40_T375_U55_V1000"
    assert JOINT.shape == "B40_T375_U55_V1000_J640"
    assert CNN.shape == "B40_T1500_F80_C64"
    assert TRAINING.shape == "libri_40x15s_full"
    fast = replace(TRAINING, fast=True, chunk=16)
    assert fast.shape == "libri_fast_40x15s_chunk16"
    dropped = replace(FEED_FORWARD, dropout=0.1)
    assert dropped.shape == "B64_T400_C512_F2048_dropout"
    chunked = select(["conv_module"], "B16_T400_C512_K31_chunk8")
    assert [(case.B, case.chunk) for case in chunked] == [(16, 8)]


def test_selection_keeps_order_and_ops():
    assert select(command.OPS) == list(CASES)
    modules = select(["conv_module"])
    assert modules[0] == MODULE
    assert modules == [case for case in CASES if case.op == "conv_module"]


def test_quick_takes_the_first_of_each_op():
    assert select(command.OPS, quick=True) == [
        DEPTHWISE,
        MODULE,
        FRONTEND,
        CNN,
        GEGLU,
        FEED_FORWARD,
        LADDER,
        TRANSDUCER,
        JOINT,
        TRAINING,
    ]
    # Where an op has no such shape, the other's is left.
    (only,) = select(command.OPS, "T20_", quick=True)
    assert (only.op, only.T) == ("depthwise_conv1d", 20)


def test_a_shape_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="'K32' in its shape.*like B64_T400"):
        select(command.OPS, "K32")
    with pytest.raises(ValueError, match="is float32 with 'libri' in its sha"):
        select(command.OPS, "libri", dtype="float32")


def test_the_ladder_has_every_step_once():
    steps = [case.step for case in select(["geglu_ladder"])]
    assert sorted(steps) == sorted(geglu_ladder.STEPS)


def test_checks_are_of_sizes_that_fit_in_float64():
    """And of nothing but the size: all else is as it is timed."""
    smaller = {
        case.shape: case.checked for case in CASES if case.checked != case
    }
    assert smaller["M16384_K2048_N8192"] == replace(
        GEGLU, M=8192, K=2048, N=8192
    )
    assert smaller["B64_T3200_F80_C256"].B == 2
    assert {case.op for case in smaller.values()} == {
        "geglu_linear",
        "frontend",
        "convolution_frontend",
        "transducer_loss",
        "transducer_joint_loss",
        "train_step",
    }
    assert smaller["libri_40x15s_full"].B == 2
    assert smaller["B40_T375_U55_V1000"] == replace(TRANSDUCER, B=2)
    assert smaller["B40_T375_U55_V1000_J640"] == replace(JOINT, B=8)
    for case in select(["geglu_linear", "geglu_ladder"]):
        assert case.checked.M * 2 * case.N * 8 <= 2**30
