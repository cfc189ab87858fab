"""What came out of many cases of an op, as a row of a table."""

import csv
import fcntl
import math
import os
import time
from typing import NamedTuple

from judging import judge, relative_to_twin
from property_cases import Case
from tolerance import assert_as_exact_as_stock

COLUMNS = (
    *("op", "dtype", "cases", "failures", "worst_ratio", "result"),
    *("error", "twin_error", "case"),
)
SHOWN = 3


class Worst(NamedTuple):
    """The result whose error is the largest multiple of the twin's own."""

    ratio: float = -1.0
    result: str = ""
    error: float = math.nan
    twin_error: float = math.nan
    case: Case | None = None


class Tally:
    """Counts cases, and keeps the worst one and those that failed.

    Its row has the columns ``COLUMNS``: ``worst_ratio`` is the error against
    float64 over the twin's own, in the worst ``result`` of all cases. ``case``
    makes that one again: ``judging.assert_right(Case(...), "cuda")``.

    Arguments
    ---------
    op, mode : str
        Of all cases; the mode is the row's dtype.
    seconds : float
        After which cases are no longer run, nor counted.
    """

    def __init__(self, op: str, mode: str, seconds: float):
        self.op, self.mode = op, mode
        self.end = time.monotonic() + seconds
        self.cases = 0
        self.failures: list[tuple[Case, Exception]] = []
        self.worst = Worst()

    def add(self, case: Case, device: str) -> None:
        """Run a case; whatever it raises is kept, for others to go on."""
        if self.cases and time.monotonic() > self.end:
            return
        self.cases += 1
        try:
            judged = judge(case, device)
            for name, errors in relative_to_twin(*judged).items():
                ratio, *both = errors
                if math.isnan(ratio):
                    ratio = math.inf
                if ratio > self.worst.ratio:
                    self.worst = Worst(ratio, name, *both, case)
            assert_as_exact_as_stock(*judged)
        except Exception as error:
            self.failures.append((case, error))

    def append_to(self, path: str | os.PathLike) -> None:
        """Add a row to a CSV file, which other processes may write to."""
        worst = self.worst
        row = (
            *(self.op, self.mode, self.cases, len(self.failures)),
            *(f"{worst.ratio:.3g}", worst.result),
            *(f"{worst.error:.3g}", f"{worst.twin_error:.3g}"),
            repr(worst.case),
        )
        with open(path, "a", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            writer = csv.writer(file)
            if os.fstat(file.fileno()).st_size == 0:
                writer.writerow(COLUMNS)
            writer.writerow(row)

    def report(self) -> str:
        """How many cases failed, and the first of them."""
        shown = (
            f"{case!r}\n{type(error).__name__}: {error}"
            for case, error in self.failures[:SHOWN]
        )
        head = f"{len(self.failures)} of {self.cases} cases failed"
        return "\n".join((head, *shown))
