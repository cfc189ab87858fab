"""A comparison as one HTML page that needs nothing else."""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from speechbrain_triton import __version__
from speechbrain_triton.runs.comparison import Comparison
from speechbrain_triton.runs.drawing import picture_to_svg
from speechbrain_triton.runs.pictures import (
    SIDES,
    Picture,
    curve_pictures,
    set_pictures,
    training_pictures,
)
from speechbrain_triton.runs.report import conclusions
from speechbrain_triton.runs.sides import describe
from speechbrain_triton.runs.tables import (
    Table,
    curve_tables,
    labelled_runs,
    set_tables,
    settings_tables,
    training_tables,
    versions,
)
from speechbrain_triton.runs.utterances import (
    AlignedUtterance,
    differing_utterances,
)
from speechbrain_triton.text import printable

_TEMPLATE = "page.html.jinja"
# Enough to see what kind of words differ; fewer where many runs stand below
# one another.
_MOST_UTTERANCES, _FEWEST_UTTERANCES, _HYPOTHESES = 10, 3, 60
# A wider line of aligned words would have to be scrolled in most windows.
_LETTERS_A_LINE = 64
# Letters' worth of space between two columns.
_GAP = 3


def comparison_to_html(comparison: Comparison) -> str:
    """Writes a comparison as a page to look at.

    Arguments
    ---------
    comparison : Comparison
        From :func:`speechbrain_triton.runs.compare_runs`.

    Returns
    -------
    str
        An HTML document with its style and pictures inside, for wide and
        narrow, light and dark windows. It loads and executes nothing, and
        equal comparisons give equal documents.

    Example
    -------
    >>> page = comparison_to_html(Comparison((), (), (), {}, {}))
    >>> page.startswith("<!DOCTYPE html>")
    True
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    numbers = itertools.count()
    environment.filters["svg"] = lambda picture: _svg(picture, next(numbers))
    environment.filters["lines"] = _lines
    return environment.get_template(_TEMPLATE).render(
        comparison=comparison,
        conclusions=conclusions(comparison),
        test_sets=[
            {
                "scores": test_set,
                "pictures": set_pictures(test_set),
                "tables": list(set_tables(test_set)),
                "utterances": _utterances(comparison, test_set.name),
            }
            for test_set in comparison.test_sets
        ],
        curves={
            "pictures": curve_pictures(comparison),
            "tables": list(curve_tables(comparison)),
        },
        training={
            "pictures": training_pictures(comparison),
            "tables": list(training_tables(comparison)),
        },
        settings=_settings(comparison),
        colours=len(SIDES),
        version=__version__,
    )


def _finalize(value):
    """What every value of the template goes through before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def _svg(picture: Picture, number: int) -> Markup:
    return Markup(picture_to_svg(picture, f"picture-{number}"))


def _utterances(comparison: Comparison, name: str):
    if len(comparison.sides) < 2:
        return [], 0
    limit = _HYPOTHESES // len(comparison.runs)
    limit = min(max(limit, _FEWEST_UTTERANCES), _MOST_UTTERANCES)
    return differing_utterances(comparison, name, limit)


def _lines(utterance: AlignedUtterance) -> Iterator[slice]:
    """Cuts an alignment's columns into lines."""
    start = filled = 0
    rows = [hypothesis.cells for hypothesis in utterance.hypotheses]
    columns = zip(utterance.reference, *rows, strict=True)
    for number, (word, *cells) in enumerate(columns):
        widest = max(len(word), *(len(cell.word) for cell in cells))
        if filled + widest > _LETTERS_A_LINE and number > start:
            yield slice(start, number)
            start, filled = number, 0
        filled += widest + _GAP
    yield slice(start, len(utterance.reference))


def _settings(comparison: Comparison) -> Sequence[Table]:
    tables = list(settings_tables(comparison))
    if comparison.shared:
        tables.append(
            _pairs("The same in all runs", "Setting", comparison.shared)
        )
    if recorded := versions(comparison):
        tables.append(_pairs("Versions by env.log", "Package", recorded))
    labels = [side.label for side in comparison.sides for _ in side.runs]
    tables.append(
        Table(
            title="Runs",
            left=("Run", "Side", "Folder"),
            right=("Epoch tested",),
            rows=tuple(
                (
                    name,
                    label,
                    os.fspath(run.path),
                    describe(run.training.epoch_loaded),
                )
                for label, (name, run) in zip(
                    labels, labelled_runs(comparison), strict=True
                )
            ),
        )
    )
    return tables


def _pairs(title, name, values):
    return Table(
        title=title,
        left=(name, "Value"),
        right=(),
        rows=tuple((key, describe(value)) for key, value in values.items()),
    )
