"""The linear layer with GEGLU against its definition in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from depthwise_cases import outcome
from geglu_cases import (
    APPROXIMATIONS,
    DTYPES,
    HALVES,
    LINEAR,
    assert_right,
    gelu,
    gelu_through_op,
    kernels_of,
    linear_inputs,
    mask_through_op,
)

from speechbrain_triton.ops import geglu_linear
from speechbrain_triton.ops.dropout import keep_mask, keep_scale
from speechbrain_triton.ops.geglu_linear import geglu_linear_reference

# Of numpy, in which the interpreter computes: what is not finite is meant.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_right_in_every_dtype(
    dtype, approximate, bias, dropout, device, launches
):
    tensors = linear_inputs(
        2, 11, 24, F=40, dtype=dtype, device=device, bias=bias
    )
    assert_right(
        LINEAR,
        tensors,
        launches,
        approximate=approximate,
        dropout=dropout,
        seed=2**40 + 7,
    )


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("K", [1, 7, 16])
@pytest.mark.parametrize("columns", [1, 2, 5, 33, 512, 700, 1408])
def test_right_for_every_width(columns, K, dropout, device, launches):
    tensors = linear_inputs(5, K, F=columns, device=device)
    assert_right(LINEAR, tensors, launches, dropout=dropout, seed=3)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1, 2), (1, 40), (2, 40), (3, 40), (513, 2), (1500, 2), (200, 40)],
)
def test_right_for_every_number_of_rows(rows, columns, device, launches):
    """A tile is a few hundred elements: narrow rows share one."""
    tensors = linear_inputs(rows, 3, F=columns, device=device)
    assert_right(LINEAR, tensors, launches, dropout=0.2, seed=1)


@pytest.mark.parametrize(
    "shape", [(9,), (4, 9), (2, 3, 9), (2, 1, 3, 9), (1, 1, 9)]
)
def test_right_for_any_number_of_dimensions(shape, device, launches):
    tensors = linear_inputs(*shape, F=10, device=device)
    y = assert_right(LINEAR, tensors, launches, dropout=0.2, seed=1)["y"]
    assert y.shape == (*shape[:-1], 10) and y.is_contiguous()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1, 30])
def test_backward_gates_what_forward_rounded(scale, dtype, device, launches):
    """Of large z in half precision, where another rounding would show."""
    tensors = linear_inputs(96, 32, F=64, dtype=dtype, device=device)
    tensors["x"] = (scale * tensors["x"].float()).to(dtype)
    assert_right(LINEAR, tensors, launches, scale=0.01)


def test_sums_of_the_bias_keep_their_precision(device, launches):
    """Many rows around a mean, with a gradient of 1e-3 each."""
    dtype = torch.float16
    tensors = linear_inputs(1000, 4, F=8, dtype=dtype, device=device)
    tensors["x"] = (1 + 0.01 * torch.randn_like(tensors["x"])).to(dtype)
    dy = torch.full((1000, 8), 1e-3, dtype=dtype, device=device)
    with torch.autocast(device, dtype):
        called = dict(tensors, bias=tensors["bias"].float())
        ours = outcome(geglu_linear, called, dy, backend="triton")["dbias"]
    assert launches["sum_partials_kernel"] == 1
    z = F.linear(*(t.float() for t in tensors.values())).to(dtype)
    first, second = z.double().requires_grad_().chunk(2, -1)
    h = first * gelu(second)
    dz = torch.autograd.grad(h, (first, second), dy.double())
    exact = torch.cat([g.sum(0) for g in dz])
    assert ours.dtype is torch.float32
    assert (ours.double() - exact).norm() <= 3e-6 * exact.norm()


def test_gelu_is_exact_unless_told(device):
    """At 2.70, where the two differ most."""
    z = torch.tensor([2.70, -2.70], device=device)
    for approximate in APPROXIMATIONS:
        exact = F.gelu(z.double(), approximate=approximate)
        for options in ({}, {"approximate": approximate}):
            ours = gelu_through_op(z, backend="triton", **options)
            is_it = approximate == options.get("approximate", "none")
            assert torch.allclose(ours.double(), exact, atol=1e-6) is is_it


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_tails_are_right_to_the_last_places(approximate, device):
    """1 + erf(z) would cancel: of gelu(-5) a few bits would be left."""
    z = torch.linspace(-11, 11, 4001, device=device)
    z = torch.cat((z, z.new_tensor([-13, -10, -5, -2.7, 0, 1e-30, -1e-30])))
    ours = gelu_through_op(z, approximate=approximate, backend="triton")
    if approximate == "tanh":
        u = math.sqrt(2 / math.pi) * (z.double() + 0.044715 * z.double() ** 3)
        exact, exponent = z.double() * torch.sigmoid(2 * u), 2 * u
    else:
        exact, exponent = gelu(z.double()), z.double() ** 2 / 2
    # The exponent's own rounding is an error of as many units.
    allowed = 6e-7 + 2e-7 * exponent.abs()
    seen = exact.abs() > 1e-37
    error = (ours.double() - exact).abs()
    assert (error <= allowed * exact.abs())[seen].all()
    assert ours[~seen].abs().max() <= 1e-30


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("size", [30.0, 1e4, 2.0**60])
def test_large_gates_pass_or_close(size, approximate, device):
    weight = torch.tensor([1.0, 1.0, size, -size], device=device)[:, None]
    weight.requires_grad_()
    x = torch.ones(1, 1, device=device)
    h = geglu_linear(x, weight, approximate=approximate, backend="triton")
    assert h.tolist() == [[size, 0.0]]
    h.sum().backward()
    assert weight.grad.flatten().tolist() == [size, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_stays_in_its_row(bad, approximate, device):
    tensors = linear_inputs(9, 5, F=6, device=device)
    tensors["x"][4] = bad
    dy = torch.randn(9, 6, device=device)
    ours, stock = (
        outcome(f, tensors, dy, approximate=approximate, **options)
        for f, options in (
            (geglu_linear, {"backend": "triton"}),
            (geglu_linear_reference, {}),
        )
    )
    rows = torch.arange(9, device=device) != 4
    for name in ("y", "dx"):
        assert ours[name][rows].isfinite().all()
        assert not ours[name][~rows].isfinite().any()
    for name, value in ours.items():
        torch.testing.assert_close(value, stock[name], equal_nan=True)


@pytest.mark.parametrize("z", [math.inf, math.nan, -math.inf])
def test_what_is_not_finite_stays_in_its_column(z, device):
    row = torch.tensor([0.5, z, -1.0, 2.0], device=device)
    ours = gelu_through_op(row, backend="triton")
    # In float32 PyTorch's own gives NaN for inf on some processors.
    exact = F.gelu(row.double()).float()
    torch.testing.assert_close(ours, exact, equal_nan=True)


SEEDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_mask_is_its_definitions_for_every_seed(seed, device):
    mask = mask_through_op(
        7, 33, device, dropout=0.4, seed=seed, backend="triton"
    )
    assert torch.equal(mask, keep_mask(7, 33, 0.4, seed, device))


@pytest.mark.parametrize("dropout", [0.001, 0.5, 0.97])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1, 1), (1030, 1), (1030, 2), (600, 5), (3, 700), (5, 1408), (2, 513)],
)
def test_mask_is_its_definitions_for_every_size(rows, columns, dropout, device):
    mask = mask_through_op(
        rows, columns, device, dropout=dropout, seed=11, backend="triton"
    )
    assert torch.equal(mask, keep_mask(rows, columns, dropout, 11, device))


def test_what_is_kept_is_scaled_so_that_the_mean_stays(device):
    x = linear_inputs(64, 5, F=32, device=device)
    plain = geglu_linear(**x, backend="triton")
    y = geglu_linear(**x, dropout=0.25, seed=5, backend="triton")
    kept = keep_mask(64, 32, 0.25, 5, device)
    torch.testing.assert_close(y, plain * kept / 0.75)
    assert keep_scale(0.25) == 1 / 0.75


@pytest.mark.parametrize("dropout", [0, 1e-9])
def test_dropout_of_nothing_changes_no_bit(dropout, device):
    tensors = linear_inputs(9, 5, F=6, device=device)
    dy = torch.randn(9, 6, device=device)
    plain, ours = (
        outcome(geglu_linear, tensors, dy, backend="triton", **options)
        for options in ({}, {"dropout": dropout, "seed": 1})
    )
    for name in plain:
        assert torch.equal(ours[name], plain[name]), name


@pytest.mark.parametrize("dropout", [1, 1.0, 0.999999])
def test_dropout_of_everything_gives_zeros(dropout, device):
    tensors = linear_inputs(9, 5, F=6, device=device)
    dy = torch.randn(9, 6, device=device)
    ours = outcome(geglu_linear, tensors, dy, dropout=dropout, backend="triton")
    for name, value in ours.items():
        assert value.eq(0).all(), name


def test_a_frozen_layer_starts_no_backward(device, launches):
    tensors = linear_inputs(9, 5, F=6, device=device)
    y = geglu_linear(**tensors, backend="triton")
    assert not y.requires_grad
    with torch.no_grad():
        again = geglu_linear(**tensors, backend="triton")
    assert torch.equal(y, again)
    name = next(iter(kernels_of(tensors)))
    assert launches == {name: 2}


def test_gradcheck_of_the_twin():
    tensors = linear_inputs(2, 3, 5, F=4, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in tensors.values()]
    for approximate in APPROXIMATIONS:
        assert torch.autograd.gradcheck(
            lambda *t, a=approximate: geglu_linear_reference(
                *t, approximate=a, dropout=0.3, seed=2
            ),
            leaves,
        )
