"""A checkpoint exists when it is complete."""

import pytest
import torch
from speechbrain.utils.checkpoints import Checkpointer

from speechbrain_triton.training.checkpoints import AtomicCheckpointer


class Killed(BaseException):
    """Stands for the end of the process."""


def test_killed_while_saving_leaves_the_previous_checkpoint(tmp_path):
    model = torch.nn.Linear(2, 2)
    checkpointer = AtomicCheckpointer(tmp_path, {"model": model})
    first = model.weight.detach().clone()
    checkpointer.save_checkpoint(meta={"WER": 3.0})

    def die(obj, path):
        raise Killed

    dying = AtomicCheckpointer(
        tmp_path, {"model": model}, custom_save_hooks={"model": die}
    )
    torch.nn.init.zeros_(model.weight)
    with pytest.raises(Killed):
        dying.save_checkpoint(meta={"WER": 1.0})

    found = checkpointer.recover_if_possible(min_key="WER")
    assert found.meta["WER"] == 3.0
    assert torch.equal(model.weight, first)


def test_folder_is_one_that_speechbrain_reads(tmp_path):
    model = torch.nn.Linear(2, 2)
    saved = AtomicCheckpointer(tmp_path, {"model": model}).save_checkpoint(
        meta={"WER": 2.0}, end_of_epoch=False
    )
    found = Checkpointer(tmp_path, {"model": model}).find_checkpoint()
    assert found.path == saved.path
    assert found.meta["WER"] == 2.0 and not found.meta["end-of-epoch"]
    assert sorted(p.name for p in found.path.iterdir()) == [
        "CKPT.yaml",
        "model.ckpt",
    ]
