"""Compile kernels side by side where they would have been launched."""

import copy
import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

import torch
import triton
from triton.runtime.jit import MockTensor

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

    def add(self, cache_hit: bool) -> None:
        """Count a variant."""
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
    workers: int, prepare: Callable[[], None], tally: Tally
) -> Iterator[None]:
    """Compile each kernel that would be launched, and launch none.

    What they would have written is left as it is, so that results mean
    nothing. Triton itself compiles, in other processes: in threads of one,
    Python's lock lets little of it run side by side. At the end all are
    waited for.

    Arguments
    ---------
    workers : int
        Processes.
    prepare : callable
        What each of them calls first, such as
        ``functools.partial(torch.cuda.set_device, 0)``; of a module's own
        functions.
    tally : Tally
        Where to count.
    """
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), _start_worker, (prepare,)
    )
    jobs, known = [], set()

    def count(job: Future) -> None:
        if not job.cancelled() and job.exception() is None:
            tally.add(job.result())

    def compile_variant(
        launcher, grid, tensors, numbers, constants, num_warps
    ) -> None:
        variant = launcher, variant_key(tensors, constants, num_warps)
        if variant in known:
            return
        known.add(variant)
        function = launcher.kernel.fn
        arguments = (*map(_described, tensors), *numbers, *constants)
        options = {**launcher.options, "num_warps": num_warps}
        jobs.append(
            pool.submit(
                _compile,
                function.__module__,
                function.__name__,
                arguments,
                options,
            )
        )
        tally.wanted = len(jobs)
        jobs[-1].add_done_callback(count)

    try:
        with launched_by(compile_variant):
            yield
        for job in jobs:
            # Raises where a kernel did not compile.
            job.result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Pointer(MockTensor):
    """All that Triton asks of a tensor to compile for it.

    Arguments
    ---------
    tensor : torch.Tensor
        Whose data stays where it is.
    """

    def __init__(self, tensor: torch.Tensor):
        super().__init__(tensor.dtype, list(tensor.shape))
        self.address = tensor.data_ptr()
        self.bytes = tensor.untyped_storage().size()

    def data_ptr(self) -> int:
        return self.address

    def ptr_range(self) -> int:
        return self.bytes


def _described(tensor):
    """What a kernel was to be given, without the memory."""
    if isinstance(tensor, torch.Tensor):
        return _Pointer(tensor)
    if hasattr(tensor, "base"):
        # A descriptor of tiles.
        tensor = copy.copy(tensor)
        tensor.base = _Pointer(tensor.base)
    return tensor


def _start_worker(prepare: Callable[[], None]) -> None:
    # An interrupt is for the parent, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()


def _compile(module: str, name: str, arguments: tuple, options: dict) -> bool:
    """Compile one variant; was it in the cache?"""
    told = []
    kernel = getattr(importlib.import_module(module), name)
    with _told(lambda *, cache_hit, **_: told.append(cache_hit)):
        compiled = kernel.warmup(*arguments, grid=(1, 1), **options)
    if torch.cuda.is_available():
        # Some versions of Triton compile a launcher when it is loaded.
        compiled.run  # noqa: B018
    return all(told)


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
