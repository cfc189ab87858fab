"""The tiny corpus that recipe tests share."""

import pytest
import recipe_runs
from global_settings import undo_global_settings  # noqa: F401


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder in AN4's layout with a dozen utterances of tones."""
    return recipe_runs.write_corpus(tmp_path_factory.mktemp("an4"))


@pytest.fixture(scope="session")
def longer_corpus(tmp_path_factory):
    """The same with 80: enough to learn from, or for a kill to land within."""
    folder = tmp_path_factory.mktemp("an4_longer")
    return recipe_runs.write_corpus(folder, train=80, test=8)
