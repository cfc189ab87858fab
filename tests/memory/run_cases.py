"""Run all ops and modules on the kernels once, under a tool that watches.

``python run_cases.py``, in float32 and in both half types.
"""

from unittest import mock

import torch
from device_cases import Case, fused_case, module_case, modules, op_cases

from speechbrain_triton.ops.geglu_linear import launch

HALVES = (torch.bfloat16, torch.float16)


def as_type(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A case's tensors on the GPU, those that have gradients in a dtype."""
    return {
        name: tensor.to("cuda", dtype)
        if tensor.is_floating_point() and name not in case.constant
        else tensor.cuda()
        for name, tensor in case.tensors.items()
    }


def run(case: Case, dtype: torch.dtype) -> None:
    """Both passes; what they gave is tested elsewhere."""
    out = case.outcome(as_type(case, dtype), "triton")
    torch.cuda.synchronize()
    assert all(tensor.isfinite().all() for tensor in out.values()), case.name
    print(case.name, dtype, flush=True)


def main() -> None:
    cases = [*op_cases(), *map(module_case, modules())]
    for dtype in (torch.float32, *HALVES):
        for case in cases:
            run(case, dtype)
    if torch.cuda.get_device_capability() == (9, 0) and not torch.version.hip:
        with mock.patch.object(launch, "is_fused", lambda x, weight: True):
            for dtype in HALVES:
                run(fused_case(dtype), dtype)


if __name__ == "__main__":
    main()
