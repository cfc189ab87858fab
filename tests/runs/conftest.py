"""Run folders as SpeechBrain leaves them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import HAND_COUNTED, write_wer
from speechbrain.utils.importutils import LazyModule
from speechbrain.utils.train_logger import FileTrainLogger

HERE = Path(__file__).parent

# Hypothesis asks every module for its __file__, upon which SpeechBrain's
# redirections import optional packages that are not there.
for module in list(sys.modules.values()):
    if isinstance(module, LazyModule):
        module.__file__ = None


@pytest.fixture
def make_run(tmp_path):
    """Makes a run folder without training: (name, utterances, settings)."""

    def make(name, utterances=HAND_COUNTED, test_set="test", **settings):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        write_wer(folder / f"wer_{test_set}.txt", utterances)
        settings = {"output_folder": json.dumps(str(folder))} | settings
        lines = [f"{key}: {value}\n" for key, value in settings.items()]
        (folder / "hyperparams.yaml").write_text("".join(lines), "utf-8")
        return folder

    return make


@pytest.fixture
def train_log(tmp_path):
    """SpeechBrain's logger, writing ``tmp_path / "train_log.txt"``."""
    return FileTrainLogger(str(tmp_path / "train_log.txt"))


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory):
    """Two runs really trained: conv_backend torch, then triton."""
    parent = tmp_path_factory.mktemp("results of Zoë")
    folders = [parent / "off", parent / "on"]
    for folder, backend in zip(folders, ("torch", "triton"), strict=True):
        subprocess.run(
            [
                sys.executable,
                HERE / "tiny_recipe.py",
                HERE / "tiny_recipe.yaml",
                f"--output_folder={folder}",
                f"--conv_backend={backend}",
                "--data_folder=/data",
                "--device=cpu",
                "--precision=bf16",
            ],
            check=True,
            capture_output=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    return folders
