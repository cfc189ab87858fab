"""Triton's interpreter without what takes most of its time for nothing.

With device functions that a kernel calls for each row, it is three times as
fast.
"""

import dataclasses
import functools
import inspect

import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, interpreter_builder


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
