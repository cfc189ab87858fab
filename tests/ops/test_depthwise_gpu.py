"""The kernels on a GPU at real sizes, and what only a GPU can show."""

import pytest
import torch
import torch.nn.functional as F
from depthwise_cases import doubles, inputs, outcome
from tolerance import assert_as_exact_as_stock, relative_error

from speechbrain_triton.ops import depthwise_conv1d
from speechbrain_triton.ops.depthwise_conv1d import depthwise_conv1d_reference

pytestmark = pytest.mark.gpu

# One H200's memory is 139 GiB; the largest test takes 25.
GIB = 2**30


def assert_kernel_is_right(tensors, launches, **options):
    """Against the twin in float64, which has its own tests."""
    dy = torch.randn_like(tensors["x"])
    launches.clear()
    ours = outcome(depthwise_conv1d, tensors, dy, backend="auto", **options)
    assert launches["conv_kernel"] == 2
    assert launches["weight_grad_kernel"] == 1
    stock = outcome(depthwise_conv1d_reference, tensors, dy, **options)
    exact = outcome(
        depthwise_conv1d_reference, doubles(tensors), dy.double(), **options
    )
    assert_as_exact_as_stock(ours, stock, exact)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32]
)
@pytest.mark.parametrize("chunk_size", [None, 8, 16])
def test_kernel_is_right_at_the_size_of_a_training_batch(
    chunk_size, dtype, launches
):
    tensors = inputs(64, 400, 512, 31, dtype=dtype, device="cuda")
    assert_kernel_is_right(tensors, launches, chunk_size=chunk_size)


@pytest.mark.parametrize("C", [144, 256, 640, 1000, 1024])
@pytest.mark.parametrize("T", [401, 4000])
def test_kernel_is_right_for_every_width_and_length(T, C, launches):
    tensors = inputs(4, T, C, 31, dtype=torch.bfloat16, device="cuda")
    assert_kernel_is_right(tensors, launches, chunk_size=24)


@pytest.mark.parametrize("K", [1, 2, 5, 9, 15, 30, 32, 33, 64, 65, 80])
def test_kernel_is_right_for_every_number_of_taps(K, launches):
    tensors = inputs(8, 211, 256, K, dtype=torch.float16, device="cuda")
    assert_kernel_is_right(tensors, launches, chunk_size=16)


def test_weight_gradients_keep_their_precision_over_a_long_batch(launches):
    """100,000 frames around a mean of 1, with a gradient of 1e-3 each."""
    B, T, C = 64, 1600, 512
    tensors = inputs(B, T, C, 31, dtype=torch.bfloat16, device="cuda")
    noise = torch.randn(B, T, C, device="cuda")
    tensors["x"] = (1 + 0.01 * noise).bfloat16()
    dy = torch.full_like(tensors["x"], 1e-3)
    ours = outcome(depthwise_conv1d, tensors, dy, backend="triton")
    assert launches["weight_grad_kernel"] == 1
    stock = outcome(depthwise_conv1d_reference, tensors, dy)
    exact = {"dweight": 0.0, "dbias": 0.0}
    for b in range(B):  # row by row, to fit float64 into memory
        row = {**doubles(tensors), "x": tensors["x"][b : b + 1].double()}
        grads = outcome(depthwise_conv1d_reference, row, dy[b : b + 1].double())
        for name in exact:
            exact[name] = exact[name] + grads[name]
    assert_as_exact_as_stock(
        {name: ours[name] for name in exact},
        {name: stock[name] for name in exact},
        exact,
    )

    # The same sum over single rows, in float32.
    weight = tensors["weight"].float().requires_grad_()
    total = torch.zeros_like(weight)
    with torch.autocast("cuda", torch.bfloat16):
        whole = depthwise_conv1d(tensors["x"], weight, backend="triton")
        (batch,) = torch.autograd.grad(whole, weight, dy)
        for b in range(B):
            y = depthwise_conv1d(
                tensors["x"][b : b + 1], weight, backend="triton"
            )
            total += torch.autograd.grad(y, weight, dy[b : b + 1])[0]
    assert relative_error(batch, total.double()) < 3e-6
    assert relative_error(batch, exact["dweight"]) < 3e-6


