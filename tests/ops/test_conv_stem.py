"""The stem's kernels against its definition in float64."""

import pytest
import torch
import torch.nn.functional as F
from depthwise_cases import assert_backward_repeats, doubles, outcome
from tolerance import assert_as_exact_as_stock

from speechbrain_triton.ops.conv_stem import conv_stem, conv_stem_reference

WEIGHTS = ("weight", "depthwise_weight")
BIASES = ("bias", "depthwise_bias")


def inputs(
    B, T, bins, C, K=3, *, dtype=torch.float32, device="cpu", biases=BIASES
):
    shapes = {
        "x": (B, T, bins),
        "weight": (C, 1, K, K),
        "bias": (C,),
        "depthwise_weight": (C, 1, K, K),
        "depthwise_bias": (C,),
    }
    return {
        name: torch.randn(shape).to(device, dtype)
        for name, shape in shapes.items()
        if name not in BIASES or name in biases
    }


def call(function):
    """With the biases by name, so that they may be absent."""

    def called(x, weight, depthwise_weight, **others):
        biases = {name: others.pop(name, None) for name in BIASES}
        return function(
            x=x,
            weight=weight,
            depthwise_weight=depthwise_weight,
            **biases,
            **others,
        )

    return called


def definition(
    x, weight, depthwise_weight, bias=None, depthwise_bias=None, *,
    stride=2, padding="same", lengths=None,
):  # fmt: skip
    """One utterance and one output at a time, from windows of the input."""
    K = weight.shape[2]
    rows = []
    for b in range(x.shape[0]):
        end = x.shape[1] if lengths is None else int(lengths[b])
        h = windows(x[b, :end], x.shape[1], K, stride, padding)
        h = torch.einsum("tfij,cij->tfc", h, weight[:, 0])
        h = (h if bias is None else h + bias).clamp(min=0)
        end = frames_of(end, K, stride, padding)
        y = windows(h[:end], h.shape[0], K, stride, padding)
        y = torch.einsum("tfcij,cij->tfc", y, depthwise_weight[:, 0])
        rows.append(y if depthwise_bias is None else y + depthwise_bias)
    return torch.stack(rows)


def frames_of(n, K, stride, padding):
    """By counting the places where a kernel starts."""
    width = n if padding == "valid" else n + K - 1
    return len(range(0, width - K + 1, stride)) if n else 0


def windows(x, T, K, stride, padding):
    """(T', F', ..., K, K) of x (t, F, ...), which zeros fill up to T."""
    x = torch.cat((x, x.new_zeros(T - x.shape[0], *x.shape[1:])))
    side = 0 if padding == "valid" else (K - 1) // 2
    before, after = (K - 1, 0) if padding == "causal" else (side, side)
    x = x.movedim((0, 1), (-2, -1))
    x = F.pad(x, (side, side, before, after))
    x = x.unfold(-2, K, stride).unfold(-2, K, stride)
    return x.movedim((-4, -3), (0, 1))


def assert_stem_is_right(tensors, launches, **options):
    """Against the definition, and no further from it than stock."""
    exact_y = call(definition)(**doubles(tensors), **options)
    dy = torch.randn(exact_y.shape).to(tensors["x"])
    launches.clear()
    ours = outcome(call(conv_stem), tensors, dy, backend="triton", **options)
    assert launches == {
        "patch_kernel": 1,
        "stem_kernel": 1,
        "stem_sums_kernel": 1,
        "stem_parameters_kernel": 1,
        "patch_grad_kernel": 1,
        "fold_kernel": 1,
    }
    assert_as_exact_as_stock(
        ours,
        outcome(call(conv_stem_reference), tensors, dy, **options),
        outcome(call(definition), doubles(tensors), dy.double(), **options),
    )


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("lengths", [None, (17, 8)], ids=str)
def test_stem_is_right_for_every_padding(
    lengths, stride, padding, device, launches
):
    tensors = inputs(2, 17, 12, 24, device=device)
    lengths = None if lengths is None else torch.tensor(lengths, device=device)
    assert_stem_is_right(
        tensors, launches, stride=stride, padding=padding, lengths=lengths
    )


