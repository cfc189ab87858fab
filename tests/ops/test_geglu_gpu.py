"""Both gated layers on a GPU: the fused kernel, and what only a GPU shows."""

import pytest
import torch
from depthwise_cases import doubles, outcome
from geglu_cases import (
    FFN,
    FUSED,
    HALVES,
    LINEAR,
    assert_right,
    ffn_inputs,
    kernels_of,
    linear_inputs,
)
from tolerance import assert_as_exact_as_stock, relative_error

from speechbrain_triton.ops import geglu_ffn, geglu_linear
from speechbrain_triton.ops.dropout import keep_mask
from speechbrain_triton.ops.geglu_ffn import geglu_ffn_reference
from speechbrain_triton.ops.geglu_linear import launch

pytestmark = pytest.mark.gpu

GIB = 2**30
ON_HOPPER = (
    torch.cuda.is_available()
    and torch.version.hip is None
    and torch.cuda.get_device_capability() == (9, 0)
)
hopper = pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper GPU")


@pytest.fixture
def fused(monkeypatch):
    """The fused kernel wherever it can run, also where it is not faster."""
    monkeypatch.setattr(launch, "is_fused", lambda x, weight: True)


def inputs(M, K, F, dtype=torch.bfloat16, **options):
    return linear_inputs(M, K, F=F, dtype=dtype, device="cuda", **options)


@hopper
@pytest.mark.parametrize("M", [1, 5, 64, 127, 128, 129, 400, 1000])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_fused_is_right_for_every_number_of_rows(dtype, M, fused, launches):
    assert_right(LINEAR, inputs(M, 200, 256, dtype), launches)
    assert launches[FUSED] == 1


@hopper
@pytest.mark.parametrize("K", [72, 128, 136, 192, 512, 1000, 1024, 2048])
def test_fused_is_right_for_every_depth(K, fused, launches):
    assert_right(LINEAR, inputs(300, K, 256, torch.float16), launches)


@hopper
@pytest.mark.parametrize("F", [64, 128, 192, 384, 704, 1408, 2048])
def test_fused_is_right_for_every_width(F, fused, launches):
    options = dict(dropout=0.1, seed=2**33 + 5)
    assert_right(LINEAR, inputs(300, 144, F), launches, **options)


@hopper
@pytest.mark.parametrize("F", [256, 192])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("bias", [None, "as x", "float32"])
def test_fused_is_right_with_every_option(
    bias, approximate, dropout, F, fused, launches
):
    options = dict(approximate=approximate, dropout=dropout, seed=3)
    tensors = inputs(300, 200, F, bias=bias is not None)
    if bias != "float32":
        assert_right(LINEAR, tensors, launches, **options)
        return
    tensors |= {n: tensors[n].float() for n in ("weight", "bias")}
    with torch.autocast("cuda", torch.bfloat16):
        assert_right(LINEAR, tensors, launches, **options)


@hopper
@pytest.mark.parametrize(
    ("M", "K", "F"), [(20_001, 512, 2048), (6400, 256, 1408), (25_600, 72, 704)]
)
def test_fused_is_right_with_many_tiles_a_program(M, K, F, launches):
    """Chosen by the rule alone."""
    assert_right(LINEAR, inputs(M, K, F), launches, dropout=0.1, seed=1)
    assert launches[FUSED] == 1


@hopper
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("case", [LINEAR, FFN], ids=["linear", "ffn"])
def test_backward_gates_what_forward_rounded(case, scale, dtype, launches):
    """4096 rows of large z, where another rounding would show."""
    tensors = case.inputs(4096, 512, F=2048, dtype=dtype, device="cuda")
    tensors["x"] = (scale * tensors["x"].float()).to(dtype)
    assert_right(case, tensors, launches, scale=0.01)
    assert launches[FUSED] == 1


@hopper
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_fused_and_unfused_agree(dtype, monkeypatch, launches):
    """In the mask exactly, in values to a rounding of z and one of h."""
    tensors = inputs(1000, 520, 640, dtype)
    dy = torch.randn(1000, 640, device="cuda", dtype=dtype)
    results = []
    for fused in (True, False):
        monkeypatch.setattr(launch, "is_fused", lambda x, w, f=fused: f)
        results.append(
            outcome(
                geglu_linear,
                tensors,
                dy,
                dropout=0.2,
                seed=9,
                backend="triton",
            )
        )
    assert launches[FUSED] == launches["geglu_kernel"] == 1
    ours, other = results
    kept = keep_mask(1000, 640, 0.2, 9, "cuda")
    # A product of kept elements may round to zero in fp16, seldom.
    assert not (ours["y"] != 0)[~kept].any()
    assert (ours["y"] == 0)[kept].float().mean() < 1e-4
    assert not (other["y"] != 0)[~kept].any()
    for name in ours:
        error = relative_error(ours[name], other[name].double())
        assert error < torch.finfo(dtype).eps, name


