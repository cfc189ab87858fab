"""Streaming inference with finished runs of the transducer recipes."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speechbrain_triton.streaming.export import Export, export_run
    from speechbrain_triton.streaming.features import (
        FeatureStream,
        StreamingFeatures,
    )
    from speechbrain_triton.streaming.loading import load_folder
    from speechbrain_triton.streaming.recognizer import (
        Recognized,
        recognize_stream,
        recognize_whole,
    )
    from speechbrain_triton.streaming.tokens import (
        LabelStream,
        decode_labels,
        decode_pieces,
    )

__all__ = [
    "Export",
    "FeatureStream",
    "LabelStream",
    "Recognized",
    "StreamingFeatures",
    "decode_labels",
    "decode_pieces",
    "export_run",
    "load_folder",
    "recognize_stream",
    "recognize_whole",
]
_HOMES = {
    "Export": "export",
    "FeatureStream": "features",
    "LabelStream": "tokens",
    "Recognized": "recognizer",
    "StreamingFeatures": "features",
    "decode_labels": "tokens",
    "decode_pieces": "tokens",
    "export_run": "export",
    "load_folder": "loading",
    "recognize_stream": "recognizer",
    "recognize_whole": "recognizer",
}


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str):
    # The commands' --help does not wait for torch and SpeechBrain.
    if name in _HOMES:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
        return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
