"""What is timed: every op's shapes, its implementations and its check."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle

import torch
import torch.nn.functional as F
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

from speechbrain_triton.bench.check import complaint
from speechbrain_triton.bench.timing import Timing, time_kernel, time_steps
from speechbrain_triton.modules import TritonConvolutionModule
from speechbrain_triton.ops import depthwise_conv1d

# Inputs are rotated, so that no call finds its own in a cache.
ROTATION = 3

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One line of a table: an op at a shape, in a dtype.

    Arguments
    ---------
    op : str
        ``"depthwise_conv1d"`` or ``"conv_module"``.
    B, T, C, K : int
        Batch, frames, channels, taps.
    dtype : str
        ``"float32"``, ``"bfloat16"`` or ``"float16"``; for a module that of
        autocast, with float32 parameters.
    chunk : int
        Frames in a chunk; 0 for full context.
    """

    op: str
    B: int
    T: int
    C: int
    K: int
    dtype: str
    chunk: int = 0

    @property
    def shape(self) -> str:
        """As the tables write it, such as ``B64_T400_C512_K31_chunk16``."""
        name = f"B{self.B}_T{self.T}_C{self.C}_K{self.K}"
        return f"{name}_chunk{self.chunk}" if self.chunk else name

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


DEPTHWISE = Case("depthwise_conv1d", 64, 400, 512, 31, "bfloat16")
MODULE = replace(DEPTHWISE, op="conv_module")

CASES: tuple[Case, ...] = (
    *(replace(DEPTHWISE, dtype=d) for d in ("bfloat16", "float16", "float32")),
    replace(DEPTHWISE, chunk=16),
    replace(DEPTHWISE, K=9),
    replace(DEPTHWISE, K=9, dtype="float16"),
    replace(DEPTHWISE, C=144),
    replace(DEPTHWISE, C=256),
    replace(DEPTHWISE, C=1024),
    replace(DEPTHWISE, B=1, T=20),
    replace(DEPTHWISE, B=16),
    replace(DEPTHWISE, B=8, T=4000),
    *(
        replace(MODULE, dtype=d, chunk=c)
        for d in ("bfloat16", "float16")
        for c in (0, 16, 8)
    ),
    replace(MODULE, B=16),
    replace(MODULE, B=16, chunk=16),
)


class CheckFailed(RuntimeError):
    """A kernel's result is worse than stock's: its time means nothing."""


def check(case: Case) -> None:
    """Run a case's kernel once, forward and backward, and check it.

    Raises
    ------
    CheckFailed
        If the kernel's result is worse than stock's.
    """
    for _ in measure(case, set()):
        pass


def measure(case: Case, impls: set[str]) -> Iterator[tuple[str, str, Timing]]:
    """Check a case's kernel, then time each implementation.

    Arguments
    ---------
    case : Case
        What to time.
    impls : set of str
        Of ``"stock"``, ``"compile"``, ``"triton"`` and ``"limit"`` (a copy
        that moves as many bytes as the op must).

    Returns
    -------
    iterator of tuple
        Pass (``"fwd"`` or ``"fwd_bwd"``), implementation, timing.

    Raises
    ------
    CheckFailed
        If the kernel's result is worse than stock's.
    """
    torch.manual_seed(0)
    yield from {
        "depthwise_conv1d": _measure_depthwise,
        "conv_module": _measure_module,
    }[case.op](case, impls)


def _measure_depthwise(case, impls):
    dtype, chunk = case.torch_dtype, case.chunk or None
    weight = torch.randn(case.C, 1, case.K, device="cuda") / case.K**0.5
    weight = weight.to(dtype).requires_grad_()
    bias = torch.randn(case.C, device="cuda").to(dtype).requires_grad_()
    shape = (case.B, case.T, case.C)

    def stock(x, weight, bias):
        return _stock_depthwise(x, weight, bias, chunk)

    def ours(x, weight, bias):
        return depthwise_conv1d(
            x, weight, bias, chunk_size=chunk, backend="triton"
        )

    def draw():
        x = torch.randn(shape, device="cuda").to(dtype)
        return x, torch.randn(shape, device="cuda").to(dtype)

    def stock_in_rows(x, weight, bias):
        return stock(x.transpose(1, 2), weight, bias).transpose(1, 2)

    params = {"weight": weight, "bias": bias}
    _check(
        case,
        draw,
        ours=(ours, params),
        stock=(stock_in_rows, params),
        exact=(stock_in_rows, {k: _double(v) for k, v in params.items()}),
    )
    params = (weight, bias)
    elements = case.B * case.T * case.C
    if "stock" in impls:
        yield from _time_both(
            case, "stock", stock, draw, params, time_kernel, transpose=True
        )
    if "triton" in impls:
        yield from _time_both(case, "triton", ours, draw, params, time_kernel)
    if "limit" in impls:
        # x and y; and for the gradients x, dy and dx.
        for name, tensors in (("fwd", 2), ("fwd_bwd", 5)):
            copy = _copy_of(tensors * elements, dtype)
            yield name, "limit", time_kernel(copy)