@hopper
def test_inference_gives_the_bits_of_training(fused, launches):
    tensors = inputs(1000, 200, 384)
    options = dict(dropout=0.1, seed=4, backend="triton")
    with torch.no_grad():
        inference = geglu_linear(**tensors, **options)
    tensors["x"].requires_grad_()
    assert torch.equal(geglu_linear(**tensors, **options), inference)
    assert launches == {FUSED: 2}


@hopper
@pytest.mark.parametrize("dropout", [0.0, 1e-9, 1.0])
def test_fused_at_the_edges_of_dropout(dropout, fused, launches):
    tensors = inputs(300, 200, 256)
    dy = torch.randn(300, 256, device="cuda").bfloat16()
    plain, ours = (
        outcome(geglu_linear, tensors, dy, seed=1, dropout=p, backend="triton")
        for p in (0.0, dropout)
    )
    for name, value in ours.items():
        if dropout == 1:
            assert value.eq(0).all(), name
        else:
            assert torch.equal(value, plain[name]), name


@hopper
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_stays_in_its_row(bad, approximate, fused, launches):
    tensors = inputs(300, 200, 256)
    tensors["x"][140, 7] = bad
    dy = torch.randn(300, 256, device="cuda").bfloat16()
    ours = outcome(
        geglu_linear, tensors, dy, approximate=approximate, backend="triton"
    )
    rows = torch.arange(300, device="cuda") != 140
    assert ours["y"][rows].isfinite().all()
    assert ours["dx"][rows].isfinite().all()
    assert not ours["y"][140].isfinite().all()
    if bad != bad:
        assert ours["y"][140].isnan().all()
    assert launches[FUSED] == 1


@hopper
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_fused_gelu_is_right_from_tail_to_tail(approximate, fused, launches):
    """z is the bias, so that nothing else has an error."""
    z = torch.cat((torch.linspace(-9, 9, 1000), torch.tensor([30.0, -30.0])))
    z = torch.cat((z, 10 ** torch.linspace(-4, 4, 22))).half().cuda()
    bias = torch.cat((torch.ones_like(z), z))
    x = torch.zeros(128, 128, dtype=torch.float16, device="cuda")
    weight = torch.zeros(2048, 128, dtype=torch.float16, device="cuda")
    ours = geglu_linear(
        x, weight, bias, approximate=approximate, backend="triton"
    )
    exact = torch.nn.functional.gelu(z.double(), approximate=approximate)
    error = (ours.double() - exact).abs()
    # Half a unit in the last place, also of numbers below the normal ones,
    # beside a fit's own error.
    size = exact.abs()
    allowed = size * 2**-11 + 2**-25
    allowed += (6e-5 * size).maximum((1e-5 * z.double().abs()).clamp(max=7e-6))
    assert (error <= allowed).all()
    assert launches == {FUSED: 1}


@hopper
@pytest.mark.parametrize("M", [0, 1])
def test_as_few_rows_as_can_be(M, launches):
    tensors = inputs(M, 200, 1024)
    tensors["x"] = torch.randn(200, M, device="cuda").bfloat16().t()
    dy = torch.randn(M, 1024, device="cuda").bfloat16()
    ours = outcome(geglu_linear, tensors, dy, backend="triton")
    assert_as_exact_as_stock(
        ours,
        outcome(LINEAR.twin, tensors, dy),
        outcome(LINEAR.definition, doubles(tensors), dy.double()),
    )


@hopper
def test_fused_reads_a_row_of_any_stride(fused, launches):
    """To the next row, which there is not: it is contiguous."""
    x = torch.randn(200, 1, device="cuda").half().t()
    assert x.is_contiguous() and x.stride() == (1, 1)
    tensors = inputs(1, 200, 256, torch.float16) | {"x": x}
    assert_right(LINEAR, tensors, launches)


@hopper
@pytest.mark.parametrize("name", ["x", "weight", "bias"])
def test_what_is_off_its_alignment_is_read_too(name, launches):
    tensors = inputs(4096, 128, 1024)
    buffer = tensors[name].new_zeros(tensors[name].numel() + 1)
    shifted = buffer[1:].view(tensors[name].shape).copy_(tensors[name])
    assert_right(LINEAR, tensors | {name: shifted}, launches)
    assert (FUSED in launches) == (name == "bias")


