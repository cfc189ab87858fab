"""The tiny corpus that recipe tests share."""

import logging

import pytest
import recipe_runs
import torch


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder in AN4's layout with a dozen utterances of tones."""
    return recipe_runs.write_corpus(tmp_path_factory.mktemp("an4"))


@pytest.fixture(scope="session")
def longer_corpus(tmp_path_factory):
    """The same with 80: enough to learn from, or for a kill to land within."""
    folder = tmp_path_factory.mktemp("an4_longer")
    return recipe_runs.write_corpus(folder, train=80, test=8)


@pytest.fixture(autouse=True)
def undo_global_settings():
    """Give back what SpeechBrain and the recipe set for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    cudnn_sdp = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    root.handlers[:], root.level = handlers, level
    torch.backends.cuda.enable_cudnn_sdp(cudnn_sdp)
