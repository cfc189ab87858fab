"""Draws the figures of the documentation: ``python docs/scripts/drawings.py``.

Each is an SVG with a background of its own, which follows the reader's
preference for light or dark.
"""

from pathlib import Path
from xml.sax.saxutils import escape

FIGURES = Path(__file__).parents[1] / "figures"

STYLE = """
.page{fill:#fff}
text{font:14px sans-serif;fill:#1d232b}
.small{font-size:12px;fill:#4d5866}
.box{fill:#eef1f5;stroke:#7b8794}
.read{fill:#9cc9f0;stroke:#2f6ea8}
.kept{fill:#ffd98a;stroke:#a87713}
.work{fill:#b5e0b8;stroke:#3c8142}
.cut{fill:none;stroke:#c2452d;stroke-dasharray:3 2}
.line{stroke:#4d5866;stroke-width:1.5;fill:none}
.head{fill:#4d5866}
.border{stroke:#c2452d;stroke-width:2}
@media(prefers-color-scheme:dark){
.page{fill:#1e2129}
text{fill:#e6e9ee}
.small{fill:#b3bcc8}
.box{fill:#2c313c;stroke:#8b96a5}
.read{fill:#1f4f7a;stroke:#7fbaf0}
.kept{fill:#6b4c0c;stroke:#f0bf57}
.work{fill:#28582c;stroke:#86cf8c}
.cut{stroke:#ff8a72}
.line{stroke:#b3bcc8}
.head{fill:#b3bcc8}
.border{stroke:#ff8a72}
}
"""


class Drawing:
    """An SVG in the making.

    Arguments
    ---------
    width, height : int
        In pixels.
    title : str
        What it shows, for readers who do not see it.
    """

    def __init__(self, width: int, height: int, title: str):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} '
            f'{height}" width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        ]

    def text(self, x, y, words, anchor="start", kind="") -> None:
        """Write a line of text; y is that of its base line."""
        self.parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    def box(self, x, y, width, height, kind="box", *lines) -> None:
        """Draw a rectangle around lines of text; small ones from the second."""
        self.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="2"/>'
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, words in enumerate(lines):
            self.text(
                x + width / 2,
                top + 18 * number,
                words,
                "middle",
                "small" if number else "",
            )

    def line(self, x1, y1, x2, y2, kind="line") -> None:
        """Draw a straight line."""
        self.parts.append(
            f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" '
            f'y2="{y2:g}"/>'
        )

    def arrow(self, x1, y1, x2, y2) -> None:
        """Draw a horizontal or vertical arrow."""
        dx = (x2 > x1) - (x2 < x1)
        dy = (y2 > y1) - (y2 < y1)
        self.line(x1, y1, x2 - 6 * dx, y2 - 6 * dy)
        points = (
            (x2, y2),
            (x2 - 8 * dx - 4 * dy, y2 - 8 * dy - 4 * dx),
            (x2 - 8 * dx + 4 * dy, y2 - 8 * dy + 4 * dx),
        )
        joined = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polygon class="head" points="{joined}"/>')

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


def row_walk() -> Drawing:
    """The window of depthwise_conv1d, from one tile to the next."""
    picture = Drawing(
        720,
        250,
        "A tile of 16 output frames reads a window of 46; the next tile keeps "
        "30 of them in registers and loads 16",
    )
    cell, left = 10.5, 24
    for number, top in enumerate((58, 158)):
        first = 16 * number
        picture.text(
            left, top - 30, ("A tile, 31 taps", "The next tile")[number]
        )
        for frame in range(62):
            x = left + cell * frame
            inside = first <= frame < first + 46
            new = frame >= 46 or number == 0
            kind = ("read" if new else "kept") if inside else "box"
            picture.box(x, top, cell - 1.5, 18, kind)
            if first + 15 <= frame < first + 31:
                picture.box(x, top + 26, cell - 1.5, 18, "work")
        picture.text(
            left + cell * (first + 31) + 6,
            top + 40,
            "16 outputs, summed in registers",
            kind="small",
        )
        words = (
            "window: 46 frames, each loaded once",
            "30 frames stay in registers, 16 are loaded",
        )[number]
        picture.text(left + cell * first, top - 8, words, kind="small")
    picture.text(left, 238, "time, one channel", kind="small")
    picture.arrow(left + 112, 234, left + 240, 234)
    return picture


