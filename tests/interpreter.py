"""Triton's interpreter, made stricter and faster for the tests.

On a GPU, a load or store beside its tensor often goes unnoticed; the
interpreter follows the address wherever it leads. Here it raises.
"""

import dataclasses
import functools
import inspect
from collections.abc import Iterator

import torch
import triton.language as tl
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    interpreter_builder,
)


class OutOfBoundsError(Exception):
    """A kernel touched memory outside all of its tensors."""


def check_accesses() -> None:
    """Let every load and store raise outside the kernel's tensors.

    The limits are those of the tensor as passed, so that a view's
    neighbours count as outside.
    """
    spans = []
    arguments = GridExecutor._init_args_hst

    @functools.wraps(arguments)
    def remember(self, args, kwargs):
        on_host = arguments(self, args, kwargs)
        spans[:] = _spans([*on_host[0], *on_host[1].values()])
        return on_host

    GridExecutor._init_args_hst = remember

    def within(addresses, size) -> bool:
        first, last = int(addresses.min()), int(addresses.max()) + size
        return any(start <= first and last <= stop for start, stop in spans)

    def checked(access, mask_at):
        @functools.wraps(access)
        def wrapper(*args):
            addresses, size = args[0].data, _element_size(args[0])
            # Most accesses are inside as a whole, whatever the mask.
            if not within(addresses, size):
                # Comparisons of unsigned numbers are unsigned numbers here.
                addresses = addresses[args[mask_at].data.astype(bool)]
                if addresses.size and not within(addresses, size):
                    raise OutOfBoundsError(
                        f"{access.__name__} at {addresses.min()} to "
                        f"{addresses.max()}, tensors at {spans}"
                    )
            return access(*args)

        return wrapper

    builder = interpreter_builder
    builder.create_masked_load = checked(builder.create_masked_load, 1)
    builder.create_masked_store = checked(builder.create_masked_store, 2)


def _spans(arguments: list) -> Iterator[tuple[int, int]]:
    """Of each tensor its first address and the one after its last."""
    for tensor in filter(torch.is_tensor, arguments):
        if tensor.numel():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in steps)
            start = tensor.data_ptr()
            yield start, start + (last + 1) * tensor.element_size()


def _element_size(pointers) -> int:
    return pointers.get_element_ty().primitive_bitwidth // 8


def hasten() -> None:
    """Leave out two steps whose results nothing here uses."""
    # It looks for integers that overflow, and reports them only with debug.
    interpreter_builder.options = dataclasses.replace(
        interpreter_builder.options, sanitize_overflow=False
    )
    # Each call of a device function replaces all of triton.language again,
    # which the launch of its kernel has done before.
    call = InterpretedFunction.__call__

    @functools.wraps(call)
    def quick_call(self, *args, **kwargs):
        if any(tl.core.is_builtin(lang.load) for lang in _languages(self.fn)):
            return call(self, *args, **kwargs)
        return self.rewrite()(*args, **kwargs)

    InterpretedFunction.__call__ = quick_call


@functools.cache
def _languages(fn) -> list:
    """The modules in which a function finds Triton's language."""
    modules = filter(inspect.ismodule, fn.__globals__.values())
    return [module for module in modules if module in (tl, tl.core)]
