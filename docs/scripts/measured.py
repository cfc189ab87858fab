"""Writes the tables of times in the documentation from a bench's rows.

    python docs/scripts/measured.py

A page names a table in a comment, ``<!-- measured NAME -->``, and what stands
from there to ``<!-- end -->`` is replaced. ``TABLES`` says what a table holds.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1]
ROWS = DOCS / "benchmarks" / "h200.csv"
MARKER = re.compile(r"(<!-- measured (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

GPU = {"fwd_gpu": "fwd", "fwd_bwd_gpu": "fwd+bwd"}
EVENTS = {"fwd": "fwd", "fwd_bwd": "fwd+bwd"}
STOCK = {"stock": "stock"}
CHANNELS_LAST = STOCK | {"channels_last": "channels last"}
LOSSES = {"torchaudio": "torchaudio", "numba": "numba"}


@dataclass(frozen=True)
class Table:
    """A table: a row for each case and pass.

    Arguments
    ---------
    op : str
        As in the CSV.
    passes : mapping
        The CSV's pass to what the table calls it.
    peers : mapping
        The CSV's impl to the head of its column.
    cases : tuple
        Words, dtype and shape of each.
    floor : str
        The head of the column of the floor; none where it is empty.
    ours : mapping
        As ``peers``; the factor is that of the first.
    floor_impl : str
        The CSV's impl of the floor.
    """

    op: str
    passes: Mapping[str, str]
    peers: Mapping[str, str]
    cases: tuple[tuple[str, str, str], ...]
    floor: str = ""
    ours: Mapping[str, str] | None = None
    floor_impl: str = "limit"


TABLES = {
    "depthwise_conv1d": Table(
        "depthwise_conv1d",
        EVENTS,
        STOCK,
        (
            ("bfloat16, 31 taps", "bfloat16", "B64_T400_C512_K31"),
            ("float16, 31 taps", "float16", "B64_T400_C512_K31"),
            ("float32, 31 taps", "float32", "B64_T400_C512_K31"),
            ("bfloat16, 9 taps", "bfloat16", "B64_T400_C512_K9"),
        ),
        "copy",
    ),
    "conv_module": Table(
        "conv_module",
        GPU,
        STOCK,
        (
            ("bfloat16, batch of 64", "bfloat16", "B64_T400_C512_K31"),
            ("float16, batch of 64", "float16", "B64_T400_C512_K31"),
            ("bfloat16, batch of 16", "bfloat16", "B16_T400_C512_K31"),
        ),
        "matmuls, copy",
    ),
    "chunks_op": Table(
        "depthwise_conv1d",
        EVENTS,
        STOCK,
        (
            ("full context", "bfloat16", "B64_T400_C512_K31"),
            ("chunks of 16", "bfloat16", "B64_T400_C512_K31_chunk16"),
            ("chunks of 8", "bfloat16", "B64_T400_C512_K31_chunk8"),
        ),
    ),
    "chunks_module": Table(
        "conv_module",
        {"fwd_bwd_gpu": "fwd+bwd"},
        STOCK,
        tuple(
            (f"{dtype}, {words}", dtype, f"B64_T400_C512_K31{suffix}")
            for dtype in ("bfloat16", "float16")
            for words, suffix in (
                ("full context", ""),
                ("chunks of 16", "_chunk16"),
                ("chunks of 8", "_chunk8"),
            )
        ),
    ),
    "frontend": Table(
        "frontend",
        GPU,
        CHANNELS_LAST,
        (
            ("bfloat16, (64, 3200, 80)", "bfloat16", "B64_T3200_F80_C256"),
            ("float16, (64, 3200, 80)", "float16", "B64_T3200_F80_C256"),
            ("bfloat16, (8, 1600, 80)", "bfloat16", "B8_T1600_F80_C256"),
            ("float32, (16, 3200, 80)", "float32", "B16_T3200_F80_C256"),
        ),
        "matmuls, copy",
    ),
    "convolution_frontend": Table(
        "convolution_frontend",
        GPU,
        CHANNELS_LAST,
        (
            ("bfloat16, (40, 1500, 80)", "bfloat16", "B40_T1500_F80_C64"),
            ("float16, (40, 1500, 80)", "float16", "B40_T1500_F80_C64"),
            ("bfloat16, (16, 1500, 80)", "bfloat16", "B16_T1500_F80_C64"),
        ),
    ),
    "geglu_linear": Table(
        "geglu_linear",
        EVENTS,
        {"eager": "eager", "compile": "compile", "liger": "Liger"},
        tuple(
            (f"{note}, {m}, {k}, {n}", dtype, f"M{m}_K{k}_N{n}")
            for note, dtype, m, k, n in (
                ("bfloat16", "bfloat16", 25600, 512, 2048),
                ("float16", "float16", 25600, 512, 2048),
                ("float32 (TF32)", "float32", 25600, 512, 2048),
                ("bfloat16", "bfloat16", 25600, 512, 1408),
                ("bfloat16", "bfloat16", 6400, 512, 2048),
                ("bfloat16", "bfloat16", 25600, 256, 1024),
                ("bfloat16", "bfloat16", 8192, 1024, 4096),
                ("bfloat16", "bfloat16", 16384, 2048, 8192),
            )
        ),
        "matmuls alone",
        floor_impl="matmul_only",
    ),
    "geglu_ffn": Table(
        "geglu_ffn",
        GPU,
        {"stock": "PyTorch"},
        (
            ("(64, 400, 512), 2048", "bfloat16", "B64_T400_C512_F2048"),
            (
                "the same, dropout 0.1",
                "bfloat16",
                "B64_T400_C512_F2048_dropout",
            ),
            ("(64, 400, 512), 1408", "bfloat16", "B64_T400_C512_F1408"),
            ("(16, 400, 512), 2048", "bfloat16", "B16_T400_C512_F2048"),
        ),
        "matmuls alone",
    ),
    "transducer_loss": Table(
        "transducer_loss",
        EVENTS,
        LOSSES,
        tuple(
            (f"{b}, {t}, {u}, {v}", "bfloat16", f"B{b}_T{t}_U{u}_V{v}")
            for b, t, u, v in (
                (40, 375, 55, 1000),
                (16, 400, 60, 1000),
                (16, 200, 30, 4096),
                (64, 200, 60, 500),
            )
        ),
        "copy",
    ),
    "transducer_joint_loss": Table(
        "transducer_joint_loss",
        {"fwd_bwd": "fwd+bwd"},
        LOSSES,
        tuple(
            (f"{b}, {t}, {u}, {v}", "bfloat16", f"B{b}_T{t}_U{u}_V{v}_J640")
            for b, t, u, v in (
                (40, 375, 55, 1000),
                (16, 400, 60, 1000),
                (16, 200, 30, 4096),
                (64, 200, 60, 500),
            )
        ),
        "matmuls alone",
        ours={
            "triton_fused_joint": "fused",
            "triton": "`transducer_loss` behind the joint",
        },
    ),
}
# Lines of the overview: the link, table, case, pass, and words for the case.
OVERVIEW = (
    (
        "convolution.md#depthwise_conv1d",
        ("depthwise_conv1d", 0, "fwd_bwd"),
        "bfloat16, (64, 400, 512), 31 taps",
    ),
    (
        "convolution.md#conv_module",
        ("conv_module", 0, "fwd_bwd_gpu"),
        "bfloat16, (64, 400, 512), 31 taps",
    ),
    (
        "chunks.md",
        ("chunks_module", 5, "fwd_bwd_gpu"),
        "float16, the same in chunks of 8",
    ),
    (
        "front_ends.md#fastconformerfrontend",
        ("frontend", 0, "fwd_bwd_gpu"),
        "bfloat16, (64, 3200, 80), 256 channels",
    ),
    (
        "front_ends.md#tritonconvolutionfrontend",
        ("convolution_frontend", 0, "fwd_bwd_gpu"),
        "bfloat16, (40, 1500, 80)",
    ),
    (
        "feed_forward.md#geglu_linear",
        ("geglu_linear", 0, "fwd_bwd"),
        "bfloat16, 25600 x 512 to 2 x 2048",
    ),
    (
        "feed_forward.md#geglu_ffn",
        ("geglu_ffn", 1, "fwd_bwd_gpu"),
        "bfloat16, (64, 400, 512), 2048, dropout 0.1",
    ),
    (
        "transducer.md#transducer_loss",
        ("transducer_loss", 0, "fwd_bwd"),
        "bfloat16, 40 x 375 x 55 x 1000",
    ),
    (
        "transducer.md#transducer_joint_loss",
        ("transducer_joint_loss", 0, "fwd_bwd"),
        "the same behind 640 channels",
    ),
)

Rows = dict[tuple[str, ...], dict[str, str]]


def read_rows() -> Rows:
    """All rows, by op, pass, dtype, shape and impl."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return {
            tuple(row[k] for k in ("op", "pass", "dtype", "shape", "impl")): row
            for row in csv.DictReader(file)
        }


