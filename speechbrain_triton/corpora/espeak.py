"""Speech from espeak-ng, each utterance a function of its request alone."""

import contextlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from speechbrain_triton.corpora import _espeak_worker
from speechbrain_triton.corpora._espeak_worker import HEADER, OK

VOLUME = 60
"""espeak-ng's loudness; at its default of 100 some voices reach full scale."""


def _loader() -> ModuleType:
    try:
        import espeakng_loader
    except ImportError as error:
        raise ImportError(
            "The SpokenNumbers corpus is spoken by espeak-ng, which is not "
            "installed: pip install espeakng-loader"
        ) from error
    return espeakng_loader


def synthesizer_version() -> str:
    """Says which espeak-ng would speak.

    Returns
    -------
    str
        Name and version of the package that brings library and voices.

    Raises
    ------
    ImportError
        If it is not installed.

    Example
    -------
    >>> synthesizer_version().split()[0]
    'espeakng-loader'
    """
    _loader()
    return f"espeakng-loader {importlib.metadata.version('espeakng-loader')}"


class Synthesizer:
    """espeak-ng in a child process.

    The library is kept out of the calling process because it changes the
    locale and may crash it. The same request gives the same samples, whatever
    was spoken before it.

    Raises
    ------
    ImportError
        If the package ``espeakng-loader`` is not installed.
    RuntimeError
        If espeak-ng does not start.

    Example
    -------
    >>> with Synthesizer() as synthesizer:
    ...     samples = synthesizer.speak("one two", "gmw/en-US+f2", seed=1)
    >>> samples.dtype, 0.3 < len(samples) / synthesizer.sample_rate < 1.5
    (dtype('int16'), True)
    """

    sample_rate: int
    """Of what :meth:`speak` returns, in Hz."""

    def __init__(self):
        loader = _loader()
        self._data = Path(loader.get_data_path())
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-IS",
                _espeak_worker.__file__,
                loader.get_library_path(),
                str(self._data),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C reaches a whole session; closing the pipe ends this one.
            start_new_session=True,
        )
        try:
            self.sample_rate, _ = self._read()
        except BaseException:
            self.close()
            raise
        if self.sample_rate <= 0:
            self.close()
            raise RuntimeError(f"espeak-ng cannot load {self._data}.")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self) -> None:
        """Ends the child process."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def speak(
        self,
        text: str,
        voice: str,
        *,
        seed: int,
        rate: int = 175,
        pitch: int = 50,
        intonation: int = 50,
        word_gap: int = 0,
    ) -> np.ndarray:
        """Speaks one utterance.

        Arguments
        ---------
        text : str
            What to say.
        voice : str
            A language file of espeak-ng, with or without a variant, such as
            ``"gmw/en-US+f2"``.
        seed : int
            For the noise within the voice (breath, flutter).
        rate : int
            Words a minute, 80 to 450.
        pitch : int
            0 to 99; 50 is the voice's own.
        intonation : int
            Range of the pitch, 0 (monotone) to 99.
        word_gap : int
            Extra pause between words, in units of 10 ms at ``rate`` 175.

        Returns
        -------
        np.ndarray
            Shape (samples,), dtype int16, at :attr:`sample_rate`.

        Raises
        ------
        ValueError
            If espeak-ng has no such voice or variant.
        RuntimeError
            If espeak-ng fails or says nothing.
        """
        self._check_voice(voice)
        request: dict[str, Any] = {
            "text": text,
            "voice": voice,
            "seed": seed,
            "rate": rate,
            "pitch": pitch,
            "range": intonation,
            "word_gap": word_gap,
            "volume": VOLUME,
        }
        with contextlib.suppress(BrokenPipeError):  # reading tells the reason
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        status, payload = self._read()
        if status != OK:
            reason = payload.decode()
            raise RuntimeError(f"Voice {voice} cannot say {text!r}: {reason}.")
        if not payload:
            raise RuntimeError(f"Voice {voice} says nothing for {text!r}.")
        return np.frombuffer(payload, np.dtype("<i2"))

    def _check_voice(self, voice: str) -> None:
        """espeak-ng takes an unknown variant for none, without a word."""
        language, _, variant = voice.partition("+")
        files = [self._data / "lang" / language]
        if variant:
            files.append(self._data / "voices" / "!v" / variant)
        for file in files:
            if not file.is_file():
                raise ValueError(
                    f"voice is {voice!r}, but espeak-ng has no {file}."
                )

    def _read(self) -> tuple[int, bytes]:
        header = self._process.stdout.read(HEADER.size)
        if len(header) < HEADER.size:
            code = self._process.wait()
            raise RuntimeError(f"espeak-ng's process ended with code {code}.")
        status, size = HEADER.unpack(header)
        return status, self._process.stdout.read(size)
