"""Compile kernels side by side where they would have been launched."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import triton

from speechbrain_triton.ops.launcher import Launcher, variant_key


@dataclass
class Tally:
    """What has become of the kernels' variants so far.

    Arguments
    ---------
    wanted, compiled, found : int
        How many were asked for, and how many of them were compiled, or found
        in Triton's cache.
    """

    wanted: int = 0
    compiled: int = 0
    found: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, cache_hit: bool, **_) -> None:
        """Count a variant, as Triton's listener for compilations."""
        with self.lock:
            if cache_hit:
                self.found += 1
            else:
                self.compiled += 1


@contextmanager
def launched_by(start: Callable[..., None]) -> Iterator[None]:
    """Call something else where kernels would be launched.

    Arguments
    ---------
    start : callable
        Takes the launcher, and what it was called with.
    """
    launch = Launcher.__call__
    Launcher.__call__ = lambda *arguments: start(*arguments)
    try:
        yield
    finally:
        Launcher.__call__ = launch


@contextmanager
def compiling(
    workers: int, device: torch.device | None, tally: Tally
) -> Iterator[None]:
    """Compile each kernel that would be launched, and launch none.

    What they would have written is left as it is, so that results mean
    nothing. Triton itself tells a kernel's variants apart, from the same
    arguments as in a launch. It compiles in threads: four fifths of the work
    are outside of Python, where threads run side by side. At the end all are
    waited for.

    Arguments
    ---------
    workers : int
        Threads.
    device : torch.device, optional
        Where to load what was compiled, for which some versions of Triton
        compile a launcher. Nowhere by default.
    tally : Tally
        Where to count.

    Example
    -------
    >>> tally = Tally()
    >>> with compiling(2, None, tally):
    ...     pass
    >>> tally.wanted
    0
    """
    pool = _Pool(workers, device)
    mode = triton.AsyncCompileMode(pool, ignore_errors=True)
    known = set()

    def compile_variant(
        launcher, grid, tensors, numbers, constants, num_warps
    ) -> None:
        variant = launcher, variant_key(tensors, constants, num_warps)
        if variant in known:
            return
        known.add(variant)
        launcher.kernel.warmup(
            *tensors,
            *numbers,
            *constants,
            grid=grid,
            num_warps=num_warps,
            **launcher.options,
        )
        tally.wanted = len(mode.raw_futures)

    try:
        with _told(tally.add), mode, launched_by(compile_variant):
            try:
                yield
            except BaseException:
                # Else the end of the mode waits for what nobody wants.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        pool.shutdown(cancel_futures=True)
    for future in mode.raw_futures:
        # Raises where a kernel did not compile.
        future.result()


class _Pool(ThreadPoolExecutor):
    """Loads what it has compiled, unless there is no device."""

    def __init__(self, workers: int, device: torch.device | None):
        super().__init__(workers)
        self.device = device

    def submit(self, compile_kernel: Callable) -> Future:
        if self.device is None:
            return super().submit(compile_kernel)
        return super().submit(self._load, compile_kernel)

    def _load(self, compile_kernel):
        kernel = compile_kernel()
        # A thread starts on the first device.
        with torch.cuda.device(self.device):
            kernel.run  # noqa: B018
        return kernel


@contextmanager
def _told(listener: Callable[..., None]) -> Iterator[None]:
    """Have Triton tell of each compilation."""
    knobs = triton.knobs.compilation
    before = knobs.listener
    knobs.listener = listener
    try:
        yield
    finally:
        knobs.listener = before
