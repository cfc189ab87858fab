"""Both gated layers under ``torch.compile``; variants that no length adds."""

import random
from collections import defaultdict

import pytest
import torch
from depthwise_cases import doubles, outcome
from functorch.compile import make_boxed_func
from geglu_cases import CASES, HALVES
from tolerance import assert_as_exact_as_stock
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from speechbrain_triton.ops.launcher import Launcher, variant_key

CALLS = 60


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def compiled(device):
    """torch.compile with all that a call must be: one graph, any length."""
    # Inductor builds C++ on a CPU: there the graphs are enough.
    backend = "inductor" if device == "cuda" else "aot_eager"

    def compile_(function):
        return torch.compile(
            function, backend=backend, fullgraph=True, dynamic=True
        )

    return compile_


@pytest.mark.parametrize("half", [None, *HALVES], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_compiled_op_is_right_at_every_length(
    bias, half, case, compiled, device, launches
):
    def around(function, **options):
        # What is around the op shows that it is part of one graph.
        def op(x, **others):
            return function(x * 2, **others, **options).tanh()

        return op

    options = dict(approximate="tanh", dropout=0.3, seed=5)
    op = compiled(around(case.op, backend="triton", **options))
    for shape in ((2, 9, 24), (3, 12, 24), (1, 7, 24)):
        tensors = case.inputs(*shape, F=40, bias=bias, device=device)
        with torch.autocast(device, half or torch.half, enabled=bool(half)):
            dy = torch.randn_like(case.twin(**tensors))
            launches.clear()
            ours = outcome(op, tensors, dy)
            stock = outcome(around(case.twin, **options), tensors, dy)
        assert launches["geglu_grad_kernel"] == 1
        exact = outcome(
            around(case.definition, **options), doubles(tensors), dy.double()
        )
        assert_as_exact_as_stock(ours, stock, exact)


def test_autocast_that_is_off_inside_casts_nothing(case, compiled, device):
    tensors = case.inputs(3, 5, 9, F=10, device=device)
    dy = torch.randn_like(case.twin(**tensors))

    def op(**tensors):
        with torch.autocast(device, enabled=False):
            return case.op(**tensors, backend="triton")

    def inside(**tensors):
        with torch.autocast(device, torch.bfloat16):
            return compiled(op)(**tensors)

    ours, plain = outcome(inside, tensors, dy), outcome(op, tensors, dy)
    # PyTorch traces its own layers' backward under the autocast outside.
    for name in plain if case is CASES["linear"] else ("y",):
        torch.testing.assert_close(ours[name], plain[name], msg=name)


def ones(case, M, device):
    """x (M, 1), whose gradient is not zero where a row of y is not."""
    tensors = case.inputs(M, 1, F=1, bias=False, device=device)
    if "out_weight" in tensors:
        tensors["out_weight"] = tensors["out_weight"][:1]
    return {n: torch.ones_like(t) for n, t in tensors.items()}


def test_each_compiled_call_draws_a_mask_that_backward_uses(
    case, compiled, device
):
    tensors = ones(case, 64, device)
    op = compiled(lambda **t: case.op(**t, dropout=0.5, backend="triton"))
    masks = []
    for _ in range(3):
        result = outcome(op, tensors, torch.ones(64, 1, device=device))
        masks.append(result["y"] != 0)
        assert torch.equal(result["dx"] != 0, masks[-1])
        assert 10 < masks[-1].sum() < 54
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


def test_compiled_masks_follow_manual_seed(case, compiled, device):
    tensors = ones(case, 64, device)
    op = compiled(lambda **t: case.op(**t, dropout=0.5, backend="triton"))
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        results.append(op(**tensors))
    assert torch.equal(*results)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.5, "seed": 3}])
def test_no_seed_is_drawn_that_is_not_used(options, case, compiled, device):
    """Compiled or not: what is drawn afterwards must be the same."""
    tensors = case.inputs(3, 5, 9, F=10, device=device)
    op = compiled(lambda **t: case.op(**t, backend="triton", **options))
    op(**tensors)
    before = torch.get_rng_state()
    op(**tensors)
    assert torch.equal(torch.get_rng_state(), before)


