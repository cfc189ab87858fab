"""Casts without the call where they would do nothing, and one in a matmul."""

from contextlib import AbstractContextManager, nullcontext

import torch


def cast(x: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """x.to(dtype); None for an absent tensor."""
    return x if x is None or x.dtype is dtype else x.to(dtype)


def like(
    parameter: torch.Tensor | None, gradient: torch.Tensor
) -> torch.Tensor | None:
    """A gradient in its parameter's dtype; None for an absent parameter."""
    return None if parameter is None else cast(gradient, parameter.dtype)


def zeros_like(x: torch.Tensor | None) -> torch.Tensor | None:
    """The gradient that an empty batch gives."""
    return None if x is None else torch.zeros_like(x)


def without_autocast(device_type: str) -> AbstractContextManager:
    """For a backward that may run under another autocast than its forward."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def matmul(
    a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """a @ b, rounded once to dtype."""
    if dtype is torch.float32 and a.dtype is not dtype and _mixed_matmul(a):
        return torch.mm(a, b, out_dtype=dtype)
    return cast(torch.mm(a, b), dtype)


def _mixed_matmul(a: torch.Tensor) -> bool:
    # PyTorch has matmuls from half precision to float32 only for CUDA.
    return a.device.type == "cuda" and torch.version.hip is None
