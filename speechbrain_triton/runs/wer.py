"""Reading what SpeechBrain's ``ErrorRateStats.write_stats`` writes."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from speechbrain_triton.files import RunError, read_text

_COUNTS = (
    r"%WER \d+\.\d\d \[ (?P<total>\d{1,15}) / (?P<length>\d{1,15}), "
    r"(?P<insertions>\d{1,15}) ins, (?P<deletions>\d{1,15}) del, "
    r"(?P<substitutions>\d{1,15}) sub \]"
)
_SUMMARY = re.compile(_COUNTS + r"( \[PARTIAL\])?")
_SCORED = re.compile(r"Scored (\d{1,15}) sentences?, \d+ not present in hyp\.")
# Greedy: an utterance id may itself hold a comma.
_UTTERANCE = re.compile(r"(?P<key>.*), " + _COUNTS)
_OPERATIONS = re.compile(r" *[=IDS] *")
_SEPARATOR = " ; "
_RULE = "=" * 80
# Three lines of summary, then a rule, the title and a sample alignment.
_HEADER_LINES = 11
_BLOCK_LINES = 5


@dataclass(frozen=True)
class Edits:
    """Edit operations against references of ``length`` tokens.

    Arguments
    ---------
    insertions : int
    deletions : int
    substitutions : int
    length : int
        Number of reference tokens.

    Example
    -------
    >>> edits = Edits(insertions=1, deletions=0, substitutions=2, length=12)
    >>> edits.total, edits.rate
    (3, 25.0)
    """

    insertions: int
    deletions: int
    substitutions: int
    length: int

    @property
    def total(self) -> int:
        """Number of edits of any kind."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def rate(self) -> float:
        """Error rate in percent, by SpeechBrain's rule for empty references."""
        return 100.0 * self.total / max(1, self.length)


@dataclass(frozen=True)
class Utterance:
    """One decoded utterance.

    Arguments
    ---------
    key : str
        Its id.
    reference : tuple of str
        Reference tokens; ``"".split(" ")`` leaves one empty token.
    hypothesis : tuple of str
        Recognised tokens.
    edits : Edits
        Word edits as SpeechBrain counted them.
    """

    key: str
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]
    edits: Edits


def read_wer_file(path: Path) -> tuple[Utterance, ...]:
    """Reads a ``wer_*.txt`` file and checks it against its own summary.

    Arguments
    ---------
    path : Path
        A file written by ``ErrorRateStats.write_stats``.

    Returns
    -------
    tuple of Utterance
        In the order of the file.

    Raises
    ------
    RunError
        If the file is empty, not text, truncated or damaged.
    """
    lines = read_text(path).split("\n")
    start = next(
        (i for i, line in enumerate(lines) if _SUMMARY.fullmatch(line)), None
    )
    if start is None:
        raise RunError(
            f"'{path}' is not a WER file: no line reads like '%WER 9.10 "
            "[ 70 / 773, 12 ins, 20 del, 38 sub ]'."
        )
    summary = _edits(_SUMMARY.fullmatch(lines[start]))
    announced = _announced_utterances(path, lines, start)
    utterances = tuple(_utterances(path, lines, start + _HEADER_LINES))
    _check(path, utterances, summary, announced)
    return utterances


def sum_edits(edits: Iterable[Edits]) -> Edits:
    """Adds up the edits of several utterances.

    Example
    -------
    >>> sum_edits([Edits(1, 0, 0, 3), Edits(0, 2, 1, 5)])
    Edits(insertions=1, deletions=2, substitutions=1, length=8)
    """
    edits = list(edits)
    return Edits(
        insertions=sum(e.insertions for e in edits),
        deletions=sum(e.deletions for e in edits),
        substitutions=sum(e.substitutions for e in edits),
        length=sum(e.length for e in edits),
    )


def _announced_utterances(path, lines, start):
    scored = next(
        filter(None, map(_SCORED.fullmatch, lines[start + 1 : start + 3])), None
    )
    if scored is None:
        raise RunError(
            f"'{path}' is truncated or damaged: its summary does not say how "
            "many sentences were scored."
        )
    return int(scored[1])


def _utterances(path, lines, first):
    for start in range(first, len(lines) - 1, _BLOCK_LINES):
        block = lines[start : start + _BLOCK_LINES]
        if len(block) < _BLOCK_LINES:
            raise _damaged(path, start, "its last alignment is incomplete")
        rule, header, *alignment = block
        found = _UTTERANCE.fullmatch(header)
        if rule != _RULE or found is None:
            raise _damaged(path, start, "no alignment header is found there")
        yield _utterance(path, start, found, *alignment)


def _utterance(path, start, found, references, operations, hypotheses):
    columns = operations.split(_SEPARATOR) if operations else []
    if not all(map(_OPERATIONS.fullmatch, columns)) or not (
        len(references) == len(operations) == len(hypotheses)
    ):
        raise _damaged(path, start, "its alignment does not line up")
    # Only the line of operations can be split safely: a word may hold the
    # separator, or be '<eps>' itself.
    kinds = [column.strip() for column in columns]
    spans = _spans(columns)
    utterance = Utterance(
        key=found["key"],
        reference=_tokens(references, spans, kinds, absent="I"),
        hypothesis=_tokens(hypotheses, spans, kinds, absent="D"),
        edits=_edits(found),
    )
    if utterance.edits != _count(kinds, utterance.reference):
        raise _damaged(path, start, "its counts and its alignment disagree")
    return utterance


def _spans(columns):
    spans, begin = [], 0
    for column in columns:
        spans.append(slice(begin, begin + len(column)))
        begin += len(column) + len(_SEPARATOR)
    return spans


def _tokens(line, spans, kinds, absent):
    return tuple(
        line[span].strip(" ")
        for span, kind in zip(spans, kinds, strict=True)
        if kind != absent
    )


def _count(kinds, reference):
    counts = Counter(kinds)
    # SpeechBrain takes a leading empty token for an empty reference.
    empty = not reference or reference[0] == ""
    return Edits(
        insertions=counts["I"],
        deletions=counts["D"],
        substitutions=counts["S"],
        length=0 if empty else len(reference),
    )


def _edits(found):
    names = ("insertions", "deletions", "substitutions", "length")
    return Edits(**{name: int(found[name]) for name in names})


def _check(path, utterances, summary, announced):
    if len(utterances) != announced:
        raise RunError(
            f"'{path}' is truncated or damaged: it announces {announced} "
            f"scored utterances and holds {len(utterances)}."
        )
    if sum_edits(u.edits for u in utterances) != summary:
        raise RunError(
            f"'{path}' is damaged: the edits of its utterances do not add up "
            "to its summary."
        )
    if summary.length == 0:
        raise RunError(f"'{path}' has no reference word, so it has no WER.")
    key, times = Counter(u.key for u in utterances).most_common(1)[0]
    if times > 1:
        raise RunError(f"'{path}' holds the utterance '{key}' {times} times.")


def _damaged(path, start, reason):
    return RunError(
        f"'{path}' is truncated or damaged: {reason} (line {start + 1})."
    )
