"""Drawing the pictures of a comparison as SVG and as PNG."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from xml.etree import ElementTree

import matplotlib.style
from matplotlib.figure import Figure

from speechbrain_triton.runs.comparison import Comparison
from speechbrain_triton.runs.pictures import (
    INK,
    RULE,
    SIDES,
    STYLE,
    Picture,
    all_pictures,
)

_WIDTH = 5.0
_COLUMNS = 2
_DPI = 150
_STYLE = {
    **STYLE,
    "axes.labelsize": "medium",
    "axes.titlesize": "large",
    "figure.constrained_layout.w_pad": 0.1,
    "font.size": 10,
    "legend.fontsize": "medium",
    "legend.handlelength": 4,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    # The same picture has the same bytes.
    "svg.hashsalt": "speechbrain-triton",
    "svg.fonttype": "none",
}
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
# The page has its own font; matplotlib before 3.10 names it in shorthand.
_FAMILY = re.compile(r"font-family: [^;]*; ?")
_FONT = re.compile(r"font: [^;]*?([\d.]+px)[^;]*")
_VARIABLES = {INK: "currentColor", RULE: "var(--rule)"} | {
    colour: f"var(--side-{number})" for number, colour in enumerate(SIDES)
}


def picture_to_svg(picture: Picture, prefix: str) -> str:
    """Draws a picture as an SVG element to stand within an HTML page.

    Arguments
    ---------
    picture : Picture
    prefix : str
        Begins all its ids, which must be the page's only ones.

    Returns
    -------
    str
        The element. Its colours are the page's CSS variables ``--rule`` and
        ``--side-0`` to ``--side-5``, and the text's own colour.

    Example
    -------
    >>> picture = Picture("x", "Nothing.", 1, lambda axes: None)
    >>> picture_to_svg(picture, "a")[:32]
    '<svg viewBox="0 0 360 72" role="'
    """
    with _drawing():
        figure = Figure(figsize=(_WIDTH, picture.height))
        picture.draw(figure.add_subplot())
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None}
        )
    root = ElementTree.fromstring(buffer.getvalue())
    _drop(root, {"metadata", "style"})
    targets = {
        target
        for element in root.iter()
        for name, value in element.attrib.items()
        if name != "id"
        for target in [value.removeprefix("#"), *_REFERENCE.findall(value)]
    }
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = dict(_attributes(element.attrib, targets, prefix))
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": picture.description,
    }
    return ElementTree.tostring(root, encoding="unicode")


def comparison_to_png(comparison: Comparison) -> bytes:
    """Draws all pictures of a comparison as one.

    Arguments
    ---------
    comparison : Comparison
        From :func:`speechbrain_triton.runs.compare_runs`.

    Returns
    -------
    bytes
        A PNG file, two pictures wide, 150 dots an inch.
    """
    rows = list(_rows(all_pictures(comparison)))
    heights = [max(picture.height for picture in row) + 0.3 for row in rows]
    with _drawing():
        figure = Figure(figsize=(_COLUMNS * _WIDTH, sum(heights)))
        # Each has its own margins: a long name in one narrows no other.
        places = figure.subfigures(
            len(rows), _COLUMNS, squeeze=False, height_ratios=heights
        )
        for row, row_places in zip(rows, places, strict=True):
            for picture, place in zip(row, row_places, strict=False):
                place.suptitle(picture.title, x=0.02, ha="left")
                picture.draw(place.add_subplot())
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format="png", dpi=_DPI, metadata={"Software": None}
        )
    return buffer.getvalue()


@contextmanager
def _drawing() -> Iterator[None]:
    """Own style, whatever the user's matplotlibrc says."""
    with (
        matplotlib.style.context(_STYLE, after_reset=True),
        warnings.catch_warnings(),
    ):
        # A folder named in Chinese is drawn as boxes in a PNG.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def _rows(pictures: Sequence[Picture]) -> Iterator[Sequence[Picture]]:
    for start in range(0, len(pictures), _COLUMNS):
        yield pictures[start : start + _COLUMNS]


def _drop(element, names):
    for child in list(element):
        if child.tag.removeprefix(_SVG) in names:
            element.remove(child)
        else:
            _drop(child, names)


def _attributes(attributes, targets, prefix):
    for name, value in attributes.items():
        if name == "id":
            if value in targets:
                yield name, f"{prefix}-{value}"
        elif name == _LINK:
            yield "href", f"#{prefix}-{value.removeprefix('#')}"
        else:
            value = _REFERENCE.sub(rf"url(#{prefix}-\1)", value)
            if name == "style":
                value = _FONT.sub(r"font-size: \1", _FAMILY.sub("", value))
                for colour, variable in _VARIABLES.items():
                    value = value.replace(colour, variable)
            yield name, value
