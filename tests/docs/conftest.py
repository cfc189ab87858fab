"""Paths of the documentation, and clean-up after its examples."""

import sys
from pathlib import Path

from global_settings import undo_global_settings  # noqa: F401

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "scripts"))
sys.path.insert(0, str(ROOT / "tests" / "recipes"))
