"""Rows of measurements, as bench writes them to a file and reads them."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from speechbrain_triton.files import read_text, write_atomically

IMPLS = (
    "stock",
    "eager",
    "channels_last",
    "compile",
    "liger",
    "torchaudio",
    "numba",
    "matmul_only",
    "triton",
    "triton_inplace",
    "triton_fused_joint",
    "limit",
)
OPS = (
    "depthwise_conv1d",
    "conv_module",
    "frontend",
    "convolution_frontend",
    "geglu_linear",
    "geglu_ffn",
    "geglu_ladder",
    "transducer_loss",
    "transducer_joint_loss",
    "train_step",
)
DTYPES = ("bfloat16", "float16", "float32")
KEY = ("op", "pass", "dtype", "shape", "impl")
TIMES = ("median_ms", "p20_ms", "p80_ms")
COLUMNS = (*KEY, *TIMES, "peak_mib", "gpu", "torch", "triton", "commit")
_ALLOWED = {"op": OPS, "dtype": DTYPES, "impl": IMPLS}

Row = Mapping[str, str | float]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as CSV, replacing a file that is there.

    Arguments
    ---------
    path : Path
        The file; its folder is made if need be.
    rows : iterable of mapping
        Each with a value for every one of ``COLUMNS``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def read_rows(path: Path) -> list[dict[str, str | float]]:
    """Read the rows of one GPU that bench has written.

    Arguments
    ---------
    path : Path
        A CSV file with the columns ``COLUMNS``, maybe more.

    Returns
    -------
    list of dict
        As they were written, figures as float.

    Raises
    ------
    ValueError
        If the file cannot be read, lacks a column, has no row, an op, dtype
        or implementation that bench does not know, a figure that is none, one
        measurement twice, or rows of several GPUs.
    """
    # None of the columns has line feeds, and a NUL is refused.
    reader = csv.DictReader(io.StringIO(read_text(path)), strict=True)
    try:
        missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(
                f"'{path}' has no column {', '.join(missing)}; the rows that "
                "bench writes have it."
            )
        rows, lines = [], {}
        for raw in reader:
            where = f"'{path}', line {reader.line_num}"
            row = _checked(raw, where)
            key = tuple(row[column] for column in KEY)
            first = lines.setdefault(key, reader.line_num)
            if first != reader.line_num:
                raise ValueError(
                    f"{where}: {' '.join(key)} is in line {first} too."
                )
            rows.append(row)
    except csv.Error as error:
        raise ValueError(f"'{path}' is not CSV: {error}.") from error
    if not rows:
        raise ValueError(f"'{path}' has no rows.")
    if len(gpus := dict.fromkeys(row["gpu"] for row in rows)) > 1:
        raise ValueError(
            f"'{path}' has rows of {', '.join(gpus)}, whose times do not go "
            "together; keep the rows of one GPU."
        )
    return rows


def _checked(raw, where):
    row = {column: raw[column] for column in COLUMNS}
    for column, value in row.items():
        if value is None:
            raise ValueError(f"{where} has no {column}.")
        allowed = _ALLOWED.get(column)
        if allowed is not None and value not in allowed:
            raise ValueError(
                f"{where}: {column} is {value!r}, not one of "
                f"{', '.join(allowed)}."
            )
    for column in (*TIMES, "peak_mib"):
        row[column] = _figure(row[column], column, where)
    return row


def _figure(text, column, where):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    positive = value > 0 or (value == 0 and column == "peak_mib")
    if not positive or math.isinf(value):
        raise ValueError(
            f"{where}: {column} is {text!r}, not a positive number."
        )
    return value


def select_rows(
    rows: Iterable[Row],
    ops: Sequence[str] | None = None,
    impls: Sequence[str] | None = None,
    shape: str | None = None,
    dtype: str | None = None,
) -> list[Row]:
    """Choose rows, in their order; None is for all.

    Arguments
    ---------
    rows : iterable of mapping
        From :func:`read_rows`.
    ops, impls : sequence of str, optional
        Names of ops and of implementations.
    shape : str, optional
        A text that the shape must contain.
    dtype : str, optional
        One of ``DTYPES``.

    Returns
    -------
    list of mapping

    Example
    -------
    >>> rows = [{"op": op, "impl": "triton"} for op in ("a", "b")]
    >>> select_rows(rows, ops=["b"])
    [{'op': 'b', 'impl': 'triton'}]
    """
    return [
        row
        for row in rows
        if (ops is None or row["op"] in ops)
        and (impls is None or row["impl"] in impls)
        and (shape is None or shape in row["shape"])
        and (dtype is None or dtype == row["dtype"])
    ]