def test_compiled_inference_keeps_nothing(case, compiled, device, launches):
    tensors = case.inputs(3, 5, 9, F=10, device=device)
    op = compiled(lambda **t: case.op(**t, backend="triton"))
    with torch.no_grad():
        y = op(**tensors)
    torch.testing.assert_close(y, case.twin(**tensors))
    assert sum(launches.values()) == 1


def test_compiled_result_may_be_written_to(case, compiled, device):
    def op(**tensors):
        return case.op(**tensors, backend="triton").mul_(2)

    def outside(**tensors):
        y = case.op(**tensors, backend="triton")
        return y * 2

    tensors = case.inputs(3, 5, 9, F=10, device=device)
    dy = torch.randn_like(case.twin(**tensors))
    inside = outcome(compiled(op), tensors, dy)
    compiled_op = compiled(lambda **t: case.op(**t, backend="triton"))
    after = outcome(lambda **t: compiled_op(**t).mul_(2), tensors, dy)
    for name, value in outcome(outside, tensors, dy).items():
        torch.testing.assert_close(inside[name], value, msg=name)
        torch.testing.assert_close(after[name], value, msg=name)


def test_empty_batch_compiles(case, compiled, device):
    tensors = case.inputs(0, 5, 9, F=10, device=device)
    op = compiled(lambda **t: case.op(**t, dropout=0.1, backend="triton"))
    dy = torch.empty_like(case.twin(**tensors))
    result = outcome(op, tensors, dy)
    assert result["y"].shape == dy.shape and not result["dweight"].any()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_operators_keep_to_their_schema(bias, training, case, device):
    """No input is written to, no result is a view, fakes are as the real."""
    called = []

    class Note(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op.namespace == "speechbrain_triton":
                called.append((op, args))
            return op(*args, **(kwargs or {}))

    def note(graph, inputs):
        def run(*inputs):
            with Note():
                return graph(*inputs)

        return make_boxed_func(run)

    tensors = case.inputs(3, 5, 9, F=10, bias=bias, device=device)
    leaves = {n: t.requires_grad_(training) for n, t in tensors.items()}
    op = torch.compile(
        lambda **t: case.op(**t, dropout=0.3, backend="triton"),
        backend=aot_autograd(fw_compiler=note),
    )
    with torch.set_grad_enabled(training):
        y = op(**leaves)
    if training:
        y.sum().backward()
    assert len(called) == 1 + training
    for op, args in called:
        torch.library.opcheck(
            op, args, test_utils=("test_schema", "test_faketensor")
        )


def step(case, shape, device, dtype=torch.bfloat16):
    tensors = case.inputs(*shape, F=256, dtype=dtype, device=device)
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    y = case.op(**leaves, dropout=0.1, backend="triton")
    y.backward(torch.ones_like(y))


def training_steps(case, K, device, longest):
    """Batches as dynamic batching makes them, a new seed in each."""
    rng = random.Random(0)
    for _ in range(CALLS):
        shape = rng.randint(1, 4), rng.randint(1, longest), K
        step(case, shape, device)


def test_signatures_stay_few_over_random_training_steps(case, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("counted in Triton's own caches on a GPU")
    variants = defaultdict(set)

    def note(self, grid, tensors, numbers, constants, num_warps):
        assert all(-(2**31) <= number < 2**31 for number in numbers)
        key = variant_key(tensors, constants, num_warps)
        variants[self.kernel.fn.__name__].add(key)

    monkeypatch.setattr(Launcher, "__call__", note)
    training_steps(case, 16, "cpu", longest=100)
    assert {name: len(keys) for name, keys in variants.items()} == {
        "geglu_kernel": 1,
        "geglu_grad_kernel": 1,
        "sum_partials_kernel": 1,
    }


@pytest.mark.gpu
@pytest.mark.parametrize("K", [200, 60], ids=["fused", "unfused"])
def test_compiled_variants_stay_few_over_random_training_steps(K, case):
    from speechbrain_triton.ops.geglu_linear import hopper, kernels

    def count():
        return sum(
            len(kernel.device_caches[torch.cuda.current_device()][0])
            for kernel in (
                kernels.geglu_kernel,
                kernels.geglu_grad_kernel,
                hopper.geglu_linear_hopper_kernel,
            )
        )

    step(case, (2, 100, K), "cuda")
    warm = count()
    training_steps(case, K, "cuda", longest=1600)
    assert count() == warm
