"""Checkpoints that a killed process cannot leave half written."""

import os
from pathlib import Path

from speechbrain.utils.checkpoints import Checkpointer
from speechbrain.utils.distributed import ddp_barrier


class AtomicCheckpointer(Checkpointer):
    """SpeechBrain's Checkpointer, whose checkpoints appear when complete.

    SpeechBrain takes a folder for a checkpoint as soon as it holds the meta
    file, and writes that file first: a process killed while saving leaves a
    checkpoint that cannot be loaded, and it is the newest one. Here the meta
    file is written under another name, and gets its own once everything else
    is down. The format is SpeechBrain's.

    Example
    -------
    >>> import torch
    >>> folder = getfixture("tmp_path")
    >>> checkpointer = AtomicCheckpointer(folder, {"m": torch.nn.Linear(1, 1)})
    >>> saved = checkpointer.save_checkpoint(meta={"WER": 12.5})
    >>> Checkpointer(folder).find_checkpoint(min_key="WER").meta["WER"]
    12.5
    """

    def save_checkpoint(self, *args, **kwargs):
        """Save a checkpoint; see ``Checkpointer.save_checkpoint``."""
        self._unfinished: Path | None = None
        checkpoint = super().save_checkpoint(*args, **kwargs)
        ddp_barrier()
        if self._unfinished is not None:
            os.replace(_partial(self._unfinished), self._unfinished)
        ddp_barrier()
        return checkpoint

    def _save_checkpoint_metafile(self, fpath, *args, **kwargs):
        self._unfinished = Path(fpath)
        return super()._save_checkpoint_metafile(
            _partial(self._unfinished), *args, **kwargs
        )


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
