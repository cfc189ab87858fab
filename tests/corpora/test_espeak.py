"""espeak-ng in its child process: what is said depends on the request alone."""

import io
import os
import signal
import sys

import numpy as np
import pytest

pytest.importorskip("espeakng_loader")

from speechbrain_triton.corpora import _espeak_worker, espeak
from speechbrain_triton.corpora._espeak_worker import FAILED, HEADER
from speechbrain_triton.corpora.espeak import Synthesizer
from speechbrain_triton.corpora.utterances import TEST_VOICES, TRAIN_VOICES

VOICES = {**TRAIN_VOICES, **TEST_VOICES}


@pytest.fixture(scope="module")
def synthesizer():
    with Synthesizer() as running:
        yield running


# The last two carry more state than others: a Klatt voice and a whisper.
@pytest.mark.parametrize(
    "voice", ["gmw/en-US+f2", "gmw/en+klatt4", "gmw/en+whisper"]
)
def test_earlier_utterances_leave_no_trace(synthesizer, voice):
    first = synthesizer.speak("one two", voice, seed=3)
    synthesizer.speak("call nine", "gmw/en-US+m1", seed=9, rate=210, pitch=60)
    again = synthesizer.speak("one two", voice, seed=3)
    np.testing.assert_array_equal(first, again)
    with Synthesizer() as other:
        fresh = other.speak("one two", voice, seed=3)
    np.testing.assert_array_equal(first, fresh)


def test_every_voice_is_one_of_its_own(synthesizer):
    bases = {name.partition("+")[0] for name in VOICES.values()}
    names = [*VOICES.values(), *bases]
    spoken = {
        synthesizer.speak("three four", name, seed=1).tobytes()
        for name in names
    }
    assert len(spoken) == len(names)


@pytest.mark.parametrize(
    "change",
    [{"rate": 120}, {"pitch": 70}, {"intonation": 5}, {"word_gap": 20}],
)
def test_each_setting_is_heard(synthesizer, change):
    plain = synthesizer.speak("one two", "gmw/en-US+f2", seed=1)
    changed = synthesizer.speak("one two", "gmw/en-US+f2", seed=1, **change)
    assert plain.tobytes() != changed.tobytes()
    if change.keys() & {"rate", "word_gap"}:
        assert len(changed) > 1.1 * len(plain)


@pytest.mark.parametrize("voice", ["gmw/en-US+nobody", "gmw/xx", "gmw/xx+f2"])
def test_unknown_voice_is_refused(synthesizer, voice):
    with pytest.raises(ValueError, match="espeak-ng has no"):
        synthesizer.speak("one", voice, seed=1)


def test_failure_in_the_library_is_reported_and_survived(
    synthesizer, monkeypatch
):
    monkeypatch.setattr(synthesizer, "_check_voice", lambda voice: None)
    with pytest.raises(RuntimeError, match="does not know voice 'gmw/xx'"):
        synthesizer.speak("one", "gmw/xx", seed=1)
    assert len(synthesizer.speak("one", "gmw/en-US+f2", seed=1))


def test_crash_of_the_library_is_reported():
    class Crashing:
        def espeak_SetSynthCallback(self, _callback):
            os.kill(os.getpid(), signal.SIGKILL)

    answer = io.BytesIO()
    _espeak_worker._answer(Crashing(), {"seed": 1}, answer)
    status, size = HEADER.unpack(answer.getvalue()[: HEADER.size])
    message = answer.getvalue()[HEADER.size :]
    assert status == FAILED and size == len(message)
    assert message == b"espeak-ng ended with status 9"


def test_ended_process_is_reported():
    with Synthesizer() as broken:
        broken._process.kill()
        broken._process.wait()
        with pytest.raises(RuntimeError, match="ended with code -9"):
            broken.speak("one", "gmw/en-US+f2", seed=1)


def test_missing_data_is_reported(monkeypatch, tmp_path):
    loader = espeak._loader()
    monkeypatch.setattr(loader, "get_data_path", lambda: str(tmp_path))
    with pytest.raises(RuntimeError, match="espeak-ng"):
        Synthesizer()


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ImportError, match="pip install espeakng-loader"):
        Synthesizer()
