"""Interrupts that get through whatever library they come upon."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
# HyperPyYAML imports by pydoc, which takes any exception for a broken module.
_IMPORTERS = ("importlib._bootstrap", "pydoc")
_RETRY_SECONDS = 0.05
_PATIENCE_SECONDS = 1.0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes Ctrl-C and requests to end a KeyboardInterrupt that arrives.

    NumPy and PyTorch swallow one while they are imported, and fail or abort
    later on; NumPy also does where it makes an array of a list, and ruamel.yaml
    turns it into an exception of its own. So it waits for the end of an import,
    and is raised until it is seen that it is being handled.

    Raises
    ------
    KeyboardInterrupt
        After SIGINT, SIGTERM or SIGHUP, unless that is ignored, as with nohup.

    Example
    -------
    >>> try:
    ...     with interruptible():
    ...         with contextlib.suppress(KeyboardInterrupt):
    ...             signal.raise_signal(signal.SIGTERM)
    ...         time.sleep(20)
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    interrupted
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised = []

    def interrupt(number, frame):
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
        if _is_importing(frame):
            return
        # An impatient second one would leave behind what the first cleans up.
        if _is_handled() and (
            number == signal.SIGALRM
            or time.monotonic() - raised[-1] < _PATIENCE_SECONDS
        ):
            return
        raised.append(time.monotonic())
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt)
        for number in SIGNALS
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    except Exception as error:
        if raised:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") in _IMPORTERS:
            return True
        frame = frame.f_back
    return False


def _is_handled() -> bool:
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False