@hopper
def test_views_and_dimensions_as_speechbrain_passes_them(launches):
    """(T, B, F), the transpose of what the layer norm gives."""
    tensors = ffn_inputs(
        64, 100, 512, F=2048, D=512, dtype=torch.bfloat16, device="cuda"
    )
    tensors["x"] = tensors["x"].transpose(0, 1)
    y = assert_right(FFN, tensors, launches, dropout=0.1, seed=2)["y"]
    assert y.shape == (100, 64, 512) and launches[FUSED] == 1


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(2000, 60, 700), (500, 512, 250)], ids=str)
def test_other_shapes_are_right_without_it(shape, dtype, launches):
    assert_right(LINEAR, inputs(*shape, dtype), launches, dropout=0.1, seed=1)
    assert launches["geglu_kernel"] == 1


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("case", [LINEAR, FFN], ids=["linear", "ffn"])
def test_autocast_takes_the_kernels(case, half, launches):
    tensors = case.inputs(8, 400, 512, F=2048, device="cuda")
    with torch.autocast("cuda", half):
        dy = torch.randn_like(case.twin(**tensors))
        launches.clear()
        ours = outcome(case.op, tensors, dy)
        stock = outcome(case.twin, tensors, dy)
    assert launches[FUSED if ON_HOPPER else "geglu_kernel"] == 1
    assert launches["geglu_grad_kernel"] == 1
    assert ours["y"].dtype is half and ours["dx"].dtype is torch.float32
    exact = outcome(case.definition, doubles(tensors), dy.double())
    assert_as_exact_as_stock(ours, stock, exact)


@pytest.mark.parametrize("case", [LINEAR, FFN], ids=["linear", "ffn"])
@pytest.mark.parametrize("tf32", [False, True])
def test_float32_follows_the_setting_for_tf32(
    tf32, case, monkeypatch, launches
):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    tensors = case.inputs(4096, 512, F=1024, device="cuda")
    ours = assert_right(case, tensors, launches)
    exact = case.definition(**doubles(tensors))
    error = relative_error(ours["y"], exact)
    assert (1e-5 < error < 1e-3) if tf32 else error < 2e-6


def test_sums_of_the_bias_keep_their_precision(launches):
    """25,600 rows around a mean, with a gradient of 1e-3 each."""
    tensors = inputs(25_600, 512, 2048)
    tensors["x"] = (1 + 0.01 * torch.randn_like(tensors["x"])).bfloat16()
    dy = torch.full((25_600, 2048), 1e-3, device="cuda").bfloat16()
    bias = tensors["bias"].float()
    with torch.autocast("cuda", torch.bfloat16):
        called = tensors | {"bias": bias}
        ours = outcome(geglu_linear, called, dy, backend="triton")["dbias"]
        # The sum of single utterances', each a call of its own.
        parts = [
            outcome(geglu_linear, called | {"x": x}, part, backend="triton")
            for x, part in zip(
                tensors["x"].split(6400), dy.split(6400), strict=True
            )
        ]
    total = torch.stack([part["dbias"].double() for part in parts]).sum(0)
    assert ours.dtype is torch.float32
    assert relative_error(ours, total) < 2e-6
    stock = outcome(LINEAR.twin, tensors, dy)["dbias"]
    exact = outcome(LINEAR.definition, doubles(tensors), dy.double())["dbias"]
    assert relative_error(ours, exact) <= 1.1 * relative_error(stock, exact)


@pytest.mark.parametrize("keep", [True, False], ids=["training", "inference"])
def test_more_than_two_billion_elements_are_addressed(keep, launches):
    """Only the end of the rows is compared; it lies beyond 2**31."""
    if torch.cuda.mem_get_info()[0] < 24 * GIB:
        pytest.skip("needs 24 GiB of free GPU memory")
    K, F, tail = 72, 2048, 300
    M = 2**31 // (2 * F if keep else F) + 1001
    tensors = inputs(tail, K, F)
    x = torch.zeros(M, K, dtype=torch.bfloat16, device="cuda")
    x[-tail:] = tensors["x"]
    parameters = [tensors[n].requires_grad_(keep) for n in ("weight", "bias")]
    y = geglu_linear(x, *parameters, dropout=0.1, seed=7, backend="triton")
    kept = keep_mask(M, 256, 0.1, 7, "cuda")[-tail:]
    assert not y[-tail:, :256][~kept].any()
    # Without x only the biases are left, where they are kept.
    first, second = tensors["bias"].double().chunk(2)
    h = first * torch.nn.functional.gelu(second) / (1 - 6554 / 65536)
    torch.testing.assert_close(
        y[0].double(), h * (y[0] != 0), rtol=2e-2, atol=0
    )
    end = {n: t.detach() for n, t in tensors.items()}
    exact = LINEAR.definition(**doubles(end)) / (1 - 6554 / 65536)
    exact = exact[:, :256] * kept
    assert relative_error(y[-tail:, :256].detach(), exact) < 6e-3
    if not keep:
        return
    dy = torch.zeros_like(y)
    dy[-tail:].normal_()
    dweight, dbias = torch.autograd.grad(y, parameters, dy)
    leaves = [t.double().requires_grad_() for t in end.values()]
    masked = dy[-tail:].double() * (y[-tail:] != 0) / (1 - 6554 / 65536)
    grads = torch.autograd.grad(LINEAR.definition(*leaves), leaves, masked)
    assert relative_error(dweight, grads[1]) < 6e-3
    assert relative_error(dbias, grads[2]) < 6e-3
    assert launches["geglu_grad_kernel"] == 1


