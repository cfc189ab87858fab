"""The code blocks of the documentation."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "recipes").rglob("README.md")),
]
_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block, and where it stands."""

    page: Path
    line: int
    language: str
    code: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(*languages: str) -> list[Block]:
    """All blocks of some languages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            if match[2] in languages:
                found.append(Block(page, line, match[2], match[3]))
    return found


def unknown_languages() -> set[str]:
    """Those of blocks that no test would run."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    languages = {match[2] for match in _FENCE.finditer(text)}
    return languages - {"python", "yaml", "bash", "sh"}
