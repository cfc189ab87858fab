"""The README of an exported folder."""

from pathlib import Path

from speechbrain.inference.ASR import StreamingASR

from speechbrain_triton.streaming.templates import read_template
from speechbrain_triton.text import printable


def write_readme(folder: Path, name: str, asr: StreamingASR) -> None:
    """Write README.md into an exported folder.

    Arguments
    ---------
    folder : Path
        Where to.
    name : str
        What the folder will be called.
    asr : StreamingASR
        The exported model.
    """
    extractor = asr.hparams.fea_streaming_extractor
    config = asr.hparams.streaming_config
    ms = 1000 / asr.hparams.sample_rate
    left = config.left_context_size
    text = read_template("README.md").substitute(
        # No file can hold a name that is no text.
        name=printable(name),
        chunk_size=config.chunk_size,
        left="full" if left is None else left,
        # SpeechBrain's own streaming needs a number.
        left_python=10**6 if left is None else left,
        chunk_ms=f"{config.chunk_size * extractor.stride * ms:g}",
        lookahead_ms=f"{extractor.lookahead * ms:.0f}",
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
