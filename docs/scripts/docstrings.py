"""Lets mkdocstrings read docstrings in SpeechBrain's style.

Its sections are those of NumPy under two other names, and references to code
are Sphinx's.
"""

import re

from griffe import Extension, Object

_SECTIONS = {"Arguments": "Parameters", "Example": "Examples"}
_TITLE = re.compile(rf"^({'|'.join(_SECTIONS)})\n-+$", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|data):`~?([\w.]+)`")


class SpeechBrainStyle(Extension):
    """Rewrites every docstring when its object has been read."""

    def on_object(self, *, obj: Object, **kwargs) -> None:
        """Rename sections, and make references plain code."""
        if obj.docstring is None:
            return
        text = _TITLE.sub(_underlined, obj.docstring.value)
        obj.docstring.value = _ROLE.sub(r"`\1`", text)


def _underlined(match: re.Match) -> str:
    title = _SECTIONS[match[1]]
    return f"{title}\n{'-' * len(title)}"
