"""Reading and comparing finished SpeechBrain training runs."""

from speechbrain_triton.files import RunError
from speechbrain_triton.runs.comparison import Comparison, compare_runs
from speechbrain_triton.runs.reader import Evaluation, Run, read_run
from speechbrain_triton.runs.scores import (
    Difference,
    Score,
    SetComparison,
    SideScore,
)
from speechbrain_triton.runs.sides import Side
from speechbrain_triton.runs.training_log import Curve, Training
from speechbrain_triton.runs.wer import Edits, Utterance

__all__ = [
    "Comparison",
    "Curve",
    "Difference",
    "Edits",
    "Evaluation",
    "Run",
    "RunError",
    "Score",
    "SetComparison",
    "Side",
    "SideScore",
    "Training",
    "Utterance",
    "compare_runs",
    "read_run",
]