@pytest.mark.parametrize("case", [LINEAR, FFN], ids=["linear", "ffn"])
def test_same_bits_on_every_call(case, launches):
    tensors = case.inputs(
        25, 333, 512, F=2048, dtype=torch.bfloat16, device="cuda"
    )
    dy = torch.randn_like(case.twin(**tensors))
    options = dict(dropout=0.1, seed=3, backend="triton")
    first = outcome(case.op, tensors, dy, **options)
    for _ in range(10):
        again = outcome(case.op, tensors, dy, **options)
        for name in first:
            assert torch.equal(first[name], again[name]), name
    assert launches["geglu_grad_kernel"] == 11


def test_runs_in_order_on_a_stream_of_its_own(launches):
    """The producer is slow: a launch on another stream would read zeros."""
    tensors = inputs(4096, 512, 1024)
    expected = geglu_linear(**tensors, backend="triton")
    late = torch.zeros_like(tensors["x"])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(tensors["x"])
        y = geglu_linear(**tensors | {"x": late}, backend="triton")
    stream.synchronize()
    assert torch.equal(y, expected)


def test_two_streams_do_not_disturb_each_other(launches):
    """No buffer, barrier or descriptor is shared between launches."""
    pair = [inputs(6000 + 700 * i, 512, 1024) for i in range(2)]
    expected = [geglu_linear(**t, backend="triton") for t in pair]
    streams = [torch.cuda.Stream() for _ in pair]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(10):
        for tensors, stream, found in zip(pair, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(geglu_linear(**tensors, backend="triton"))
    torch.cuda.synchronize()
    for found, y in zip(results, expected, strict=True):
        assert all(torch.equal(again, y) for again in found)


@pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two GPUs in one machine"
)
def test_runs_on_the_device_of_its_tensors(launches):
    tensors = {n: t.to("cuda:1") for n, t in inputs(4096, 512, 1024).items()}
    assert torch.cuda.current_device() == 0
    assert_right(LINEAR, tensors, launches)
    assert torch.cuda.current_device() == 0


def test_memory_is_that_of_z_and_the_result(launches):
    """Of the hidden layer nothing else outlives forward."""
    M, K, F = 25_600, 512, 2048
    tensors = ffn_inputs(M, K, F=F, D=K, dtype=torch.bfloat16, device="cuda")
    leaves = {n: t.requires_grad_() for n, t in tensors.items()}
    spare = 2**20

    def kept():
        before = torch.cuda.memory_allocated()
        y = geglu_ffn(**leaves, dropout=0.1, backend="triton")
        return y, torch.cuda.memory_allocated() - before

    kept()
    y, size = kept()
    assert size <= 2 * (M * 2 * F + M * K) + spare
    with torch.no_grad():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        geglu_ffn(**leaves, backend="triton")
        peak = torch.cuda.max_memory_allocated() - before
    hidden = F if ON_HOPPER else 3 * F
    assert peak <= 2 * (M * hidden + M * K) + 64 * spare
    assert launches["geglu_grad_kernel"] == 0
    dy = torch.ones_like(y)
    ours = torch.autograd.grad(y, leaves["x"], dy)[0]
    assert ours.isfinite().all()


def test_gradients_at_the_size_of_a_training_batch(launches):
    tensors = ffn_inputs(
        64, 400, 512, F=2048, D=512, dtype=torch.bfloat16, device="cuda"
    )
    dy = torch.randn(64, 400, 512, device="cuda").bfloat16()
    options = dict(dropout=0.1, seed=1)
    ours = outcome(geglu_ffn, tensors, dy, backend="auto", **options)
    assert launches == kernels_of(tensors)
    assert_as_exact_as_stock(
        ours,
        outcome(geglu_ffn_reference, tensors, dy, **options),
        outcome(geglu_ffn_reference, doubles(tensors), dy.double(), **options),
    )
