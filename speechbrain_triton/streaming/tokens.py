"""Text of a stream's labels, put together as they come."""

from dataclasses import dataclass

from sentencepiece import SentencePieceProcessor
from speechbrain.dataio.encoder import CTCTextEncoder

from speechbrain_triton.training.tokens import UNKNOWN

# With which SentencePiece begins a word.
_SPACE = "\u2581"


@dataclass
class LabelStream:
    """What :func:`decode_labels` and :func:`decode_pieces` keep of a stream.

    Arguments
    ---------
    begun : bool
        Whether there was a label.
    """

    begun: bool = False


def decode_labels(
    encoder: CTCTextEncoder,
    labels: list[int],
    context: LabelStream,
    separator: str = "",
) -> str:
    """Give the text that characters or words add to a stream.

    Arguments
    ---------
    encoder : CTCTextEncoder
        Names the labels.
    labels : list of int
        Without blanks.
    context : LabelStream
        Of this stream; changed in place.
    separator : str
        Stands between labels: ``""`` for characters, ``" "`` for words.

    Returns
    -------
    str
        To be put behind the text so far.

    Example
    -------
    >>> encoder = CTCTextEncoder()
    >>> encoder.update_from_iterable(["GO", "UP"], sequence_input=False)
    >>> stream = LabelStream()
    >>> [decode_labels(encoder, [k], stream, " ") for k in (0, 1)]
    ['GO', ' UP']
    """
    text = separator.join(encoder.ind2lab.get(k, UNKNOWN) for k in labels)
    if labels and context.begun:
        text = separator + text
    context.begun = context.begun or bool(labels)
    return text


def decode_pieces(
    pieces: SentencePieceProcessor, labels: list[int], context: LabelStream
) -> str:
    """Give the text that SentencePiece's pieces add to a stream.

    It does what SpeechBrain's ``spm_decode_preserve_leading_space`` does,
    which asks for something that newer releases of SentencePiece lack.

    Arguments
    ---------
    pieces : SentencePieceProcessor
        Names the labels.
    labels : list of int
        Without blanks.
    context : LabelStream
        Of this stream; changed in place.

    Returns
    -------
    str
        To be put behind the text so far.
    """
    text = pieces.decode_ids(labels)
    # SentencePiece takes the first label for that of a text.
    if labels and context.begun:
        if pieces.id_to_piece(labels[0]).startswith(_SPACE):
            text = " " + text
    context.begun = context.begun or bool(labels)
    return text
