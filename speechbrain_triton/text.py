"""Making text from files and file names fit to be shown."""

# They join and part letters in Persian and Indic words, so they are words'.
_JOINERS = "\u200c\u200d"
_LONGEST = 30


def printable(text: str) -> str:
    """Spells what shows nothing or reverses a line as escape sequences.

    A folder's name may hold a line end, or bytes that are no UTF-8.

    Arguments
    ---------
    text : str

    Returns
    -------
    str
        Encodable as UTF-8 and free of control characters.

    Example
    -------
    >>> printable("Zoë\\n\\udcff")
    'Zoë\\\\n\\\\udcff'
    """
    return "".join(
        character
        if character.isprintable() or character in _JOINERS
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def shorten(text: str) -> str:
    """Takes the middle out of a long text.

    Example
    -------
    >>> shorten("conformer_transducer_streaming_1234")
    'conformer_trans…streaming_1234'
    """
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}…{text[1 - half :]}"
