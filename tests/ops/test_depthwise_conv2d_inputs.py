"""What the op takes, what it refuses, and what it leaves alone."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from depthwise2d_cases import inputs, oracle
from depthwise_cases import doubles, outcome
from tolerance import assert_as_exact_as_stock, relative_error

from speechbrain_triton.ops.depthwise_conv2d import (
    depthwise_conv2d,
    depthwise_conv2d_reference,
)
from speechbrain_triton.ops.launcher import Launcher

B, T, BINS, C = 2, 7, 6, 24
OPTIONS = dict(stride=2, relu="before")
DY = (B, 4, 3, C)


def window(tensor):
    """The same values, in the middle of a buffer full of NaN."""
    buffer = tensor.new_full([size + 6 for size in tensor.shape], math.nan)
    for dim, size in enumerate(tensor.shape):
        buffer = buffer.narrow(dim, 3, size)
    return buffer.copy_(tensor)


def shifted_by_an_element(tensor):
    """The same values, off the alignment by one element."""
    buffer = tensor.new_zeros(tensor.numel() + 1)
    return buffer[1:].view(tensor.shape).copy_(tensor)


VIEWS = {
    "x, channels first": (
        "x",
        lambda t: t.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
    ),
    "x, a window of a buffer": ("x", window),
    "x, one row expanded": ("x", lambda t: t[:1].expand_as(t)),
    "x, a slice of a batch": ("x", lambda t: torch.cat((t[:1], t))[1:]),
    "x, off its alignment": ("x", shifted_by_an_element),
    "weight, channels last": (
        "weight",
        lambda t: t.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    ),
    "weight, a window of a buffer": ("weight", window),
    "bias, one value expanded": ("bias", lambda t: t[:1].expand_as(t)),
    "input bias, a window": ("input_bias", window),
    "dy, one value expanded": ("dy", lambda t: t[:1, :1].expand_as(t)),
    "dy, a window of a buffer": ("dy", window),
    "dy, off its alignment": ("dy", shifted_by_an_element),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_view_gives_what_the_contiguous_tensor_gives(
    view, dtype, device, launches
):
    name, relay = VIEWS[view]
    tensors = inputs(B, T, BINS, C, dtype=dtype, device=device)
    tensors["dy"] = torch.randn(DY).to(tensors["x"])
    tensors[name] = relay(tensors[name])
    results = []
    for called in (tensors, {n: t.contiguous() for n, t in tensors.items()}):
        called = dict(called)
        if called[name].data_ptr() % 4:  # contiguous as it was
            called[name] = called[name].clone()
        dy = called.pop("dy")
        before = {n: t.clone() for n, t in called.items()}
        results.append(
            outcome(depthwise_conv2d, called, dy, backend="triton", **OPTIONS)
        )
        for n, tensor in called.items():
            assert torch.equal(tensor, before[n]), f"{n} was written to"
    assert launches["depthwise_conv2d_kernel"] == 2
    for result, contiguous in zip(*map(dict.values, results), strict=True):
        assert result.isfinite().all()
        assert torch.equal(result, contiguous)


@pytest.mark.parametrize(("channels", "aligned"), [(24, 1), (24, 0), (23, 1)])
def test_halves_are_loaded_as_words_where_they_can_be(
    channels, aligned, device, launches, monkeypatch
):
    packs = []
    start = Launcher.__call__

    def note(self, grid, tensors, numbers, constants, num_warps):
        if "conv2d" in self.kernel.fn.__name__:
            packs.append(constants[9])
        start(self, grid, tensors, numbers, constants, num_warps)

    monkeypatch.setattr(Launcher, "__call__", note)
    tensors = inputs(B, T, BINS, channels, dtype=torch.bfloat16, device=device)
    dy = torch.randn(*DY[:3], channels).to(tensors["x"])
    expected = outcome(
        depthwise_conv2d, tensors, dy, backend="triton", **OPTIONS
    )
    if not aligned:
        tensors["x"] = shifted_by_an_element(tensors["x"])
        packs.clear()
        # Not detached into a fresh storage: outcome() keeps the address.
        ours = outcome(
            depthwise_conv2d, tensors, dy, backend="triton", **OPTIONS
        )
        for name in expected:
            torch.testing.assert_close(ours[name], expected[name])
    assert packs == [2 if aligned and channels == 24 else 1] * 2


WANTED = ("x", "weight", "bias", "input_bias")


@pytest.mark.parametrize("relu", [None, "before", "after"])
@pytest.mark.parametrize(
    "wanted", [*((name,) for name in WANTED), ("x", "bias"), WANTED[1:], ()]
)
def test_only_the_gradients_asked_for_are_computed(
    wanted, relu, device, launches, monkeypatch
):
    computed = []
    start = Launcher.__call__

    def note(self, grid, tensors, numbers, constants, num_warps):
        if self.kernel.fn.__name__ == "depthwise_conv2d_grad_kernel":
            computed.append(constants[-2:])
        start(self, grid, tensors, numbers, constants, num_warps)

    monkeypatch.setattr(Launcher, "__call__", note)
    tensors = inputs(B, T, BINS, C, device=device)
    for name in wanted:
        tensors[name].requires_grad_()
    y = depthwise_conv2d(**tensors, stride=2, relu=relu, backend="triton")
    assert y.requires_grad == bool(wanted)
    if not wanted:
        return
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(y, [tensors[n] for n in wanted], dy)
    assert computed == [
        (
            bool({"x", "input_bias"} & set(wanted)),
            bool({"weight", "bias"} & set(wanted)),
        )
    ]
    exact = outcome(
        oracle, doubles(tensors), dy.double(), stride=(2, 2), relu=relu
    )
    for name, grad in zip(wanted, grads, strict=True):
        assert relative_error(grad, exact["d" + name]) < 1e-6


def test_input_gradient_alone_needs_no_sum(device, launches):
    tensors = inputs(B, T, BINS, C, device=device, input_bias=False)
    x = tensors["x"].requires_grad_()
    depthwise_conv2d(**tensors, backend="triton").sum().backward()
    assert x.grad is not None and "sum_partials_kernel" not in launches


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_runs_without_autograd(mode, device, launches):
    tensors = inputs(B, T, BINS, C, device=device)
    with mode():
        leaf = tensors["weight"].clone().requires_grad_()
        y = depthwise_conv2d(**{**tensors, "weight": leaf}, backend="triton")
    assert launches["depthwise_conv2d_kernel"] == 1 and not y.requires_grad
    assert relative_error(y, oracle(**doubles(tensors))) < 1e-6


def test_writes_nothing_outside_its_outputs(device, launches, monkeypatch):
    """Outputs lie between guards here; a stray store would change one."""
    guards = []

    def guarded(shape, dtype, device):
        shape = (shape,) if isinstance(shape, int) else shape
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
    tensors = inputs(B, T, BINS - 1, C + 1, device=device)
    dy = torch.randn(B, 4, 3, C + 1, device=device)
    ours = outcome(depthwise_conv2d, tensors, dy, backend="triton", **OPTIONS)
    assert launches["depthwise_conv2d_grad_kernel"] == 1
    assert len(guards) == 8  # of y, dx, the partial sums and their total
    assert all((guard == 7.0).all() for guard in guards)
    assert all(tensor.isfinite().all() for tensor in ours.values())


def test_float16_overflows_to_infinity_as_stock_does(device):
    tensors = inputs(1, T, BINS, C, dtype=torch.float16, device=device)
    tensors["x"] = torch.full_like(tensors["x"], 6e4)
    tensors["weight"] = torch.full_like(tensors["weight"], 1.0)
    tensors["weight"][: C // 2] = 0.1
    ours = depthwise_conv2d(**tensors, backend="triton")
    stock = depthwise_conv2d_reference(**tensors)
    assert torch.equal(ours.isinf(), stock.isinf())
    assert ours[..., C // 2 :].isinf().any() and not ours.isnan().any()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("x_dtype", ["float32", "half"])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_autocast_gives_the_dtypes_of_stock(
    backend, x_dtype, half, device, launches
):
    dtype = half if x_dtype == "half" else torch.float32
    tensors = inputs(B, T, BINS, C, device=device, input_bias=False)
    tensors["x"] = tensors["x"].to(dtype)
    dy = torch.randn(DY, device=device).to(half)

    def stock(x, weight, bias):
        h = x.permute(0, 3, 1, 2)
        h = F.conv2d(h, weight, bias, stride=2, padding=1, groups=C)
        return h.permute(0, 2, 3, 1)

    with torch.autocast(device, half):
        ours = outcome(depthwise_conv2d, tensors, dy, stride=2, backend=backend)
        expected = outcome(stock, tensors, dy)
    assert launches["depthwise_conv2d_kernel"] == (backend == "triton")
    assert ours["y"].dtype == half and ours["dweight"].dtype == torch.float32
    exact = doubles({n: t.to(half) for n, t in tensors.items()})
    if backend == "triton":
        # Stock rounds the weights too, we read them as they are.
        exact |= {n: tensors[n].double() for n in ("weight", "bias")}
    exact = outcome(oracle, exact, dy.double(), stride=(2, 2))
    assert_as_exact_as_stock(ours, expected, exact)


def test_backward_outside_autocast_and_inside_agree(device, launches):
    tensors = inputs(B, T, BINS, C, device=device)
    dy = torch.randn(DY, device=device).bfloat16()
    grads = []
    for inside in (False, True):
        leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
        with torch.autocast(device, torch.bfloat16):
            y = depthwise_conv2d(**leaves, backend="triton", **OPTIONS)
        with torch.autocast(device, torch.bfloat16, enabled=inside):
            grads.append(torch.autograd.grad(y, list(leaves.values()), dy))
    assert launches["depthwise_conv2d_grad_kernel"] == 2
    for one, two in zip(*grads, strict=True):
        assert one.dtype == two.dtype == torch.float32
        assert torch.equal(one, two)


@pytest.mark.parametrize("backend", ["triton", "torch", "auto"])
@pytest.mark.parametrize("name", ["weight", "bias", "input_bias"])
def test_mixed_dtypes_are_refused_outside_autocast(name, backend):
    tensors = inputs(B, T, BINS, C)
    tensors[name] = tensors[name].bfloat16()
    with pytest.raises(TypeError, match=f"float32 and {name} is .*bfloat16"):
        depthwise_conv2d(**tensors, backend=backend)


def test_float64_runs_in_torch_and_is_refused_by_triton(device, launches):
    tensors = inputs(B, T, BINS, C, dtype=torch.float64, device=device)
    y = depthwise_conv2d(**tensors, **OPTIONS)
    exact = oracle(**tensors, stride=(2, 2), relu="before")
    torch.testing.assert_close(y, exact)
    with pytest.raises(RuntimeError, match="float64"):
        depthwise_conv2d(**tensors, backend="triton")
    x = tensors.pop("x").float()
    with torch.autocast(device, torch.bfloat16):
        with pytest.raises(RuntimeError, match="weight is float64"):
            depthwise_conv2d(x, **tensors, backend="triton")
    assert not launches


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_empty_batch_gives_empty_output_and_zero_gradients(
    backend, device, launches
):
    tensors = inputs(0, T, BINS, C, device=device)
    lengths = torch.zeros(0, dtype=torch.int64, device=device)
    dy = torch.randn(0, *DY[1:], device=device)
    result = outcome(
        depthwise_conv2d,
        tensors,
        dy,
        backend=backend,
        lengths=lengths,
        **OPTIONS,
    )
    assert result["y"].shape == dy.shape
    for name, tensor in tensors.items():
        assert torch.equal(result["d" + name], torch.zeros_like(tensor))
    assert not launches


X = torch.zeros(B, T, BINS, C)
WEIGHT = torch.zeros(C, 1, 3, 3)
LENGTHS = torch.tensor([7, 3])


@pytest.mark.parametrize("backend", ["triton", "torch", "auto"])
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": X[0]}, r"x must be \(batch, time, freq.*\(7, 6, 24"),
        ({"x": X[:, :0]}, "at least one frame, bin and channel"),
        ({"x": X[:, :, :0]}, r"got shape \(2, 7, 0, 24\)"),
        ({"x": X[..., :0]}, "at least one frame, bin and channel"),
        ({"weight": WEIGHT[1:]}, r"weight must be \(24, 1, K_T"),
        ({"weight": WEIGHT[..., 0]}, "weight must be"),
        ({"weight": WEIGHT[..., :2]}, "1, 3 or 5 for x"),
        ({"weight": torch.zeros(C, 1, 7, 3)}, "1, 3 or 5 for x"),
        ({"weight": WEIGHT.to("meta")}, "weight is on meta and x"),
        ({"bias": torch.zeros(C + 1)}, r"bias must be \(24,\)"),
        ({"bias": torch.zeros(C, device="meta")}, "bias is on"),
        ({"input_bias": torch.zeros(1)}, "input_bias must be"),
        ({"padding": "full"}, "padding='full' is not one of"),
        ({"padding": None}, "padding=None is not one of"),
        ({"padding": "valid", "x": X[:, :2]}, "K_T = 3 frames, .*2"),
        ({"padding": "valid", "x": X[:, :, :2]}, "K_F = 3 bins, .*2"),
        ({"relu": "both"}, "relu='both' is not one of 'before', 'af"),
        ({"relu": True}, "relu=True is not one of"),
        ({"stride": 3}, "stride=3 is not 1, 2 or a pair"),
        ({"stride": 0}, "stride=0 is not"),
        ({"stride": True}, "stride=True is not"),
        ({"stride": 2.0}, "stride=2.0 is not"),
        ({"stride": (2, 3)}, r"stride=\(2, 3\) is not"),
        ({"stride": (2,)}, r"stride=\(2,\) is not"),
        ({"stride": "22"}, "stride='22' is not"),
        ({"stride": None}, "stride=None is not"),
        ({"lengths": LENGTHS[:1]}, r"lengths must be \(2,\), .*\(1,"),
        ({"lengths": LENGTHS.to("meta")}, "lengths is on meta and x"),
    ],
)
def test_bad_argument_is_named_in_one_sentence(changes, sentence, backend):
    arguments = {"x": X, "weight": WEIGHT, **changes}
    with pytest.raises(ValueError, match=sentence) as caught:
        depthwise_conv2d(**arguments, backend=backend)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lengths", [LENGTHS / 7, LENGTHS > 0])
def test_lengths_must_be_whole_numbers(lengths):
    """Not fractions of the longest, as SpeechBrain's batches have them."""
    dtype = lengths.dtype
    with pytest.raises(TypeError, match=f"whole numbers of .*, got {dtype}"):
        depthwise_conv2d(X, WEIGHT, lengths=lengths)


