"""A fixture for tests that run recipes in this process.

A conftest that imports it has it for all tests of its folder.
"""

import logging

import pytest
import torch


@pytest.fixture(autouse=True)
def undo_global_settings():
    """Give back what SpeechBrain and the recipe set for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    cudnn_sdp = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    root.handlers[:], root.level = handlers, level
    torch.backends.cuda.enable_cudnn_sdp(cudnn_sdp)