def render(name: str, rows: Rows) -> str:
    """The Markdown of a table.

    Arguments
    ---------
    name : str
        A key of ``TABLES``, or ``overview``.
    rows : dict
        From :func:`read_rows`.

    Returns
    -------
    str
        With a line feed behind each line.
    """
    if name == "overview":
        return _overview(rows)
    table = TABLES[name]
    ours = table.ours or {"triton": "kernels"}
    head = ["", "ms", *table.peers.values(), *ours.values(), "gain"]
    head += [table.floor] if table.floor else []
    memory = [*table.peers.values(), *ours.values()]
    head.append("peak MiB" if len(memory) == 2 else "peak MiB of each")
    lines = [head, ["---"] * len(head)]
    for words, dtype, shape in table.cases:
        for key, spelled in table.passes.items():
            found = [
                rows[table.op, key, dtype, shape, impl]
                for impl in (*table.peers, *ours)
            ]
            cells = [_ms(row) for row in found]
            line = [words, spelled, *cells, _gain(found, len(table.peers))]
            if table.floor:
                floor = (table.op, key, dtype, shape, table.floor_impl)
                line.append(_ms(rows[floor]) if floor in rows else "")
            line.append(
                ", ".join(f"{float(row['peak_mib']):.0f}" for row in found)
            )
            lines.append(line)
            words = ""
    return _markdown(lines)


