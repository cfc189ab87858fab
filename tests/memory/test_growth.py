"""Training keeps no memory from step to step."""

import random
import resource

import pytest
import torch
from device_cases import modules

WARM_UP, STEPS = 50, 500
# Of the process, for what Python and the driver keep now and then.
SLACK_MIB = 64


def step(module, inputs) -> None:
    y = module(*inputs)
    y.square().mean().backward()
    module.zero_grad(set_to_none=True)


def peak_resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.gpu
@pytest.mark.parametrize("name", modules())
def test_memory_does_not_grow(name, launches):
    """Over 500 steps of other lengths and batches each."""
    module, (x, *more) = modules()[name]
    module.to("cuda").backend = "triton"
    rng = random.Random(0)
    # This front end is built for one number of frames.
    fixed = name == "TritonConvolutionFrontEnd"
    for count in range(STEPS):
        if count == WARM_UP:
            torch.cuda.synchronize()
            allocated = torch.cuda.memory_allocated()
            resident = peak_resident_mib()
        T = x.shape[1] if fixed else rng.randint(20, 400)
        B = rng.randint(1, 16)
        batch = torch.randn(B, T, x.shape[2], device="cuda")
        lengths = [0.1 + 0.9 * torch.rand(B, device="cuda") for _ in more]
        with torch.autocast("cuda", torch.bfloat16, enabled=count % 2 == 0):
            step(module, (batch, *lengths))
        del batch, lengths
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= allocated
    assert peak_resident_mib() - resident < SLACK_MIB
    assert sum(launches.values()) >= STEPS