def _measure_module(case, impls):
    dtype = case.torch_dtype
    stock = ConvolutionModule(case.C, case.K).cuda()
    ours = TritonConvolutionModule(case.C, case.K, backend="triton").cuda()
    ours.load_state_dict(stock.state_dict())
    config = DynChunkTrainConfig(case.chunk) if case.chunk else None
    shape = (case.B, case.T, case.C)

    def under_autocast(module):
        def forward(x, *_):
            with torch.autocast("cuda", dtype):
                return module(x, None, config)

        return forward

    def draw():
        x = torch.randn(shape, device="cuda")
        return x, torch.randn(shape, device="cuda").to(dtype)

    exact = deepcopy(stock).double()
    _check(
        case,
        draw,
        ours=(under_autocast(ours), dict(ours.named_parameters())),
        stock=(under_autocast(stock), dict(stock.named_parameters())),
        exact=(
            lambda x, *_: exact(x, None, config),
            dict(exact.named_parameters()),
        ),
    )
    for impl, module in (
        ("stock", stock),
        ("compile", stock),
        ("triton", ours),
    ):
        if impl in impls:
            forward = under_autocast(module)
            if impl == "compile":
                forward = torch.compile(forward)
            params = tuple(module.parameters())
            yield from _time_both(case, impl, forward, draw, params, time_steps)


def _stock_depthwise(x, weight, bias, chunk):
    """SpeechBrain's depthwise step on (B, C, T), chunks unfolded."""
    left = (weight.shape[2] - 1) // 2
    C, T = x.shape[1:]
    if chunk is None:
        return F.conv1d(x, weight, bias, padding=left, groups=C)
    x = F.pad(x, (left, -T % chunk))
    x = F.pad(x.unfold(2, left + chunk, chunk), (0, left)).transpose(1, 2)
    B, n_chunks = x.shape[:2]
    y = F.conv1d(x.flatten(0, 1), weight, bias, groups=C)
    y = y.unflatten(0, (B, n_chunks)).transpose(1, 2)
    return y.flatten(2, 3)[..., :T]


def _double(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach().double().requires_grad_()


def _check(case, draw, **variants):
    """Compare ours and stock with the exact variant; each has a forward,
    called with x and its parameters, and these by name."""
    x, dy = draw()
    results = {}
    for variant, (forward, params) in variants.items():
        dtype = torch.float64 if variant == "exact" else x.dtype
        leaf = x.detach().to(dtype).requires_grad_()
        y = forward(leaf, *params.values())
        grads = torch.autograd.grad(y, (leaf, *params.values()), dy.to(y.dtype))
        results[variant] = (y.detach(), *grads)
    names = ("y", "dx", *(f"gradient of {name}" for name in params))
    problem = complaint(names, **results)
    if problem is not None:
        raise CheckFailed(
            f"{case.op} {case.shape} {case.dtype}: {problem}; no time is "
            "reported."
        )


def _time_both(case, impl, forward, draw, params, timer, transpose=False):
    sets = []
    for _ in range(ROTATION):
        x, dy = draw()
        if transpose:
            x, dy = (t.transpose(1, 2).contiguous() for t in (x, dy))
        sets.append((x.requires_grad_(), dy))

    feed = cycle(sets)

    def run_forward():
        with torch.no_grad():
            forward(next(feed)[0], *params)

    def run_both():
        x, dy = next(feed)
        torch.autograd.grad(forward(x, *params), (x, *params), dy)

    yield "fwd", impl, timer(run_forward)
    yield "fwd_bwd", impl, timer(run_both)


def _copy_of(elements: int, dtype: torch.dtype) -> Call:
    """A copy that reads and writes so many elements in all."""
    sources = [
        torch.randn(elements // 2, device="cuda").to(dtype)
        for _ in range(ROTATION)
    ]
    target = torch.empty_like(sources[0])
    feed = cycle(sources)
    return lambda: target.copy_(next(feed))
