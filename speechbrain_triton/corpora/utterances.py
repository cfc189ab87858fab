"""What SpokenNumbers says: words, voices, and how an utterance sounds."""

from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter, resample_poly

from speechbrain_triton.corpora.espeak import Synthesizer
from speechbrain_triton.corpora.files import SAMPLE_RATE

SPLITS = ("train", "valid", "test")

TRAIN_VOICES = {
    "us_f2": "gmw/en-US+f2",
    "us_m1": "gmw/en-US+m1",
    "gb_f3": "gmw/en+f3",
    "gb_m3": "gmw/en+m3",
    "us_annie": "gmw/en-US+Annie",
    "us_mario": "gmw/en-US+Mario",
    "gb_linda": "gmw/en+linda",
    "gb_m7": "gmw/en+m7",
    "us_f4": "gmw/en-US+f4",
    "us_john": "gmw/en-US+john",
    "rp_f5": "gmw/en-GB-x-rp+f5",
    "rp_m4": "gmw/en-GB-x-rp+m4",
}
TEST_VOICES = {
    "us_f1": "gmw/en-US+f1",
    "us_m2": "gmw/en-US+m2",
    "gb_belinda": "gmw/en+belinda",
    "gb_robert": "gmw/en+robert",
}
"""espeak-ng's name of the voice by speaker."""

DIGITS = "ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split()
SINGLE_COMMANDS = "START STOP GO YES NO HELP REPEAT CANCEL".split()


class Utterance(NamedTuple):
    """Everything that decides how one utterance sounds."""

    ID: str
    speaker: str
    words: str
    rate: int  # words a minute
    pitch: int  # espeak-ng's scale, 50 is the voice's own
    intonation: int  # espeak-ng's scale
    word_gap: int  # 10 ms each at the default rate; 0 is fluent
    level_db: float  # RMS of the speech, full scale is 0
    snr_db: float
    noise_pole: float  # 0 is white, towards 1 low frequencies prevail
    lead: float  # seconds of noise alone before the speech
    tail: float  # and after it
    seed: int


def draw_utterance(seed: int, split: str, index: int) -> Utterance:
    """Draws one utterance, independent of all others.

    Arguments
    ---------
    seed : int
        Seed of the corpus, at least 0.
    split : str
        ``"train"``, ``"valid"`` or ``"test"``.
    index : int
        Number of the utterance within the split, from 0.

    Returns
    -------
    Utterance
        What is said, by whom and how.

    Example
    -------
    >>> draw_utterance(1, "test", 0).speaker in TEST_VOICES
    True
    """
    random = np.random.default_rng([seed, SPLITS.index(split), index])
    speakers = list(TEST_VOICES if split == "test" else TRAIN_VOICES)
    fluent = random.random() < 0.5
    return Utterance(
        ID=f"{split}-{index:05d}",
        speaker=speakers[index % len(speakers)],
        words=_draw_words(random),
        rate=int(random.integers(145, 216)),
        pitch=int(random.integers(35, 66)),
        intonation=int(random.integers(30, 71)),
        word_gap=0 if fluent else int(random.integers(1, 9)),
        level_db=random.uniform(-30.0, -18.0),
        snr_db=random.uniform(20.0, 40.0),
        noise_pole=random.uniform(0.0, 0.9),
        lead=random.uniform(0.05, 0.2),
        tail=random.uniform(0.05, 0.2),
        seed=int(random.integers(2**31)),
    )


def _draw_words(random: np.random.Generator) -> str:
    def digits(least: int, most: int) -> str:
        count = random.integers(least, most + 1)
        return " ".join(random.choice(DIGITS, count))

    def one_of(words: list[str]) -> str:
        return str(random.choice(words))

    draw = random.random()
    if draw < 0.45:
        return digits(1, 5)
    if draw < 0.55:
        return f"CALL {digits(2, 4)}"
    if draw < 0.63:
        return f"ENTER {digits(1, 3)}"
    if draw < 0.70:
        return f"{one_of(['OPEN', 'CLOSE'])} {digits(1, 1)}"
    if draw < 0.77:
        return f"{one_of(['TURN', 'GO'])} {one_of(['LEFT', 'RIGHT'])}"
    return one_of(SINGLE_COMMANDS)


def render(utterance: Utterance, synthesizer: Synthesizer) -> np.ndarray:
    """Speaks an utterance, sets its level and adds noise.

    Arguments
    ---------
    utterance : Utterance
        What to say and how.
    synthesizer : Synthesizer
        Who says it.

    Returns
    -------
    np.ndarray
        Shape (samples,), dtype int16, at 16 kHz.

    Example
    -------
    >>> with Synthesizer() as synthesizer:
    ...     render(draw_utterance(1, "test", 0), synthesizer).dtype
    dtype('int16')
    """
    spoken = synthesizer.speak(
        utterance.words.lower(),
        {**TRAIN_VOICES, **TEST_VOICES}[utterance.speaker],
        seed=utterance.seed,
        rate=utterance.rate,
        pitch=utterance.pitch,
        intonation=utterance.intonation,
        word_gap=utterance.word_gap,
    )
    common = np.gcd(SAMPLE_RATE, synthesizer.sample_rate)
    speech = resample_poly(
        spoken / 32768.0,
        SAMPLE_RATE // common,
        synthesizer.sample_rate // common,
    )
    gain = 10 ** (utterance.level_db / 20) / _rms(speech)
    speech *= min(gain, 0.9 / np.abs(speech).max())
    padded = np.pad(
        speech,
        (
            round(utterance.lead * SAMPLE_RATE),
            round(utterance.tail * SAMPLE_RATE),
        ),
    )
    white = np.random.default_rng(utterance.seed).standard_normal(len(padded))
    noise = lfilter([1.0], [1.0, -utterance.noise_pole], white)
    noise *= _rms(speech) / _rms(noise) / 10 ** (utterance.snr_db / 20)
    mixed = np.clip(padded + noise, -1.0, 1.0)
    return np.round(mixed * 32767.0).astype(np.int16)


def _rms(signal: np.ndarray) -> float:
    return float(np.sqrt(np.mean(signal**2)))