def test_more_than_two_billion_elements_are_addressed(launches):
    """Only the end of the last row is compared; it lies beyond 2**31."""
    if torch.cuda.mem_get_info()[0] < 30 * GIB:
        pytest.skip("needs 30 GiB of free GPU memory")
    B, T, C, K, tail = 2, 1_100_000, 1024, 7, 300
    assert B * T * C > 2**31
    weight = torch.randn(C, 1, K, device="cuda").bfloat16().requires_grad_()
    x = torch.zeros(B, T, C, dtype=torch.bfloat16, device="cuda")
    x[-1, -tail:].normal_()
    x.requires_grad_()
    y = depthwise_conv1d(x, weight, backend="triton")
    dy = torch.zeros_like(y)
    dy[-1, -tail + K :].normal_()
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    assert launches["conv_kernel"] == 2

    end = {"x": x[-1:, -tail:].detach(), "weight": weight.detach()}
    exact = outcome(
        depthwise_conv1d_reference, doubles(end), dy[-1:, -tail:].double()
    )
    assert relative_error(y[-1:, -tail:].detach(), exact["y"]) < 4e-3
    assert relative_error(dx[-1:, -tail:], exact["dx"]) < 4e-3
    assert relative_error(dweight, exact["dweight"]) < 4e-3
    assert not y[0].any() and not dx[0].any()


def test_strides_beyond_two_billion_are_addressed(launches):
    """A narrow slice of rows that lie 2**31 elements apart."""
    if torch.cuda.mem_get_info()[0] < 16 * GIB:
        pytest.skip("needs 16 GiB of free GPU memory")
    B, T, C = 3, 50, 64
    row = 2**31 + 4096
    buffer = torch.empty(2 * row + T * C, dtype=torch.float16, device="cuda")
    x = buffer.as_strided((B, T, C), (row, C, 1)).normal_()
    weight = torch.randn(C, 1, 7, device="cuda").half()
    tensors = {"x": x, "weight": weight}
    assert_kernel_is_right(tensors, launches, chunk_size=16)


def test_same_bits_on_every_call(launches):
    tensors = inputs(32, 333, 512, 31, dtype=torch.bfloat16, device="cuda")
    dy = torch.randn_like(tensors["x"])
    options = dict(chunk_size=16, backend="triton")
    first = outcome(depthwise_conv1d, tensors, dy, **options)
    for _ in range(10):
        again = outcome(depthwise_conv1d, tensors, dy, **options)
        for name in first:
            assert torch.equal(first[name], again[name]), name
    assert launches["conv_kernel"] == 22


def test_runs_in_order_on_a_stream_of_its_own(launches):
    """The producer is slow: a launch on another stream would read zeros."""
    tensors = inputs(8, 200, 256, 15, device="cuda")
    expected = depthwise_conv1d(**tensors, backend="triton")
    late = torch.zeros_like(tensors["x"])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(tensors["x"])
        y = depthwise_conv1d(**{**tensors, "x": late}, backend="triton")
    stream.synchronize()
    assert torch.equal(y, expected)
    assert launches["conv_kernel"] == 2


@pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two GPUs in one machine"
)
def test_runs_on_the_device_of_its_tensors(launches):
    tensors = inputs(4, 100, 256, 15, device="cuda:1")
    dy = torch.randn_like(tensors["x"])
    torch.cuda.synchronize(0)
    before = torch.cuda.memory_allocated(0)
    assert torch.cuda.current_device() == 0
    ours = outcome(depthwise_conv1d, tensors, dy, backend="triton")
    stock = outcome(depthwise_conv1d_reference, tensors, dy)
    exact = outcome(depthwise_conv1d_reference, doubles(tensors), dy.double())
    assert_as_exact_as_stock(ours, stock, exact)
    assert torch.cuda.current_device() == 0
    assert torch.cuda.memory_allocated(0) == before
    with pytest.raises(ValueError, match="weight is on cuda:1 and x on cuda:0"):
        depthwise_conv1d(**{**tensors, "x": tensors["x"].to("cuda:0")})


def test_chunks_allocate_nothing_more(launches):
    """They are a mask inside the kernel, no unfolded copy."""
    tensors = inputs(64, 400, 512, 31, dtype=torch.bfloat16, device="cuda")
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    dy = torch.randn_like(tensors["x"])

    def peak(chunk_size):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = depthwise_conv1d(**leaves, chunk_size=chunk_size, backend="triton")
        torch.autograd.grad(y, list(leaves.values()), dy)
        return torch.cuda.max_memory_allocated() - before

    plain = peak(None)
    assert peak(8) == plain
    # y and dx, and for the weights' partial sums and taps at most 60 %.
    size = tensors["x"].numel() * tensors["x"].element_size()
    assert plain < 2.6 * size
    assert launches["conv_kernel"] == 4


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_takes_the_kernels(half, launches):
    tensors = inputs(4, 100, 256, 31, device="cuda")
    dy = torch.randn(4, 100, 256, device="cuda").to(half)

    def stock(x, weight, bias):
        h = F.conv1d(x.mT, weight, bias, padding=15, groups=256)
        return h.mT

    with torch.autocast("cuda", half):
        ours = outcome(depthwise_conv1d, tensors, dy)
        expected = outcome(stock, tensors, dy)
    assert launches["conv_kernel"] == 2
    exact = outcome(depthwise_conv1d_reference, doubles(tensors), dy.double())
    assert_as_exact_as_stock(ours, expected, exact)
