"""Ctrl-C and requests to end, which libraries would swallow."""

import contextlib
import signal
import sys
import time

import pytest

from speechbrain_triton import interrupts
from speechbrain_triton.interrupts import SIGNALS, interruptible


def importing(number, monkeypatch, folder):
    """As NumPy does, takes an interrupt for something that it can mend."""
    (folder / "swallowing.py").write_text(
        "import signal, time\n"
        "try:\n"
        f"    signal.raise_signal({int(number)})\n"
        "    time.sleep(0.2)\n"
        "    whole = True\n"
        "except BaseException:\n"
        "    whole = False\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "swallowing", raising=False)
    import swallowing

    assert swallowing.whole
    time.sleep(20)


def suppressing(number, *_):
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)
    time.sleep(20)


def converting(number, *_):
    try:
        signal.raise_signal(number)
    except BaseException:
        raise ValueError("is not valid YAML") from None


def waiting(number, *_):
    try:
        signal.raise_signal(number)
    finally:
        # Something that has to be ended takes longer than an alarm.
        time.sleep(0.2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("act", [importing, suppressing, converting, waiting])
def test_interrupt_arrives(act, number, monkeypatch, tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interruptible():
        act(number, monkeypatch, tmp_path)
    assert time.monotonic() - started < 10
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("patience", [60, 0])
def test_impatient_second_one(patience, monkeypatch):
    monkeypatch.setattr(interrupts, "_PATIENCE_SECONDS", patience)
    cleaned_up = False
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleaned_up = True
    assert cleaned_up == bool(patience)


def test_ignored_signals_stay_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
            time.sleep(0.1)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
