"""Tokenizers made from the training transcripts, without a download."""

import csv
import os
from pathlib import Path
from typing import Protocol

from speechbrain.dataio.encoder import CTCTextEncoder
from speechbrain.tokenizers.SentencePiece import SentencePiece

TOKEN_TYPES = ("char", "word", "unigram", "bpe")

# SentencePiece keeps label 0 for what it does not know. It never occurs in
# the text that it was trained on, so label 0 can be the blank of both kinds.
BLANK = 0
UNKNOWN = "<unk>"


class Tokenizer(Protocol):
    """Text to labels and back; label 0 is the blank."""

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, labels: list[int]) -> str: ...


class UnitTokenizer:
    """Characters or words as labels.

    Arguments
    ---------
    token_type : str
        ``"char"`` or ``"word"``.
    train_csv : path
        Manifest whose column ``wrd`` gives the labels.
    path : path
        Where they are kept; an existing file is loaded.
    """

    def __init__(
        self,
        token_type: str,
        train_csv: str | os.PathLike,
        path: str | os.PathLike,
    ) -> None:
        self.token_type = token_type
        self.encoder = CTCTextEncoder()
        # The main process reads the transcripts and the others its file.
        self.encoder.load_or_create(
            str(path),
            from_iterables=[_sorted_units(self._split, train_csv)],
            special_labels={"blank_label": BLANK, "unk_label": UNKNOWN},
        )
        self.encoder.expect_len(len(self.encoder))

    def _split(self, text: str) -> list[str]:
        return list(text) if self.token_type == "char" else text.split()

    def __len__(self) -> int:
        return len(self.encoder)

    def encode(self, text: str) -> list[int]:
        """Give the labels of a transcript; unknown units become ``<unk>``."""
        return self.encoder.encode_sequence(self._split(text))

    def decode(self, labels: list[int]) -> str:
        """Give the text of labels without blanks."""
        # A model may have more outputs than there are labels.
        units = [self.encoder.ind2lab.get(k, UNKNOWN) for k in labels]
        return ("" if self.token_type == "char" else " ").join(units)


class PieceTokenizer:
    """SentencePiece pieces as labels.

    Arguments
    ---------
    token_type : str
        ``"unigram"`` or ``"bpe"``.
    train_csv : path
        Manifest whose column ``wrd`` trains the model.
    folder : path
        Where the model is kept; an existing one is loaded.
    vocab_size : int
        Pieces, with the label of the blank.

    Raises
    ------
    ValueError
        If the transcripts do not give that many pieces.
    """

    def __init__(
        self,
        token_type: str,
        train_csv: str | os.PathLike,
        folder: str | os.PathLike,
        vocab_size: int,
    ) -> None:
        try:
            model = SentencePiece(
                model_dir=str(folder),
                vocab_size=vocab_size,
                annotation_train=str(train_csv),
                annotation_read="wrd",
                model_type=token_type,
            )
        except RuntimeError as error:
            raise ValueError(
                f"output_neurons={vocab_size} does not suit {train_csv}; "
                f"SentencePiece says: {error}"
            ) from error
        self.pieces = model.sp

    def __len__(self) -> int:
        return self.pieces.vocab_size()

    def encode(self, text: str) -> list[int]:
        """Give the labels of a transcript, without unknown pieces."""
        return [k for k in self.pieces.encode_as_ids(text) if k != BLANK]

    def decode(self, labels: list[int]) -> str:
        """Give the text of labels without blanks."""
        return self.pieces.decode_ids(labels)


def make_tokenizer(
    token_type: str,
    train_csv: str | os.PathLike,
    save_folder: str | os.PathLike,
    output_neurons: int,
) -> Tokenizer:
    """Make, or load, the tokenizer of a recipe.

    Arguments
    ---------
    token_type : str
        ``"char"``, ``"word"``, ``"unigram"`` or ``"bpe"``.
    train_csv : path
        Manifest with the training transcripts in the column ``wrd``.
    save_folder : path
        Where the tokenizer is kept.
    output_neurons : int
        The model's vocabulary. Pieces fill it; characters or words, with the
        blank and the unknown label, must fit in.

    Returns
    -------
    Tokenizer
        With ``encode``, ``decode`` and ``len``.

    Raises
    ------
    ValueError
        For an unknown type, or a vocabulary that does not fit.

    Example
    -------
    >>> folder = getfixture("tmp_path")
    >>> _ = (folder / "train.csv").write_text("ID,wrd\\nu1,GO UP\\nu2,STOP\\n")
    >>> tokenizer = make_tokenizer("word", folder / "train.csv", folder, 5)
    >>> len(tokenizer)  # the words, the blank and the unknown label
    5
    >>> tokenizer.decode(tokenizer.encode("STOP GO LEFT"))
    'STOP GO <unk>'
    """
    if token_type not in TOKEN_TYPES:
        raise ValueError(
            f"token_type={token_type!r} is not one of {', '.join(TOKEN_TYPES)}."
        )
    folder = Path(save_folder)
    if token_type in ("unigram", "bpe"):
        return PieceTokenizer(token_type, train_csv, folder, output_neurons)
    tokenizer = UnitTokenizer(
        token_type, train_csv, folder / f"{token_type}_labels.txt"
    )
    if len(tokenizer) > output_neurons:
        raise ValueError(
            f"output_neurons={output_neurons} is too small: {train_csv} needs "
            f"{len(tokenizer)} labels of type {token_type}, with the blank "
            "and the unknown label."
        )
    return tokenizer


def _sorted_units(split, train_csv: str | os.PathLike):
    """Yield the distinct units, only once something asks for them."""
    with open(train_csv, newline="", encoding="utf-8") as file:
        units = {u for row in csv.DictReader(file) for u in split(row["wrd"])}
    yield from sorted(units)
