"""Run a recipe's train.py as torchrun would, and keep what its ranks end with.

    torchrun --nproc_per_node 2 train_worker.py FOLDER train.py hparams.yaml ...

Each rank writes the digest of its parameters behind training, and the frames
of its batches, to ``FOLDER/<rank>.json``.
"""

import faulthandler
import json
import os
import runpy
import sys
from pathlib import Path

import interpreter
from brains import digest

from speechbrain_triton.training import TransducerBrain

LIMIT = 380


class Observer:
    """Sees the Brain's batches, and its parameters at the end."""

    def __init__(self, path: Path):
        self.path, self.frames = path, []
        self.fit, self.fit_batch = (
            TransducerBrain.fit,
            TransducerBrain.fit_batch,
        )

    def watch(self) -> None:
        def fit_batch(brain, batch):
            self.frames.append(batch.sig.data.shape[1])
            return self.fit_batch(brain, batch)

        def fit(brain, *args, **kwargs):
            self.fit(brain, *args, **kwargs)
            seen = {"frames": self.frames, "parameters": digest(brain)}
            self.path.write_text(json.dumps(seen))

        TransducerBrain.fit_batch, TransducerBrain.fit = fit_batch, fit


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpreter.hasten()
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    folder, *sys.argv = sys.argv[1:]
    Observer(Path(folder) / f"{os.environ['RANK']}.json").watch()
    runpy.run_path(sys.argv[0], run_name="__main__")
