"""Tokenizers made from a manifest."""

import pytest

from speechbrain_triton.training.tokens import BLANK, make_tokenizer

SENTENCES = ["ONE TWO", "GO TO ONE", "IT'S TWO TWO", "STOP"] * 5


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "train.csv"
    rows = [f"u{i},1.0,x.flac,s,{s}" for i, s in enumerate(SENTENCES)]
    path.write_text("\n".join(["ID,duration,wav,spk_id,wrd", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("token_type", "neurons"),
    [("char", 20), ("word", 12), ("unigram", 12), ("bpe", 18)],
)
def test_text_survives_and_never_becomes_the_blank(
    manifest, tmp_path, token_type, neurons
):
    tokenizer = make_tokenizer(token_type, manifest, tmp_path, neurons)
    assert len(tokenizer) <= neurons
    for sentence in set(SENTENCES):
        labels = tokenizer.encode(sentence)
        assert BLANK not in labels
        assert max(labels) < len(tokenizer)
        assert tokenizer.decode(labels) == sentence
    assert tokenizer.decode([]) == ""


def test_words_of_a_later_manifest_are_unknown(manifest, tmp_path):
    first = make_tokenizer("word", manifest, tmp_path, 12)
    manifest.write_text("ID,duration,wav,spk_id,wrd\nu,1,x,s,NEW\n")
    again = make_tokenizer("word", manifest, tmp_path, 12)
    assert again.encode("GO STOP") == first.encode("GO STOP")
    assert again.decode(again.encode("GO NEW")) == "GO <unk>"


def test_outputs_beyond_the_labels_are_unknown(manifest, tmp_path):
    tokenizer = make_tokenizer("word", manifest, tmp_path, 30)
    assert tokenizer.decode([29]) == "<unk>"


def test_pieces_that_training_never_saw_are_left_out(manifest, tmp_path):
    tokenizer = make_tokenizer("bpe", manifest, tmp_path, 18)
    assert BLANK not in tokenizer.encode("GO QX")


def test_vocabulary_that_does_not_fit(manifest, tmp_path):
    with pytest.raises(ValueError, match="output_neurons=5 is too small"):
        make_tokenizer("char", manifest, tmp_path, 5)


def test_more_pieces_than_the_transcripts_give(manifest, tmp_path):
    with pytest.raises(ValueError, match="output_neurons=90 does not suit"):
        make_tokenizer("bpe", manifest, tmp_path, 90)


@pytest.mark.parametrize("token_type", ["chars", None, "char "])
def test_unknown_type(manifest, tmp_path, token_type):
    with pytest.raises(ValueError, match="token_type=.* is not one of char,"):
        make_tokenizer(token_type, manifest, tmp_path, 20)
