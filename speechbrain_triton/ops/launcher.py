"""Starting kernels with little host time, on the tensors' own device."""

from collections.abc import Callable, Sequence

import torch

from speechbrain_triton.backend import interpreted

# How many launch shapes each launcher remembers. Lengths vary from batch to
# batch: what is remembered must be cheap to compute anew.
PLANS = 1024


class Launcher:
    """Starts a kernel; after a variant's first launch, its compiled form.

    Triton looks at every argument of every launch to find the variant. Here
    numbers never make a variant (the kernels' ``do_not_specialize``), so
    constants and the kind of each pointer identify it, and the compiled
    kernel that Triton returned the first time is started directly. Measured on
    an H200 machine: 25 us a launch become 6.

    Arguments
    ---------
    kernel : triton.JITFunction
        Its parameters are pointers first, then numbers, then constants.
    max_registers : int, optional
        That a thread may have, where NVIDIA's assembler should make room for
        one program more a multiprocessor.
    """

    def __init__(self, kernel, max_registers: int | None = None):
        self.kernel = kernel
        self.options = {}
        if max_registers is not None and torch.version.hip is None:
            self.options["maxnreg"] = max_registers
        self.interpreted = interpreted()
        self.variants: dict[tuple, Callable] = {}

    def __call__(
        self,
        grid: tuple[int, int],
        tensors: Sequence[torch.Tensor | None],
        numbers: Sequence[int | float],
        constants: Sequence[object],
        num_warps: int,
    ) -> None:
        """Start the kernel on the first tensor's device.

        Arguments
        ---------
        grid : tuple of int
            Programs along two axes.
        tensors : sequence of torch.Tensor or None
            The kernel's pointers.
        numbers : sequence of int or float
            Lengths and strides; integers below 2**31.
        constants : sequence
            The kernel's ``tl.constexpr`` parameters, in order.
        num_warps : int
            Warps a program.
        """
        if self.interpreted:
            self.kernel[grid](
                *tensors, *numbers, *constants, num_warps=num_warps
            )
            return
        device = tensors[0].device.index
        if device != torch._C._cuda_getDevice():
            # Triton launches on the current device, whatever the tensors' is.
            with torch.cuda.device(device):
                self(grid, tensors, numbers, constants, num_warps)
            return
        key = variant_key(tensors, constants, num_warps)
        start = self.variants.get(key)
        if start is None:
            compiled = self.kernel[grid](
                *tensors,
                *numbers,
                *constants,
                num_warps=num_warps,
                **self.options,
            )
            self.variants[key] = _starter(compiled)
        else:
            start(grid, device, tensors, numbers, constants)


def _starter(compiled) -> Callable:
    """What starts a compiled kernel, without Triton's hooks for profilers."""
    run, function = compiled.run, compiled.function
    metadata = compiled.packed_metadata

    def start(grid, device, tensors, numbers, constants):
        run(
            *grid,
            1,
            torch._C._cuda_getCurrentRawStream(device),
            function,
            metadata,
            None,
            None,
            None,
            *tensors,
            *numbers,
            *constants,
        )

    return start


def variant_key(
    tensors: Sequence[torch.Tensor | None],
    constants: Sequence[object],
    num_warps: int,
) -> tuple:
    """All that Triton compiles a kernel for, device by device.

    Of a tensor these are its dtype and whether it is aligned to 16 bytes, as
    most often all of them are; on AMD also whether 32-bit offsets reach all
    of its storage.
    """
    kinds = [tensors[0].device.index, num_warps, *constants]
    addresses = 0
    for x in tensors:
        if x is None:
            kinds.append(None)
        else:
            kinds.append(x.dtype)
            addresses |= x.data_ptr()
    if addresses % 16:
        kinds.extend(x is None or x.data_ptr() % 16 == 0 for x in tensors)
    if torch.version.hip is not None:
        kinds.extend(x is None or _is_small(x) for x in tensors)
    return tuple(kinds)


def _is_small(x: torch.Tensor) -> bool:
    return x.untyped_storage().size() < 2**31
