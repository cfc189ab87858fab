"""The site builds without a warning, and is up to date."""

import os
import re
import subprocess
import sys

import drawings
import measured
import pytest
from blocks import ROOT

import speechbrain_triton
from speechbrain_triton import modules, ops, streaming, training

LINK = re.compile(r"\]\(([^)#\s]+)(#[\w-]*)?\)")
READMES = [ROOT / "README.md", *sorted((ROOT / "recipes").rglob("README.md"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_builds_without_a_warning(site):
    for page in ("index", "flags", "kernels/chunks", "api/ops", "changelog"):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert "</html>" in text
    assert "keepachangelog" in text
    # Scripts are not part of it.
    assert not (site / "scripts").exists()


def test_sections_of_docstrings_are_read(site):
    text = (site / "api" / "ops.html").read_text(encoding="utf-8")
    for words in ("Parameters:", "Returns:", "Raises:", "Examples:"):
        assert text.count(words) > 5
    for path in (site / "api").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "---------" not in text, path
        assert not re.search(r":(func|class|meth):", text), path


def test_no_page_asks_the_network(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'(src|href)="https?://[^"]*\.(css|js)', text)


@pytest.mark.parametrize(
    ("module", "page"),
    [
        (speechbrain_triton, "switching"),
        (ops, "ops"),
        (modules, "modules"),
        (training, "training"),
        (streaming, "streaming"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_every_public_name_is_in_the_reference(module, page):
    folder = ROOT / "docs" / "api"
    text = (folder / f"{page}.md").read_text(encoding="utf-8")
    if module is modules:
        text += (folder / "switching.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"(\w+)$", text, re.MULTILINE))
    assert set(module.__all__) <= documented


@pytest.mark.parametrize(
    "path", measured.pages(), ids=lambda p: str(p.relative_to(ROOT))
)
def test_times_are_those_of_the_rows(path):
    """Else run ``python docs/scripts/measured.py``."""
    text = path.read_text(encoding="utf-8")
    assert measured.updated(text, measured.read_rows()) == text


def test_every_table_is_on_a_page():
    text = "".join(p.read_text(encoding="utf-8") for p in measured.pages())
    named = re.findall(r"<!-- measured (\w+) -->", text)
    assert sorted(named) == sorted([*measured.TABLES, "overview"])


@pytest.mark.parametrize("name", drawings.FIGURE)
def test_figures_are_those_of_the_script(name):
    """Else run ``python docs/scripts/drawings.py``."""
    path = drawings.FIGURES / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == str(drawings.FIGURE[name]())


@pytest.mark.parametrize(
    "path", READMES, ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_outside_of_the_site_lead_somewhere(path):
    for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        linked = path.parent / target
        assert linked.exists(), target
        if anchor:
            headings = re.findall(
                r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE
            )
            assert anchor[1:] in map(slug, headings), target + anchor


def slug(heading: str) -> str:
    """A heading's anchor."""
    words = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
    return re.sub(r"\s+", "-", words)
