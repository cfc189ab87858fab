"""Paths of the documentation, and clean-up after its examples."""

import logging
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "scripts"))
sys.path.insert(0, str(ROOT / "tests" / "recipes"))


@pytest.fixture(autouse=True)
def undo_global_settings():
    """Give back what examples set for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    cudnn_sdp = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    root.handlers[:], root.level = handlers, level
    torch.backends.cuda.enable_cudnn_sdp(cudnn_sdp)