@pytest.mark.parametrize("K", [1, 5])
@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_stem_is_right_for_other_kernels(padding, K, device, launches):
    tensors = inputs(2, 21, 20, 16, K, device=device)
    lengths = torch.tensor([21, 14], device=device, dtype=torch.int32)
    assert_stem_is_right(tensors, launches, padding=padding, lengths=lengths)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_stem_is_right_in_half_precision(dtype, device, launches):
    tensors = inputs(2, 30, 20, 70, dtype=dtype, device=device)
    assert_stem_is_right(tensors, launches)


@pytest.mark.parametrize("C", [1, 144])
@pytest.mark.parametrize("T,bins", [(1, 1), (2, 9), (17, 40)])
def test_stem_is_right_for_every_size(T, bins, C, device, launches):
    assert_stem_is_right(inputs(3, T, bins, C, device=device), launches)


@pytest.mark.parametrize("biases", [(), BIASES[:1], BIASES[1:]], ids=str)
def test_stem_is_right_without_biases(biases, device, launches):
    tensors = inputs(2, 13, 9, 16, biases=biases, device=device)
    assert_stem_is_right(tensors, launches)


@pytest.mark.parametrize("lengths", [(1, 7, 8), (9, 23, 0)], ids=str)
def test_a_padded_row_is_that_row_alone(lengths, device):
    tensors = inputs(3, 23, 16, 16, device=device)
    ends = torch.tensor(lengths, device=device)
    y = conv_stem(**tensors, lengths=ends, backend="triton")
    for b, end in enumerate(lengths):
        if end == 0:
            continue
        row = dict(tensors, x=tensors["x"][b : b + 1, :end])
        alone = conv_stem(**row, backend="triton")[0]
        torch.testing.assert_close(
            y[b, : len(alone)], alone, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("name", ["x", "weight", "bias"])
def test_nan_is_not_rectified_away(name, device):
    tensors = inputs(1, 12, 8, 16, device=device)
    tensors[name].view(-1)[0] = float("nan")
    assert conv_stem(**tensors, backend="triton").isnan().any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_lengths_may_have_any_strides_and_integer_dtype(dtype, device):
    tensors = inputs(3, 21, 8, 16, device=device)
    lengths = torch.tensor([21, 0, 9, 0, 2, 0], device=device).to(dtype)[::2]
    expected = conv_stem(
        **tensors, lengths=lengths.long().clone(), backend="torch"
    )
    for backend in ("triton", "torch"):
        y = conv_stem(**tensors, lengths=lengths, backend=backend)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


def test_second_gradients_ignore_an_autocast_around_backward(device):
    tensors = inputs(1, 12, 8, 16, device=device)
    leaves = [t.requires_grad_() for t in tensors.values()]
    y = conv_stem(**tensors, backend="triton")
    plain = torch.autograd.grad(y.sum(), leaves, retain_graph=True)
    with torch.autocast(device, torch.bfloat16):
        graphed = torch.autograd.grad(y.sum(), leaves, create_graph=True)
    for a, b in zip(plain, graphed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_zero_preactivations_pass_no_gradient(device):
    """PyTorch's ReLU has slope 0 at 0: silence must not move the bias."""
    tensors = inputs(1, 12, 8, 16, device=device)
    tensors["x"].zero_()
    tensors["bias"].zero_()
    dy = torch.ones(1, 3, 2, 16, device=device)
    grads = outcome(conv_stem, tensors, dy, backend="triton")
    assert not grads["dbias"].any() and not grads["dweight"].any()
    assert grads["ddepthwise_bias"].eq(6).all()


def test_small_preactivations_pass_their_gradient_whole(device, launches):
    tensors = inputs(2, 12, 8, 16, device=device)
    tensors["weight"] *= 1e-20
    tensors["bias"] *= 1e-20
    assert_stem_is_right(tensors, launches)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_reads_float32_and_returns_half(dtype, device):
    tensors = inputs(2, 13, 9, 16, device=device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    with torch.autocast(device, dtype):
        y = conv_stem(**leaves, backend="triton")
        expected = conv_stem(**leaves, backend="torch")
    assert y.dtype is expected.dtype is dtype
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.1)
    y.float().sum().backward()
    assert all(t.grad.dtype is torch.float32 for t in leaves.values())


def test_any_strides_are_read(device, launches):
    tensors = inputs(2, 9, 26, 16, device=device)
    wide = tensors["x"]
    for x in (wide.mT, wide[:, :, ::2], wide[:1].expand(3, -1, -1)):
        assert_stem_is_right(dict(tensors, x=x), launches)


def test_only_wanted_gradients_are_computed(device, launches):
    tensors = inputs(2, 9, 8, 16, device=device)
    tensors["x"].requires_grad_()
    conv_stem(**tensors, backend="triton").sum().backward()
    assert "stem_sums_kernel" not in launches
    tensors = inputs(2, 9, 8, 16, device=device)
    tensors["weight"].requires_grad_()
    launches.clear()
    conv_stem(**tensors, backend="triton").sum().backward()
    assert launches["stem_sums_kernel"] == 1
    assert "patch_grad_kernel" not in launches


def test_inputs_are_left_as_they_were_and_backward_repeats(device):
    assert_backward_repeats(conv_stem, inputs(2, 9, 8, 16, device=device))


def test_double_backward_is_the_twins(device):
    def second(function, dtype, **options):
        torch.manual_seed(1)
        tensors = inputs(1, 9, 8, 16, dtype=dtype, device=device)
        leaves = [t.requires_grad_() for t in tensors.values()]
        y = function(**tensors, **options)
        (dx,) = torch.autograd.grad(
            y.pow(2).sum(), leaves[0], create_graph=True
        )
        return torch.autograd.grad(dx.pow(2).sum(), leaves, allow_unused=True)

    ours = second(conv_stem, torch.float32, backend="triton")
    exact = second(conv_stem_reference, torch.float64)
    for a, b in zip(ours, exact, strict=True):
        if b is not None:
            assert (a.double() - b).norm() <= 1e-4 * b.norm()


def test_gradcheck_of_the_twin():
    torch.manual_seed(0)
    tensors = inputs(2, 7, 6, 3, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in tensors.values()]
    lengths = torch.tensor([7, 4])

    def stem(*arguments):
        return conv_stem_reference(*arguments, lengths=lengths)

    assert torch.autograd.gradcheck(stem, leaves)


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
@pytest.mark.parametrize("lengths", [None, (17, 8)], ids=str)
def test_the_twin_is_its_definition(lengths, padding):
    tensors = inputs(2, 17, 12, 4, dtype=torch.float64)
    lengths = None if lengths is None else torch.tensor(lengths)
    options = {"padding": padding, "lengths": lengths}
    torch.testing.assert_close(
        conv_stem_reference(**tensors, **options),
        definition(**tensors, **options),
    )


def test_empty_batch_gives_zero_gradients(device):
    tensors = inputs(0, 9, 8, 16, device=device)
    dy = torch.empty(0, 3, 2, 16, device=device)
    result = outcome(conv_stem, tensors, dy, backend="triton")
    assert result["y"].shape == (0, 3, 2, 16)
    assert not any(g.any() for n, g in result.items() if n.startswith("d"))


def test_float64_takes_the_twin_or_is_refused(device):
    tensors = inputs(1, 9, 8, 16, dtype=torch.float64, device=device)
    y = conv_stem(**tensors)
    assert y.dtype is torch.float64
    with pytest.raises(RuntimeError, match="float64"):
        conv_stem(**tensors, backend="triton")


WRONG = {
    "x": (torch.zeros(9, 8), ValueError, r"x must be \(batch, time, feature"),
    "weight": (torch.zeros(16, 1, 3, 5), ValueError, "K 1, 3 or 5"),
    "bias": (torch.zeros(15), ValueError, r"bias must be \(16,\)"),
    "depthwise_weight": (
        torch.zeros(16, 1, 5, 5),
        ValueError,
        r"depthwise_weight must be \(16, 1, 3, 3\)",
    ),
    "depthwise_bias": (
        torch.zeros(16, dtype=torch.float64),
        TypeError,
        "depthwise_bias is torch.float64",
    ),
    "stride": (3, ValueError, "stride=3 is not one of 1, 2"),
    "padding": ("reflect", ValueError, "padding='reflect'"),
    "lengths": (torch.ones(2), TypeError, "lengths must be whole numbers"),
    "backend": ("cuda", ValueError, "backend='cuda'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name):
    value, error, message = WRONG[name]
    arguments = {**inputs(2, 9, 8, 16), name: value}
    with pytest.raises(error, match=message):
        conv_stem(**arguments)


def test_too_short_inputs_are_refused():
    tensors = inputs(2, 6, 8, 16)
    with pytest.raises(ValueError, match="x has T = 6: too few"):
        conv_stem(**tensors, padding="valid")
    with pytest.raises(ValueError, match="x has T = 0: too few"):
        conv_stem(**dict(tensors, x=tensors["x"][:, :0]))


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=str)
def test_compiled_stem_is_the_eager_one(dtype, device, launches):
    """In one graph, with gradients, whatever the length."""
    torch.compiler.reset()
    graphs = []

    def counted(graph, example):
        graphs.append(graph)
        inner = "inductor" if device == "cuda" else "aot_eager"
        return torch._dynamo.lookup_backend(inner)(graph, example)

    compiled = torch.compile(
        conv_stem, backend=counted, fullgraph=True, dynamic=True
    )
    for B, T in ((2, 9), (3, 12), (2, 31)):
        tensors = inputs(B, T, 8, 16, device=device)
        dy = torch.randn(B, -(-T // 4), 2, 16, device=device, dtype=dtype)
        with torch.autocast(
            device, dtype or torch.bfloat16, enabled=dtype is not None
        ):
            expected = outcome(conv_stem, tensors, dy, backend="triton")
            launches.clear()
            found = outcome(compiled, tensors, dy, backend="triton")
        assert launches["stem_kernel"] == launches["fold_kernel"] == 1
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
    assert len(graphs) == 1
    torch.compiler.reset()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str
)
@pytest.mark.parametrize("K", [3, 5])
def test_stem_is_right_at_the_size_of_a_training_batch(K, dtype, launches):
    tensors = inputs(8, 800, 80, 256, K, dtype=dtype, device="cuda")
    lengths = torch.randint(1, 800, (8,), device="cuda")
    dy = torch.randn(8, 200, 20, 256, device="cuda", dtype=dtype)
    ours = outcome(conv_stem, tensors, dy, lengths=lengths, backend="auto")
    assert launches["stem_kernel"] == launches["stem_sums_kernel"] == 1
    twin = conv_stem_reference
    assert_as_exact_as_stock(
        ours,
        outcome(twin, tensors, dy, lengths=lengths),
        outcome(twin, doubles(tensors), dy.double(), lengths=lengths),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("tf32", [False, True])
def test_float32_products_are_float32_whatever_is_allowed(tf32, monkeypatch):
    """PyTorch's convolutions from 1 channel and depthwise have no TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    tensors = inputs(4, 200, 80, 128, device="cuda")
    dy = torch.randn(4, 50, 20, 128, device="cuda")
    exact = outcome(conv_stem_reference, doubles(tensors), dy.double())
    ours = outcome(conv_stem, tensors, dy, backend="triton")
    for name, value in exact.items():
        error = (ours[name].double() - value).norm() / value.norm()
        assert error < 1e-6, name


@pytest.mark.gpu
def test_a_hidden_layer_of_more_than_two_billion_elements(launches):
    """2.2 billion of them; only the last utterance is compared."""
    B, T, bins, C = 66, 3300, 80, 256
    assert 2 * B * (T // 2) * (bins // 2) * C > 2**31
    tensors = inputs(2 * B, T, bins, C, dtype=torch.bfloat16, device="cuda")
    tensors["x"][:-1] = 0
    dy = torch.zeros(
        2 * B, T // 4, bins // 4, C, dtype=torch.bfloat16, device="cuda"
    )
    dy[-1].normal_()
    ours = outcome(conv_stem, tensors, dy, backend="triton")
    last = dict(tensors, x=tensors["x"][-1:])
    twin = conv_stem_reference
    stock = outcome(twin, last, dy[-1:])
    exact = outcome(twin, doubles(last), dy[-1:].double())
    ours["y"], ours["dx"] = ours["y"][-1:], ours["dx"][-1:]
    assert_as_exact_as_stock(ours, stock, exact)
