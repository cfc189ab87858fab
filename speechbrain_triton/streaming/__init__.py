"""Streaming inference with finished runs of the transducer recipes."""

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