def _overview(rows: Rows) -> str:
    lines = [
        ["op or module", "case", "best other", "kernels", "gain", "floor"],
        ["---"] * 6,
    ]
    for page, (name, number, key), words in OVERVIEW:
        table = TABLES[name]
        _, dtype, shape = table.cases[number]
        peers = [rows[table.op, key, dtype, shape, p] for p in table.peers]
        best = min(peers, key=lambda row: float(row["median_ms"]))
        ours = next(iter(table.ours or {"triton": ""}))
        found = [best, rows[table.op, key, dtype, shape, ours]]
        other = table.peers[best["impl"]]
        floor = (table.op, key, dtype, shape, table.floor_impl)
        lines.append(
            [
                f"[`{table.op}`](kernels/{page})",
                words,
                f"{_ms(best)} ({other})",
                _ms(found[1]),
                _gain(found, 1),
                f"{_ms(rows[floor])} ({table.floor})" if table.floor else "",
            ]
        )
    return _markdown(lines)


def _markdown(lines: list[list[str]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _ms(row: dict[str, str]) -> str:
    return f"{float(row['median_ms']):#.3g}".rstrip(".")


def _gain(found: list[dict[str, str]], n_peers: int) -> str:
    times = [float(row["median_ms"]) for row in found]
    gain = min(times[:n_peers]) / times[n_peers]
    return f"{gain:.0f}x" if gain >= 9.95 else f"{gain:.1f}x"


def updated(text: str, rows: Rows) -> str:
    """A page's text with its tables as the rows have them."""
    return MARKER.sub(lambda m: f"{m[1]}\n{render(m[2], rows)}\n{m[3]}", text)


def pages() -> list[Path]:
    """The pages that name a table."""
    return [
        path
        for path in sorted(DOCS.rglob("*.md"))
        if MARKER.search(path.read_text(encoding="utf-8"))
    ]


def main() -> None:
    """Write all tables."""
    rows = read_rows()
    for path in pages():
        text = path.read_text(encoding="utf-8")
        path.write_text(updated(text, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
