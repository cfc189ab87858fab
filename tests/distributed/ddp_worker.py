"""Train the Brain of the AN4 recipes in several ranks, case by case.

    torchrun --nproc_per_node 2 ddp_worker.py cases.json results gloo cpu 60

Each rank writes what it saw to ``results/<rank>.pt``. The last number is the
seconds after which a rank that hangs shows where, and ends.
"""

import datetime
import faulthandler
import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
from brains import Case, train
from torch.nn.parallel import DistributedDataParallel


class Misaligned(torch.autograd.Function):
    """Has a gradient whose strides are not its parameter's."""

    @staticmethod
    def forward(ctx, weight):
        return weight.sum()

    @staticmethod
    def backward(ctx, dy):
        return dy.expand(3, 1, 5).clone().as_strided((3, 1, 5), (5, 1, 1))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 1, 5))

    def forward(self):
        return Misaligned.apply(self.weight)


def stride_warning(device) -> list[str]:
    """What DDP says of such a gradient: a case without it must be silent."""
    layer = DistributedDataParallel(Layer().to(device))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer().backward()
    return [str(warning.message) for warning in caught]


def main(cases, folder, backend, device, limit):
    faulthandler.dump_traceback_later(float(limit), exit=True)
    rank = int(os.environ["RANK"])
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
        # SpeechBrain turns it on when it is imported.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    # Of a warning that PyTorch gives once, no case is to use up the one.
    torch.set_warn_always(True)
    torch.distributed.init_process_group(
        backend, timeout=datetime.timedelta(seconds=float(limit))
    )
    records = {"stride warning": stride_warning(device)}
    for case in json.loads(Path(cases).read_text()):
        case = Case(**case)
        records[case.name] = asdict(train(case, rank, device, backend))
    torch.save(records, Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
