"""What the tests of several processes and several GPUs share."""

import sys
from pathlib import Path

import pytest

# For the tiny corpus in AN4's layout.
sys.path.append(str(Path(__file__).parents[1] / "recipes"))

from recipe_runs import write_corpus  # noqa: E402


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder in AN4's layout, tones for speech: 4 utterances a rank.

    SpeechBrain counts batches anew in each epoch: with fewer of them than are
    accumulated, the optimizer would never step.
    """
    return write_corpus(tmp_path_factory.mktemp("an4"), train=16)
