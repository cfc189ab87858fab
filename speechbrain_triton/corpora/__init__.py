"""Spoken corpora: SpeechBrain manifests, and a corpus made on the spot.

:func:`prepare_spoken_numbers` lets espeak-ng speak numbers and commands, so
that training needs no download; :func:`prepare_an4` and
:func:`prepare_librispeech` list copies of CMU's AN4 and of LibriSpeech.
Nothing here needs torch.
"""

from speechbrain_triton.corpora.an4 import prepare_an4
from speechbrain_triton.corpora.librispeech import prepare_librispeech
from speechbrain_triton.corpora.spoken_numbers import prepare_spoken_numbers

__all__ = ["prepare_an4", "prepare_librispeech", "prepare_spoken_numbers"]
