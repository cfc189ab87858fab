"""Processes that start together on one empty Triton cache, time after time.

    python cache_worker.py ROUNDS SIDE_BY_SIDE FOLDER cuda:0 cuda:1
    python cache_worker.py ROUNDS SIDE_BY_SIDE FOLDER cpu cpu

On GPUs each process runs an op in both passes, as the first thing that it
does with Triton, and compares it with plain PyTorch. On the CPU it compiles
the kernels for a GPU that need not be there, which reads and writes the cache
in the same way. It ends with 1 and says why where a process failed, or two
have other results.
"""

import hashlib
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from speechbrain_triton.ops import bias_relu
from speechbrain_triton.ops.reduction import sum_partials_kernel

# So imports are paid once. Nothing here touches a GPU, or starts a kernel.
FORK = multiprocessing.get_context("fork")
LIMIT = 60
HOPPER = GPUTarget("cuda", 90, 32)


def run_op(device: str) -> bytes:
    """Both passes of a cheap op: three kernels; all bits of the results."""
    device = torch.device(device)
    torch.cuda.set_device(device)
    random = torch.Generator().manual_seed(0)
    x, dy = torch.randn(2, 2, 9, 4, 64, generator=random).to(device)
    bias = torch.randn(64, generator=random).to(device)
    results = []
    for backend in ("triton", "torch"):
        inputs = x.clone().requires_grad_(), bias.clone().requires_grad_()
        y = bias_relu(*inputs, backend=backend)
        grads = torch.autograd.grad(y, inputs, dy)
        results.append([t.detach().cpu() for t in (y, *grads)])
    ours, plain = results
    for found, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, expected)
    return b"".join(t.numpy().tobytes() for t in ours)


def compile_kernel() -> bytes:
    """A kernel's variants; what the assembler made of them."""
    signature = {
        "partial_ptr": "*fp32",
        "total_ptr": "*fp32",
        "n_partials": "i32",
    }
    binaries = []
    for N in (64, 128):
        constants = {"N": N, "BLOCK_P": 32, "BLOCK_N": 32}
        source = ASTSource(
            sum_partials_kernel,
            signature | dict.fromkeys(constants, "constexpr"),
            {
                (sum_partials_kernel.arg_names.index(k),): v
                for k, v in constants.items()
            },
        )
        compiled = triton.compile(source, target=HOPPER)
        binaries.append(compiled.asm["cubin"])
    return b"".join(binaries)


def work(device: str, cache: Path, barrier, answers) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    try:
        if device != "cpu":
            torch.zeros(1, device=device)
        barrier.wait(LIMIT)
        bits = compile_kernel() if device == "cpu" else run_op(device)
        answers.put((device, hashlib.sha256(bits).hexdigest()))
    except BaseException:
        answers.put((device, traceback.format_exc()))


class Round:
    """A process for each device, and a cache for all of them."""

    def __init__(self, cache: Path, devices: list[str]):
        cache.mkdir()
        self.cache, self.answers = cache, FORK.SimpleQueue()
        shared = cache, FORK.Barrier(len(devices)), self.answers
        self.processes = [
            FORK.Process(target=work, args=(device, *shared))
            for device in devices
        ]
        for process in self.processes:
            process.start()

    def complaint(self) -> str | None:
        """Wait, and say what is wrong, if anything is."""
        for process in self.processes:
            process.join(LIMIT)
            if process.is_alive():
                process.kill()
                process.join()
        found = []
        while not self.answers.empty():
            found.append(self.answers.get())
        bits = {answer for _, answer in found}
        one = len(found) == len(self.processes) and len(bits) == 1
        if not one or "Traceback" in min(bits):
            exits = [process.exitcode for process in self.processes]
            texts = [f"{device}: {answer}" for device, answer in found]
            return "\n".join([f"{self.cache}: exit codes {exits}", *texts])
        if not any(self.cache.rglob("*.ttir")):
            return f"{self.cache}: nothing was compiled into it"
        return None


def main(rounds: str, side_by_side: str, folder: str, *devices: str) -> int:
    caches = [Path(folder) / f"cache{k}" for k in range(int(rounds))]
    complaints = []
    for some in batched(caches, int(side_by_side)):
        started = [Round(cache, list(devices)) for cache in some]
        complaints += [one.complaint() for one in started]
    wrong = [text for text in complaints if text is not None]
    print(f"{len(caches) - len(wrong)} rounds right", *wrong, sep="\n")
    return 1 if wrong else 0


def batched(items: list, size: int) -> list[list]:
    return [items[k : k + size] for k in range(0, len(items), size)]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
