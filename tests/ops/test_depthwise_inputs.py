"""What the op takes, what it refuses, and what it leaves alone."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from depthwise_cases import doubles, inputs, oracle, outcome
from tolerance import assert_as_exact_as_stock, relative_error

from speechbrain_triton.ops import depthwise_conv1d
from speechbrain_triton.ops.depthwise_conv1d import depthwise_conv1d_reference

B, T, C, K = 2, 9, 24, 5


def wide(tensor, dim):
    """The same values, in every other place of a buffer full of NaN."""
    shape = list(tensor.shape)
    shape[dim] *= 2
    buffer = tensor.new_full(shape, math.nan)
    view = buffer.unflatten(dim, (-1, 2)).select(dim + 1, 0)
    return view.copy_(tensor)


def window(tensor):
    """The same values, in the middle of a buffer full of NaN."""
    buffer = tensor.new_full([size + 6 for size in tensor.shape], math.nan)
    for dim, size in enumerate(tensor.shape):
        buffer = buffer.narrow(dim, 3, size)
    return buffer.copy_(tensor)


VIEWS = {
    "x, transposed": ("x", lambda t: t.mT.contiguous().mT),
    "x, batch and time swapped": (
        "x",
        lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    ),
    "x, every other frame": ("x", lambda t: wide(t, 1)),
    "x, every other channel": ("x", lambda t: wide(t, 2)),
    "x, a window of a buffer": ("x", window),
    "x, one row expanded": ("x", lambda t: t[:1].expand_as(t)),
    "x, one frame expanded": ("x", lambda t: t[:, :1].expand_as(t)),
    "x, a slice of a batch": ("x", lambda t: torch.cat((t[:1], t))[1:]),
    "weight, channels last": (
        "weight",
        lambda t: t.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    ),
    "weight, a window of a buffer": ("weight", window),
    "weight, one channel expanded": ("weight", lambda t: t[:1].expand_as(t)),
    "bias, every other value": ("bias", lambda t: wide(t, 0)),
    "bias, one value expanded": ("bias", lambda t: t[:1].expand_as(t)),
    "dy, one value expanded": ("dy", lambda t: t[:1, :1, :1].expand_as(t)),
    "dy, transposed": ("dy", lambda t: t.mT.contiguous().mT),
    "dy, a window of a buffer": ("dy", window),
    "left context, a window of a buffer": ("left_context", window),
}


@pytest.mark.parametrize("view", VIEWS)
def test_view_gives_the_bits_of_the_contiguous_tensor(view, device, launches):
    name, relay = VIEWS[view]
    frames = 3 if name == "left_context" else 0
    tensors = inputs(B, T, C, K, device=device, left_context=frames)
    tensors["dy"] = torch.randn_like(tensors["x"])
    tensors[name] = relay(tensors[name])
    results = []
    for called in (
        tensors,
        {n: t.contiguous() for n, t in tensors.items()},
    ):
        called = dict(called)
        dy = called.pop("dy")
        before = {n: t.clone() for n, t in called.items()}
        results.append(
            outcome(
                depthwise_conv1d, called, dy, chunk_size=4, backend="triton"
            )
        )
        for n, tensor in called.items():
            assert torch.equal(tensor, before[n]), f"{n} was written to"
    assert launches["conv_kernel"] == 4
    for result, contiguous in zip(*map(dict.values, results), strict=True):
        assert result.isfinite().all()
        assert torch.equal(result, contiguous)


@pytest.mark.parametrize("wanted", [("x",), ("weight",), ("bias",), ()])
def test_only_the_gradients_asked_for_are_computed(wanted, device, launches):
    tensors = inputs(B, T, C, K, device=device)
    for name in wanted:
        tensors[name].requires_grad_()
    y = depthwise_conv1d(**tensors, backend="triton")
    assert y.requires_grad == bool(wanted)
    launches.clear()
    if wanted:
        dy = torch.randn_like(y)
        (grad,) = torch.autograd.grad(y, [tensors[n] for n in wanted], dy)
        exact = outcome(oracle, doubles(tensors), dy.double())
        assert relative_error(grad, exact["d" + wanted[0]]) < 1e-6
    assert launches["conv_kernel"] == (1 if "x" in wanted else 0)
    weights = {"weight", "bias"} & set(wanted)
    assert launches["weight_grad_kernel"] == (1 if weights else 0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_runs_without_autograd(mode, device, launches):
    tensors = inputs(B, T, C, K, device=device)
    with mode():
        leaf = tensors["weight"].clone().requires_grad_()
        y = depthwise_conv1d(**{**tensors, "weight": leaf}, backend="triton")
    assert launches["conv_kernel"] == 1 and not y.requires_grad
    exact = oracle(**doubles(tensors))
    assert relative_error(y, exact) < 1e-6


def test_writes_nothing_outside_its_outputs(device, launches, monkeypatch):
    """Outputs lie between guards here; a stray store would change one."""
    guards = []

    def guarded(shape, dtype, device):
        size = math.prod(shape)
        buffer = torch.full((size + 512,), 7.0, dtype=dtype, device=device)
        guards.extend((buffer[:256], buffer[size + 256 :]))
        return buffer[256 : size + 256].view(shape).fill_(math.nan)

    new_empty = torch.Tensor.new_empty

    def guarded_new_empty(t, shape, **options):
        if options:  # the interpreter's own
            return new_empty(t, shape, **options)
        return guarded(shape, t.dtype, t.device)

    monkeypatch.setattr(torch, "empty", guarded)
    monkeypatch.setattr(
        torch, "empty_like", lambda t: guarded(t.shape, t.dtype, t.device)
    )
    monkeypatch.setattr(torch.Tensor, "new_empty", guarded_new_empty)
    tensors = inputs(B, 17, C + 1, 4, device=device)
    dy = torch.randn_like(tensors["x"])
    ours = outcome(
        depthwise_conv1d, tensors, dy, chunk_size=5, backend="triton"
    )
    assert launches["conv_kernel"] == 2
    # y, dx, dweight, dbias and the partial sums.
    assert len(guards) == 10
    assert all((guard == 7.0).all() for guard in guards)
    assert all(tensor.isfinite().all() for tensor in ours.values())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_bad_frame_spoils_only_the_frames_that_see_it(
    chunk_size, value, device, launches
):
    tensors = inputs(1, 21, C, 7, device=device)
    dense = oracle(
        torch.eye(21, dtype=torch.float64)[:, :, None],
        torch.ones(1, 1, 7, dtype=torch.float64),
        chunk_size=chunk_size,
    )[..., 0]  # [input, output]: whether the output sees the input
    for frame in (0, 7, 8, 20):
        bad = {n: t.clone() for n, t in tensors.items()}
        bad["x"][0, frame] = value
        y = depthwise_conv1d(**bad, chunk_size=chunk_size, backend="triton")
        spoilt = ~y[0].isfinite().all(dim=1).cpu()
        assert torch.equal(spoilt, dense[frame] > 0)

        x = tensors["x"].clone().requires_grad_()
        y = depthwise_conv1d(
            **{**tensors, "x": x}, chunk_size=chunk_size, backend="triton"
        )
        dy = torch.ones_like(y)
        dy[0, frame] = value
        y.backward(dy)
        spoilt = ~x.grad[0].isfinite().all(dim=1).cpu()
        assert torch.equal(spoilt, dense[:, frame] > 0)
    assert launches["conv_kernel"] == 12


def test_float16_overflows_to_infinity_as_stock_does(device, launches):
    tensors = inputs(1, T, C, K, dtype=torch.float16, device=device)
    tensors["x"] = torch.full_like(tensors["x"], 6e4)
    tensors["weight"] = torch.full_like(tensors["weight"], 1.0)
    tensors["weight"][: C // 2] = 0.2
    ours = depthwise_conv1d(**tensors, backend="triton")
    assert launches["conv_kernel"] == 1
    stock = depthwise_conv1d_reference(**tensors)
    assert torch.equal(ours.isinf(), stock.isinf())
    assert ours[..., C // 2 :].isinf().any() and not ours.isnan().any()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("x_dtype", ["float32", "half"])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_autocast_gives_the_dtypes_of_stock(
    backend, x_dtype, half, device, launches
):
    dtype = half if x_dtype == "half" else torch.float32
    tensors = inputs(B, T, C, K, device=device, left_context=2)
    for name in ("x", "left_context"):
        tensors[name] = tensors[name].to(dtype)
    dy = torch.randn(B, T, C, device=device).to(half)

    def stock(x, weight, bias, left_context):
        h = torch.cat((left_context, x), 1).transpose(1, 2)
        h = F.conv1d(h, weight, bias, padding=K // 2, groups=C)
        return h.transpose(1, 2)[:, 2:]

    with torch.autocast(device, half):
        ours = outcome(depthwise_conv1d, tensors, dy, backend=backend)
        expected = outcome(stock, tensors, dy)
    assert launches["conv_kernel"] == (2 if backend == "triton" else 0)
    assert ours["y"].dtype == half and ours["dweight"].dtype == torch.float32
    rounded = doubles({n: t.to(half) for n, t in tensors.items()})
    exact = outcome(oracle, rounded, dy.double())
    if backend == "triton":
        # Stock rounds the weights too, we read them as they are.
        weights = {n: tensors[n].double() for n in ("weight", "bias")}
        exact = outcome(oracle, {**rounded, **weights}, dy.double())
    assert_as_exact_as_stock(ours, expected, exact)


def test_backward_outside_autocast_and_inside_agree(device, launches):
    tensors = inputs(B, T, C, K, device=device)
    dy = torch.randn(B, T, C, device=device).bfloat16()
    grads = []
    for inside in (False, True):
        leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
        with torch.autocast(device, torch.bfloat16):
            y = depthwise_conv1d(**leaves, backend="triton")
        with torch.autocast(device, torch.bfloat16, enabled=inside):
            grads.append(torch.autograd.grad(y, list(leaves.values()), dy))
    assert launches["conv_kernel"] == 4
    for one, two in zip(*grads, strict=True):
        assert one.dtype == two.dtype == torch.float32
        assert torch.equal(one, two)


def test_nested_autocast_switched_off_keeps_float32(device, launches):
    tensors = inputs(B, T, C, K, device=device)
    with torch.autocast(device, torch.bfloat16):
        with torch.autocast(device, enabled=False):
            y = depthwise_conv1d(**tensors, backend="triton")
            with pytest.raises(TypeError, match="bfloat16.*float32"):
                depthwise_conv1d(
                    **{**tensors, "x": tensors["x"].bfloat16()},
                    backend="triton",
                )
    assert y.dtype == torch.float32
    assert launches["conv_kernel"] == 1


@pytest.mark.parametrize("backend", ["triton", "torch", "auto"])
@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype"),
    [
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
        (torch.float64, torch.float32),
    ],
)
def test_mixed_dtypes_outside_autocast_are_refused(
    x_dtype, weight_dtype, backend, device
):
    tensors = inputs(
        B, T, C, K, dtype=x_dtype, weight_dtype=weight_dtype, device=device
    )
    with pytest.raises(TypeError, match=f"{x_dtype}.*{weight_dtype}"):
        depthwise_conv1d(**tensors, backend=backend)


def test_float64_runs_in_torch_and_is_refused_by_triton(device, launches):
    tensors = inputs(B, T, C, K, dtype=torch.float64, device=device)
    y = depthwise_conv1d(**tensors, chunk_size=4)
    torch.testing.assert_close(y, oracle(**tensors, chunk_size=4))
    with pytest.raises(RuntimeError, match="float64"):
        depthwise_conv1d(**tensors, backend="triton")
    with torch.autocast(device, torch.bfloat16):
        assert depthwise_conv1d(**tensors).dtype == torch.float64
    assert not launches


def test_empty_batch_gives_empty_output_and_zero_gradients(device, launches):
    tensors = inputs(0, T, C, K, device=device)
    for options in ({}, {"chunk_size": 4}, {"padding": "valid"}):
        frames = T - K + 1 if options.get("padding") else T
        dy = torch.randn(0, frames, C, device=device)
        result = outcome(
            depthwise_conv1d, tensors, dy, backend="triton", **options
        )
        assert result["y"].shape == (0, frames, C)
        assert result["dx"].shape == (0, T, C)
        assert torch.equal(
            result["dweight"], torch.zeros_like(tensors["weight"])
        )
        assert torch.equal(result["dbias"], torch.zeros_like(tensors["bias"]))
    assert not launches


def test_empty_left_context_counts_as_none(device, launches):
    tensors = inputs(B, T, C, K, device=device)
    plain = depthwise_conv1d(**tensors, backend="triton")
    empty = tensors["x"][:, :0]
    for backend in ("triton", "torch"):
        y = depthwise_conv1d(**tensors, left_context=empty, backend=backend)
        torch.testing.assert_close(y, plain)
    assert launches["conv_kernel"] == 2


X = torch.zeros(B, T, C)
WEIGHT = torch.zeros(C, 1, K)


@pytest.mark.parametrize("backend", ["triton", "torch", "auto"])
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": X[:, :0]}, "T = 0"),
        ({"x": X[0]}, r"x must be \(batch, time, channel\)"),
        ({"weight": WEIGHT[:-1]}, "weight must be"),
        ({"weight": WEIGHT[:, 0]}, "weight must be"),
        ({"weight": WEIGHT[..., :0]}, "weight must be"),
        ({"bias": torch.zeros(C + 1)}, "bias must be"),
        ({"weight": WEIGHT.to("meta")}, "weight is on meta and x on cpu"),
        ({"bias": torch.zeros(C, device="meta")}, "bias is on meta"),
        ({"padding": "full"}, "padding='full' is not one of 'same'"),
        ({"padding": None}, "padding=None is not one of"),
        ({"padding": "valid", "x": X[:, :4]}, "at least K = 5 .* T = 4"),
        ({"chunk_size": 0}, "chunk_size=0 is below 1"),
        ({"chunk_size": -3}, "chunk_size=-3 is below 1"),
        ({"chunk_size": 4.0}, "chunk_size=4.0 is not a whole number"),
        ({"chunk_size": True}, "chunk_size=True is not a whole number"),
        ({"chunk_size": 4, "padding": "causal"}, "needs padding='same'"),
        ({"chunk_size": 4, "padding": "valid"}, "needs padding='same'"),
        ({"left_context": X, "padding": "valid"}, "padding='valid'"),
        ({"left_context": X[:1]}, "left_context must be"),
        ({"left_context": X[..., :-1]}, "left_context must be"),
        ({"left_context": X[0]}, "left_context must be"),
        ({"left_context": X.double()}, "left_context is torch.float64"),
    ],
)
def test_bad_argument_is_named_in_one_sentence(changes, sentence, backend):
    arguments = {"x": X, "weight": WEIGHT, **changes}
    with pytest.raises(ValueError, match=sentence) as caught:
        depthwise_conv1d(**arguments, backend=backend)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "backend", [None, "False", "triton ", 1.0, True, "TORCH"]
)
def test_unknown_backend_is_refused(backend):
    with pytest.raises(ValueError, match="backend=.*'auto', 'triton', 'torch'"):
        depthwise_conv1d(X, WEIGHT, backend=backend)


def test_too_many_taps_fall_back_or_are_refused(device, launches):
    tensors = inputs(1, 5, 3, 129, device=device)
    y = depthwise_conv1d(**tensors, backend="auto")
    assert relative_error(y, oracle(**doubles(tensors))) < 1e-6
    with pytest.raises(RuntimeError, match="at most 80 taps, not 129"):
        depthwise_conv1d(**tensors, backend="triton")
    assert not launches


def test_functorch_and_forward_mode_raise_rather_than_lie(device):
    """Right or an error, never silent zeros; the torch path does them all."""
    tensors = inputs(1, 5, C, 3, device=device)
    x = tensors.pop("x")

    def call(x, backend="triton"):
        return depthwise_conv1d(x, **tensors, backend=backend)

    def forward_mode(x, backend="triton"):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            y = call(dual, backend)
            return torch.autograd.forward_ad.unpack_dual(y).tangent

    for transformed in (
        lambda: torch.func.vmap(call)(x[None]),
        lambda: torch.func.grad(lambda x: call(x).sum())(x),
        lambda: torch.func.jvp(call, (x,), (x,)),
    ):
        with pytest.raises(RuntimeError, match="torch.func cannot transform"):
            transformed()
    with pytest.raises(RuntimeError, match="no forward-mode derivatives"):
        forward_mode(x)

    exact = oracle(x.double(), tensors["weight"].double())
    assert relative_error(forward_mode(x, "torch"), exact) < 1e-6


def test_numpy_integer_is_a_chunk_size():
    """Configurations read by numpy or pandas hold such numbers."""
    y = depthwise_conv1d(X, WEIGHT, chunk_size=np.int64(4))
    assert y.shape == X.shape


def test_meta_tensors_give_shapes():
    """Tools that count parameters or operations run models on meta."""
    y = depthwise_conv1d(X.to("meta"), WEIGHT.to("meta"), chunk_size=4)
    assert y.shape == X.shape and y.device.type == "meta"


def test_bias_of_another_dtype_is_refused_outside_autocast(device):
    """Stock refuses it too."""
    tensors = inputs(B, T, C, K, device=device)
    tensors["bias"] = tensors["bias"].bfloat16()
    with pytest.raises(TypeError, match="bias"):
        depthwise_conv1d(**tensors)