def chunks() -> Drawing:
    """Which inputs an output sees, with full context and in chunks."""
    taps, frames, chunk, cell = 7, 12, 4, 21
    picture = Drawing(
        720,
        372,
        "With chunks a tap to the right of the centre is left out where it "
        "would read past the end of the output frame's chunk",
    )
    for panel, left in enumerate((52, 408)):
        title = ("Full context", f"Chunks of {chunk} frames")[panel]
        picture.text(left, 26, title)
        picture.text(left, 46, "input frames", kind="small")
        for t in range(frames):
            end = frames if panel == 0 else (t // chunk + 1) * chunk
            for s in range(frames):
                seen = abs(s - t) <= taps // 2
                kind = "box" if not seen else "read" if s < end else "cut"
                x, y = left + cell * s, 56 + cell * t
                picture.box(x, y, cell - 3, cell - 3, kind)
            picture.text(
                left - 8, 70 + cell * t, f"y[{t}]", "end", kind="small"
            )
        if panel:
            for end in range(chunk, frames, chunk):
                x, y = left + cell * end - 1.5, 56 + cell * (end - chunk)
                picture.line(x, y, x, y + cell * chunk - 3, "border")
    for x, kind, words in (
        (52, "read", "is multiplied"),
        (202, "cut", "masked: past the end of the chunk"),
        (476, "box", "out of reach of the 7 taps"),
    ):
        picture.box(x, 334, 18, 18, kind)
        picture.text(x + 26, 348, words, kind="small")
    return picture


def conv_module() -> Drawing:
    """The passes of the convolution module, and what each writes."""
    picture = Drawing(
        720,
        214,
        "Passes of the convolution module, and the tensors that are kept for "
        "backward",
    )
    passes = ("layer norm", "linear", "GLU", "conv", "norm, act", "linear")
    tensors = (
        ("x", "C", "kept"),
        ("normed", "C", "kept"),
        ("h", "2 C", "kept"),
        ("gated", "C", "box"),
        ("y", "C", "kept"),
        ("input", "C", "kept"),
        ("out", "C", "box"),
    )
    step = 102
    for number, (name, size, kind) in enumerate(tensors):
        picture.box(16 + step * number, 52, 62, 50, kind, name, size)
        if number < len(passes):
            x = 78 + step * number
            picture.arrow(x + 4, 77, x + 36, 77)
            kind = "work" if passes[number] != "linear" else "read"
            picture.box(x - 22, 124, 84, 30, kind, passes[number])
            picture.line(x + 20, 84, x + 20, 124)
    picture.text(16, 30, "Tensors (numbers a frame), and the passes between")
    for x, kind, words in (
        (16, "kept", "kept for backward"),
        (196, "box", "not kept"),
        (316, "work", "kernel"),
        (426, "read", "PyTorch's matmul"),
    ):
        picture.box(x, 178, 18, 18, kind)
        picture.text(x + 26, 192, words, kind="small")
    return picture


def stem() -> Drawing:
    """The front end's first two convolutions, with and without the hidden."""
    picture = Drawing(
        720,
        330,
        "The front end's hidden layer of 2.1 GB is written by PyTorch; the "
        "kernel keeps 131 MB of patches and computes it anew",
    )
    picture.text(24, 30, "PyTorch")
    picture.box(24, 56, 90, 70, "read", "features", "33 MB")
    picture.arrow(118, 91, 216, 91)
    picture.text(167, 82, "conv, ReLU", "middle", "small")
    picture.box(220, 42, 240, 98, "cut", "hidden layer, C channels", "2.1 GB")
    picture.arrow(464, 91, 562, 91)
    picture.text(513, 82, "depthwise", "middle", "small")
    picture.box(566, 56, 130, 70, "read", "output", "524 MB")
    picture.text(24, 186, "conv_stem")
    picture.box(24, 212, 90, 70, "read", "features", "33 MB")
    picture.arrow(118, 247, 160, 247)
    picture.box(164, 212, 120, 70, "kept", "patches of 16", "131 MB")
    picture.arrow(288, 247, 330, 247)
    picture.box(
        334,
        200,
        184,
        94,
        "work",
        "hidden = ReLU(W patch)",
        "in registers, for each",
        "of the 9 depthwise taps",
    )
    picture.arrow(522, 247, 562, 247)
    picture.box(566, 212, 130, 70, "read", "output", "524 MB")
    picture.text(
        24,
        316,
        "64 utterances of 3200 frames and 80 features, 256 channels, bfloat16",
        kind="small",
    )
    return picture


def geglu() -> Drawing:
    """Who works when, in an ordinary kernel and in the one for Hopper."""
    picture = Drawing(
        720,
        288,
        "In an ordinary kernel multiplying waits for gating; with warps of "
        "their own both go on at once",
    )
    picture.text(24, 30, "An ordinary kernel: all warps do both in turn")
    x = 150
    for tile in range(3):
        picture.box(x, 48, 96, 34, "read", f"multiply {tile}")
        picture.box(x + 98, 48, 84, 34, "work", f"gate {tile}")
        x += 184
    picture.text(24, 70, "all warps")
    picture.text(24, 130, "Here: warps that multiply, and warps that gate")
    for tile in range(5):
        x = 150 + 98 * tile
        picture.box(x, 148, 96, 34, "read", f"multiply {tile}")
        if tile:
            picture.box(x + 10, 214, 84, 34, "work", f"gate {tile - 1}")
            picture.arrow(x, 182, x, 230)
    picture.text(24, 170, "8 warps")
    picture.text(24, 236, "4 warps")
    picture.text(
        24,
        276,
        "Arrows: a finished tile, handed over in shared memory as 16-bit "
        "numbers",
        kind="small",
    )
    return picture


def lattice() -> Drawing:
    """The transducer's lattice, walked over anti-diagonals."""
    frames, labels, step = 7, 4, 50
    picture = Drawing(
        720,
        330,
        "The lattice of frames and labels; all nodes of an anti-diagonal are "
        "computed at once",
    )
    left, bottom = 60, 250
    for t in range(frames):
        for u in range(labels + 1):
            x, y = left + step * t, bottom - step * u
            if t + 1 < frames:
                picture.arrow(x + 10, y, x + step - 10, y)
            if u < labels:
                picture.arrow(x, y - 10, x, y - step + 10)
            kind = "kept" if t + u == 4 else "box"
            picture.box(x - 10, y - 10, 20, 20, kind)
    picture.text(left - 10, 290, "frame t: a step to the right is a blank")
    picture.text(
        left - 10, 314, "label u: a step up emits the next label", kind=""
    )
    notes = (
        ("1", "read the logits once and keep", "log p of blank and of label"),
        ("2", "walk over anti-diagonals, all", "labels of one at a time"),
        ("3", "read the logits again, write", "their gradient once"),
    )
    for row, (number, first, second) in enumerate(notes):
        y = 50 + 84 * row
        picture.box(410, y, 30, 44, "work", number)
        picture.text(454, y + 18, first)
        picture.text(454, y + 38, second)
    return picture


FIGURE = {
    "row_walk": row_walk,
    "chunks": chunks,
    "conv_module": conv_module,
    "stem": stem,
    "geglu": geglu,
    "lattice": lattice,
}


def main() -> None:
    """Write all figures."""
    for name, draw in FIGURE.items():
        path = FIGURES / f"{name}.svg"
        path.write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
