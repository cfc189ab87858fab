"""Child process that speaks: JSON lines in, headed 16-bit samples out.

Run as a script with the paths of the library and of its data, it needs the
standard library alone. espeak-ng carries state (random numbers, the phase of
its flutter) from one utterance to the next, even through a new
initialisation, so each utterance is spoken in a fork of the freshly
initialised process: its samples then depend on its own request only.
"""

import ctypes
import json
import os
import signal
import struct
import sys
from typing import BinaryIO

HEADER = struct.Struct("<iI")  # status or sampling rate, bytes that follow
OK, FAILED = 0, 1

# Values from espeak-ng's speak_lib.h.
_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
_CHARS_UTF8 = 1
_PARAMETERS = {"rate": 1, "volume": 2, "pitch": 3, "range": 4, "word_gap": 7}
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


def _write(out: BinaryIO, status: int, payload: bytes) -> None:
    out.write(HEADER.pack(status, len(payload)) + payload)
    out.flush()


def _speak(library: ctypes.CDLL, request: dict) -> bytes:
    blocks = []

    @_CALLBACK
    def collect(samples, count, _events):
        if samples and count > 0:
            blocks.append(ctypes.string_at(samples, 2 * count))
        return 0

    library.espeak_SetSynthCallback(collect)
    # Initialisation seeds the generator with the time of day.
    library.espeak_ng_SetRandSeed(ctypes.c_long(request["seed"]))
    if library.espeak_SetVoiceByName(request["voice"].encode()):
        raise ValueError(f"espeak-ng does not know voice {request['voice']!r}")
    for name, number in _PARAMETERS.items():
        library.espeak_SetParameter(number, request[name], 0)
    text = request["text"].encode()
    status = library.espeak_Synth(
        text, ctypes.c_size_t(len(text) + 1), 0, 1, 0, _CHARS_UTF8, None, None
    )
    if status:
        raise RuntimeError(f"espeak_Synth returned {status}")
    return b"".join(blocks)


def _answer(library: ctypes.CDLL, request: dict, out: BinaryIO) -> None:
    """Speaks in a fork, which writes the answer unless it crashes."""
    child = os.fork()
    if child == 0:
        try:
            _write(out, OK, _speak(library, request))
        except Exception as error:
            _write(out, FAILED, str(error).encode())
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        _write(out, FAILED, f"espeak-ng ended with status {status}".encode())


def main() -> None:
    """Answers requests until standard input ends."""
    # Whoever reads the answers may leave in the midst of one.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    library_path, data_path = sys.argv[1:]
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps whatever the library prints out of the answers
    library = ctypes.CDLL(library_path)
    sample_rate = library.espeak_Initialize(
        _SYNCHRONOUS, 0, data_path.encode(), _DONT_EXIT
    )
    _write(out, sample_rate, b"")
    for line in sys.stdin.buffer:
        _answer(library, json.loads(line), out)


if __name__ == "__main__":
    main()
