import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import HAND_COUNTED, write_wer
from speechbrain.utils.metric_stats import ErrorRateStats

from speechbrain_triton.runs import Edits, RunError
from speechbrain_triton.runs.wer import read_wer_file, sum_edits

BY_HAND = """\
%WER 40.00 [ 2 / 5, 1 ins, 0 del, 1 sub ]
%SER 50.00 [ 1 / 2 ]
Scored 2 sentences, 0 not present in hyp.
================================================================================
ALIGNMENTS

Format:
<utterance-id>, WER DETAILS
<eps> ; reference  ; on ; the ; first ;  line
  I   ;     S      ; =  ;  =  ;   S   ;   D  \n\
 and  ; hypothesis ; on ; the ; third ; <eps>
================================================================================
spk1-01, %WER 100.00 [ 2 / 2, 1 ins, 0 del, 1 sub ]
<eps> ; turn ; left
  I   ;  S   ;  =  \n\
 to   ; burn ; left
================================================================================
spk1-02, %WER 0.00 [ 0 / 3, 0 ins, 0 del, 0 sub ]
go ; straight ; on
=  ;    =     ; = \n\
go ; straight ; on
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "wer_test.txt"


def test_file_written_by_hand(path):
    path.write_text(BY_HAND, "utf-8")
    first, second = read_wer_file(path)
    assert first.key == "spk1-01"
    assert first.reference == ("turn", "left")
    assert first.hypothesis == ("to", "burn", "left")
    assert first.edits == Edits(1, 0, 1, length=2)
    assert second.hypothesis == ("go", "straight", "on")
    assert second.edits.total == 0


def test_counts_made_by_hand(path):
    write_wer(path, HAND_COUNTED)
    utterances = read_wer_file(path)
    edits = [u.edits for u in utterances]
    assert edits == [
        Edits(0, 1, 0, length=6),
        Edits(1, 0, 0, length=3),
        Edits(0, 0, 1, length=2),
        Edits(0, 0, 0, length=2),
    ]
    assert sum_edits(edits).rate == pytest.approx(100 * 3 / 13)
    assert {
        u.key: (" ".join(u.reference), " ".join(u.hypothesis))
        for u in utterances
    } == HAND_COUNTED


@pytest.mark.parametrize(
    "reference, hypothesis, edits",
    [
        ("a b", "", Edits(0, 1, 1, length=2)),
        ("<eps> a", "a <eps>", Edits(1, 1, 0, length=2)),
        ("a ; b", "a ; ; b", Edits(1, 0, 0, length=3)),
        ("= I D S", "S D I =", Edits(1, 1, 2, length=4)),
        ("élan 東京 नमस्ते", "élan 東 नमस्ते", Edits(0, 0, 1, length=3)),
        ("a  b", "a b", Edits(0, 1, 0, length=3)),
    ],
)
def test_awkward_words(path, reference, hypothesis, edits):
    write_wer(path, {"id, with comma": (reference, hypothesis)})
    (utterance,) = read_wer_file(path)
    assert utterance.key == "id, with comma"
    assert utterance.reference == tuple(reference.split(" "))
    assert utterance.hypothesis == tuple(hypothesis.split(" "))
    assert utterance.edits.total == edits.total
    assert utterance.edits.length == edits.length


def test_empty_references_are_read_beside_others(path):
    spoken = {"u1": ("a", "a")}
    write_wer(path, {"u0": ("", "")} | spoken | {"u2": ("", "uh")})
    silent, _, noise = read_wer_file(path)
    assert silent.edits == Edits(0, 0, 0, length=0)
    assert noise.hypothesis == ("uh",)
    assert noise.edits.total == 1 and noise.edits.length == 0


def test_no_tokens_at_all(path):
    stats = ErrorRateStats()
    stats.append(["u0", "u1"], [[], ["a"]], [[], ["a"]])
    with open(path, "w", encoding="utf-8") as file:
        stats.write_stats(file)
    silent, spoken = read_wer_file(path)
    assert silent.hypothesis == () and spoken.hypothesis == ("a",)


WORD = st.text(
    st.one_of(
        st.sampled_from(";=IDS<>eps "),
        st.characters(exclude_categories=["Cs", "Cc", "Zs"]),
    ),
    max_size=8,
).map(lambda word: word.strip(" "))
WORDS = st.lists(WORD, max_size=6)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_what_speechbrain_writes_is_read_back(tmp_path_factory, pairs):
    path = tmp_path_factory.getbasetemp() / "wer_round_trip.txt"
    stats = ErrorRateStats()
    stats.append(["spoken"], [["a"]], [["a"]])
    for number, (reference, hypothesis) in enumerate(pairs):
        stats.append([f"u{number}"], [hypothesis], [reference])
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        stats.write_stats(file)
    _, *utterances = read_wer_file(path)
    read = [(list(u.reference), list(u.hypothesis)) for u in utterances]
    assert read == pairs
    total = sum_edits(u.edits for u in utterances)
    assert total.insertions == stats.summarize("insertions")
    assert total.deletions == stats.summarize("deletions")
    assert total.substitutions == stats.summarize("substitutions")


def test_windows_line_ends_and_preamble(path):
    text = "CTC loss stats:\n" + BY_HAND
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert len(read_wer_file(path)) == 2


@pytest.mark.parametrize("end", range(40, len(BY_HAND) - 1, 7))
def test_a_truncated_file_is_never_read(path, end):
    path.write_text(BY_HAND[:end], "utf-8")
    with pytest.raises(RunError, match=r"wer_test\.txt' is (trunc|not a WER)"):
        read_wer_file(path)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\x00\x01", "is a binary file"),
        (b"%WER \xff", "is not UTF-8 text: byte 0xff at offset 5"),
        (b"hello\n", "is not a WER file"),
        (
            BY_HAND.replace("2 / 5", "3 / 5").replace("1 sub", "2 sub", 1),
            "do not add up to its summary",
        ),
        (BY_HAND.replace("burn", "bur"), "does not line up"),
        (BY_HAND.replace("  S   ", "  =   "), "counts and its alignment"),
        (BY_HAND.replace("spk1-02", "spk1-01"), "'spk1-01' 2 times"),
        (BY_HAND + "one more line\n", "incomplete"),
        (BY_HAND.replace("Scored 2", "Scored two"), "how many sentences"),
        (BY_HAND.replace("Scored 2", "Scored 3"), "announces 3.* holds 2"),
    ],
)
def test_damaged_files(path, content, reason):
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    with pytest.raises(RunError, match=reason) as error:
        read_wer_file(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_no_reference_word(path):
    write_wer(path, {"u1": ("", "uh")})
    with pytest.raises(RunError, match="no reference word"):
        read_wer_file(path)