@pytest.mark.parametrize("backend", [None, "False", "triton ", 1.0, True])
def test_unknown_backend_is_refused(backend):
    with pytest.raises(ValueError, match="backend=.*'auto', 'triton', 'torch'"):
        depthwise_conv2d(X, WEIGHT, backend=backend)


@pytest.mark.parametrize("stride", [2, (2, 2), [2, 2], np.int64(2)])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_stride_may_be_a_number_or_a_pair(stride, backend, device):
    """YAML has lists for pairs, and configurations numpy's numbers."""
    tensors = inputs(B, T, BINS, C, device=device)
    y = depthwise_conv2d(**tensors, stride=stride, backend=backend)
    assert y.shape == DY


def test_torch_path_is_the_twin(launches):
    tensors = inputs(B, T, BINS, C)
    ours = depthwise_conv2d(**tensors, backend="torch", **OPTIONS)
    assert torch.equal(ours, depthwise_conv2d_reference(**tensors, **OPTIONS))
    assert not launches


def test_meta_tensors_give_shapes():
    """Tools that count parameters or operations run models on meta."""
    y = depthwise_conv2d(
        X.to("meta"), WEIGHT.to("meta"), lengths=LENGTHS.to("meta"), **OPTIONS
    )
    assert y.shape == DY and y.device.type == "meta"
