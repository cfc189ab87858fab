"""The feed-forward block with GEGLU against its definition in float64."""

import pytest
import torch
from depthwise_cases import doubles, outcome
from geglu_cases import (
    APPROXIMATIONS,
    DTYPES,
    FFN,
    HALVES,
    LINEAR,
    assert_right,
    ffn_inputs,
    kernels_of,
    linear_inputs,
)
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops import geglu_ffn, geglu_linear
from speechbrain_triton.ops.geglu_ffn import geglu_ffn_reference


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_right_in_every_dtype(
    dtype, approximate, bias, dropout, device, launches
):
    tensors = ffn_inputs(
        2, 11, 24, F=40, D=24, dtype=dtype, device=device, bias=bias
    )
    assert_right(
        FFN,
        tensors,
        launches,
        approximate=approximate,
        dropout=dropout,
        seed=2**40 + 7,
    )


@pytest.mark.parametrize("D", [1, 7, 16])
@pytest.mark.parametrize("columns", [1, 2, 5, 33, 512, 700, 1408])
def test_right_for_every_width(columns, D, device, launches):
    tensors = ffn_inputs(5, 9, F=columns, D=D, device=device)
    assert_right(FFN, tensors, launches, dropout=0.5, seed=3)


@pytest.mark.parametrize("rows", [1, 2, 3, 600])
def test_right_for_every_number_of_rows(rows, device, launches):
    tensors = ffn_inputs(rows, 3, F=40, D=5, device=device)
    assert_right(FFN, tensors, launches, dropout=0.2, seed=1)


@pytest.mark.parametrize(
    "shape", [(9,), (4, 9), (2, 3, 9), (2, 1, 3, 9), (1, 1, 9)]
)
def test_right_for_any_number_of_dimensions(shape, device, launches):
    tensors = ffn_inputs(*shape, F=10, D=4, device=device)
    y = assert_right(FFN, tensors, launches, dropout=0.2, seed=1)["y"]
    assert y.shape == (*shape[:-1], 4) and y.is_contiguous()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1, 30])
def test_backward_gates_what_forward_rounded(scale, dtype, device, launches):
    """Of large z in half precision, where another rounding would show."""
    tensors = ffn_inputs(96, 32, F=64, D=32, dtype=dtype, device=device)
    tensors["x"] = (scale * tensors["x"].float()).to(dtype)
    assert_right(FFN, tensors, launches, scale=0.01)


def test_both_layers_in_turn_give_the_same_bits(device):
    """One function, so that the hidden layer is not kept: no other result."""
    tensors = ffn_inputs(2, 11, 24, F=40, D=24, device=device)
    options = dict(dropout=0.3, seed=5, backend="triton")

    def apart(x, weight, bias, out_weight, out_bias):
        h = geglu_linear(x, weight, bias, **options)
        return torch.nn.functional.linear(h, out_weight, out_bias)

    dy = torch.randn(2, 11, 24, device=device)
    ours = outcome(geglu_ffn, tensors, dy, **options)
    for name, value in outcome(apart, tensors, dy).items():
        torch.testing.assert_close(ours[name], value, msg=name)


@pytest.mark.parametrize("half", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [LINEAR, FFN], ids=["linear", "ffn"])
def test_of_the_hidden_layer_only_z_is_kept(case, half, device):
    """No h, no mask, no gate: 2 F elements a row beside the inputs."""
    M, K, F = 64, 8, 96
    leaves = {
        name: t.requires_grad_()
        for name, t in case.inputs(M, K, F=F, device=device).items()
    }
    own = {t.untyped_storage().data_ptr() for t in leaves.values()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        with torch.autocast(device, half or torch.half, enabled=bool(half)):
            y = case.op(**leaves, dropout=0.3, backend="triton")
    size = y.element_size()
    # Under autocast also x and weights as they were cast.
    casts = sum(t.numel() for t in leaves.values()) if half else 0
    assert sum(kept.values()) <= size * (M * 2 * F + casts)
    assert size * M * 2 * F in kept.values()


def test_biases_may_differ_in_dtype_under_autocast(device, launches):
    tensors = ffn_inputs(3, 5, 8, F=10, device=device)
    for name in ("bias", "out_weight"):
        tensors[name] = tensors[name].half()
    with torch.autocast(device, torch.float16):
        dy = torch.randn(3, 5, 6, device=device).half()
        ours = outcome(geglu_ffn, tensors, dy, backend="triton")
        stock = outcome(geglu_ffn_reference, tensors, dy)
    assert launches == kernels_of(tensors)
    exact = outcome(geglu_ffn_reference, doubles(tensors), dy.double())
    assert_as_exact_as_stock(ours, stock, exact)


def test_outputs_may_be_none(device):
    tensors = ffn_inputs(3, 9, F=10, D=0, device=device)
    dy = torch.empty(3, 0, device=device)
    result = outcome(geglu_ffn, tensors, dy, backend="triton")
    assert result["y"].shape == (3, 0) and not result["dx"].any()


def test_a_frozen_block_starts_no_backward(device, launches):
    tensors = ffn_inputs(9, 5, F=6, device=device)
    y = geglu_ffn(**tensors, backend="triton")
    assert not y.requires_grad
    with torch.inference_mode():
        assert torch.equal(geglu_ffn(**tensors, backend="triton"), y)
    assert launches == {next(iter(kernels_of(tensors))): 2}


def test_gradcheck_of_the_twin():
    tensors = ffn_inputs(2, 3, 5, F=4, D=3, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in tensors.values()]
    for approximate in APPROXIMATIONS:
        assert torch.autograd.gradcheck(
            lambda *t, a=approximate: geglu_ffn_reference(
                *t, approximate=a, dropout=0.3, seed=2
            ),
            leaves,
        )


def test_twin_without_dropout_is_torchs_layers():
    """In float64, bit by bit, whatever the seed."""
    t = doubles(ffn_inputs(3, 9, F=10))
    first, second = torch.nn.functional.linear(
        t["x"], t["weight"], t["bias"]
    ).chunk(2, -1)
    h = first * torch.nn.functional.gelu(second)
    expected = torch.nn.functional.linear(h, t["out_weight"], t["out_bias"])
    assert torch.equal(geglu_ffn_reference(**t, seed=3), expected)
    linear = doubles(linear_inputs(3, 9, F=10))
    assert LINEAR.twin(**linear).shape == (3, 10)
