"""An utterance comes out of a padded batch as it does alone."""

import pytest
import torch
from plain_frontend import Plain, build
from speechbrain.nnet.containers import LengthsCapableSequential

from speechbrain_triton.modules import FastConformerFrontEnd

LENGTHS = [1, 7, 8, 9, 50, 57, 288]


def padded(frames, T, n_mels, device):
    """Rows of noise whose padding is noise too, and their lengths."""
    x = 100 * torch.randn(len(frames), T, n_mels)
    for row, length in enumerate(frames):
        x[row, :length] /= 100
    return x.to(device), (torch.tensor(frames) / T).to(device)


def run(frontend, x, lengths, dy):
    x = x.detach().requires_grad_()
    frontend.zero_grad()
    y = frontend(x, lengths)
    y.backward(dy)
    return y.detach(), x.grad, [p.grad.clone() for p in frontend.parameters()]


# Triton's interpreter takes a second for every few hundred frames.
CASES = [
    (363, "torch", {}),
    (363, "torch", {"causal": True}),
    (363, "torch", {"subsampling": 4}),
    (363, "torch", {"kernel_size": 5}),
    (288, "torch", {}),
    (363, "triton", {"n_mels": 1}),
    (57, "triton", {}),
    (57, "triton", {"causal": True, "n_mels": 4}),
    (57, "triton", {"subsampling": 4, "n_mels": 4}),
    (57, "triton", {"kernel_size": 5, "n_mels": 3}),
]


@pytest.mark.parametrize(("T", "backend", "options"), CASES, ids=str)
def test_row_of_a_batch_is_the_row_alone(T, backend, options, device, launches):
    options = {"n_mels": 9, "channels": 8, **options}
    frontend = build(device, backend=backend, **options)
    alone_in_torch = Plain(frontend)
    lengths = LENGTHS[::3] if backend == "triton" and T > 57 else LENGTHS
    frames = sorted({*(L for L in lengths if L <= T), T})
    x, lengths = padded(frames, T, options["n_mels"], device)
    dy = torch.randn_like(frontend(x))
    y, dx, grads = run(frontend, x, lengths, dy)
    assert bool(launches) is (backend == "triton")

    summed = [torch.zeros_like(grad) for grad in grads]
    for row, L in enumerate(frames):
        alone = x[row : row + 1, :L].detach().requires_grad_()
        expected = alone_in_torch(alone)
        valid = expected.shape[1]
        assert valid == -(-L // frontend.subsampling)
        torch.testing.assert_close(y[row, :valid], expected[0])
        assert not y[row, valid:].any()
        assert not dx[row, L:].any()
        leaves = [alone, *alone_in_torch.parameters()]
        own = torch.autograd.grad(expected, leaves, dy[row : row + 1, :valid])
        torch.testing.assert_close(dx[row, :L], own[0][0], rtol=1e-4, atol=1e-4)
        for total, grad in zip(summed, own[1:], strict=True):
            total += grad
    for grad, total in zip(grads, summed, strict=True):
        torch.testing.assert_close(grad, total, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("L", [50, 57])
@pytest.mark.parametrize("T", [101, 363])
def test_padding_of_any_width_changes_nothing(L, T):
    frontend = build(n_mels=40, channels=8)
    x, lengths = padded([L, T], T, 40, "cpu")
    y = frontend(x, lengths)
    alone = frontend(x[:1, :L], torch.ones(1))
    valid = alone.shape[1]
    torch.testing.assert_close(y[:1, :valid], alone)
    assert not y[0, valid:].any()


def test_without_lengths_padding_counts():
    frontend = build(n_mels=40, channels=8)
    x, lengths = padded([50, 101], 101, 40, "cpu")
    assert not torch.allclose(frontend(x)[0, :7], frontend(x, lengths)[0, :7])
    whole = frontend(x, torch.ones(2))
    torch.testing.assert_close(whole, frontend(x), rtol=0, atol=0)


@pytest.mark.parametrize("subsampling", [4, 8])
def test_out_lengths_round_to_the_frames_of_the_convolutions(subsampling):
    """For every pair of lengths, in float32, as SpeechBrain rounds them."""
    frontend = FastConformerFrontEnd(40, subsampling, channels=1)
    widths = [*range(1, 500), 800, 1000, 1001, 1600, 1633, 3200, 4001, 65537]
    for T in widths:
        L = torch.arange(1, T + 1)
        lengths = L / T
        assert lengths.dtype is torch.float32
        out = frontend.out_lengths(lengths, T)
        assert out.dtype is torch.float32
        expected = -(-L // subsampling)
        frames = -(-T // subsampling)
        assert torch.equal((out * frames).round().long(), expected)
        assert out[-1] == 1 and (out > 0).all()


def test_out_lengths_are_from_one_frame_to_all():
    frontend = FastConformerFrontEnd(40, channels=1)
    lengths = torch.tensor([0.0, 1e-6, 1.0, 1.0005])
    out = frontend.out_lengths(lengths, 363) * 46
    assert out.round().tolist() == [1, 1, 46, 46]
    assert frontend.out_lengths(torch.ones(1).half(), 363) == 1
    exact = frontend.out_lengths(torch.ones(2, dtype=torch.float64), 363)
    assert exact.dtype is torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lengths_of_half_precision_are_not_rounded_further(dtype):
    frontend = FastConformerFrontEnd(40, channels=1)
    lengths = torch.tensor([0.5, 1.0], dtype=dtype)
    out = frontend.out_lengths(lengths, 3001) * 376
    assert out.round().tolist() == [188, 376]


@pytest.mark.parametrize("T", [1, 5, 17])
def test_frames_of_the_output_are_those_of_the_longest(T):
    frontend = build(n_mels=9, channels=4)
    x, lengths = padded([T, max(1, T - 1)], T, 9, "cpu")
    y = frontend(x, lengths)
    out = frontend.out_lengths(lengths, T)
    assert (out * y.shape[1]).round().max() == y.shape[1]


def test_lengths_come_through_speechbrains_container():
    frontend = build(n_mels=9, channels=4)
    container = LengthsCapableSequential(torch.nn.Identity(), frontend)
    x, lengths = padded([50, 101], 101, 9, "cpu")
    expected = frontend(x, lengths)
    assert torch.equal(container(x, lengths=lengths), expected)
    assert torch.equal(container(x, lengths), expected)
    assert not torch.equal(container(x), expected)
