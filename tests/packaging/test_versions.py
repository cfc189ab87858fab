"""One version, and one range of each package that the project needs."""

import re
import tomllib
from pathlib import Path

import pytest

import speechbrain_triton
from speechbrain_triton.doctor import SUPPORTED

ROOT = Path(__file__).parents[2]
REQUIREMENT = re.compile(r"([\w-]+)(\S*)")


@pytest.fixture(scope="module")
def project():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]


def test_changelog_begins_with_this_version_or_what_will_be_it():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    title, _, body = entries[0].partition("\n")
    version = speechbrain_triton.__version__
    if title == "[Unreleased]":
        assert re.search(rf"\b{re.escape(version)}\b", body)
    else:
        date = r"\d{4}-\d\d-\d\d"
        assert re.fullmatch(rf"\[{re.escape(version)}\] - {date}", title)


def test_doctor_checks_the_ranges_that_pip_installs(project):
    extras = project["optional-dependencies"]
    declared = dict(
        REQUIREMENT.fullmatch(requirement).groups()
        for requirement in [
            *project["dependencies"],
            *extras["triton"],
            *extras["demo"],
        ]
    )
    assert {name: declared.get(name) for name in SUPPORTED} == SUPPORTED
