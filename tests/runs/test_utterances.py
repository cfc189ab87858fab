"""Utterances that differ, with their words aligned."""

from hypothesis import given, settings
from hypothesis import strategies as st

from speechbrain_triton.runs import (
    Edits,
    Evaluation,
    Run,
    Utterance,
    compare_runs,
    read_run,
)
from speechbrain_triton.runs.utterances import (
    Cell,
    Hypothesis,
    differing_utterances,
)

SAME = [Cell("=", "a"), Cell("=", "b"), Cell("=", "c")]


def compare(*folders, **options):
    return compare_runs([read_run(folder) for folder in folders], **options)


def test_alignment_by_hand(make_run):
    texts = {"x": "a b c", "y": "a c", "z": "u v a b d w"}
    folders = [
        make_run(name, {"u1": ("a b c", text)}) for name, text in texts.items()
    ]
    (utterance,), total = differing_utterances(compare(*folders), "test", 9)
    assert (utterance.key, utterance.words, total) == ("u1", 3, 1)
    assert utterance.reference == ("", "", "a", "b", "c", "")
    gap = Cell("", "")
    assert utterance.hypotheses == (
        Hypothesis(("x",), 0, (gap, gap, *SAME, gap)),
        Hypothesis(
            ("y",), 1, (gap, gap, SAME[0], Cell("D", "b"), SAME[2], gap)
        ),
        Hypothesis(
            ("z",),
            4,
            (Cell("I", "u"), Cell("I", "v"), *SAME[:2], Cell("S", "d"))
            + (Cell("I", "w"),),
        ),
    )


def test_order_and_number(make_run):
    references = {f"u{n}": "a b c d" for n in range(6)}
    decoded = {
        "x": ["a b c d", "a b c x", "a b c d", "a b c d", "a b x d", "a b c d"],
        "y": ["a b c d", "a b c y", "a b c y", "x y z d", "a b x d", "a y z d"],
    }
    folders = [
        make_run(
            name,
            {
                key: (text, decoded_text)
                for (key, text), decoded_text in zip(
                    references.items(), texts, strict=True
                )
            },
        )
        for name, texts in decoded.items()
    ]
    chosen, total = differing_utterances(compare(*folders), "test", limit=3)
    # u0 and u4 have the same words; u1 differs in words but not in errors.
    assert total == 4
    assert [utterance.key for utterance in chosen] == ["u3", "u5", "u2"]
    every, _ = differing_utterances(compare(*folders), "test", limit=9)
    assert [utterance.key for utterance in every][3:] == ["u1"]


def test_means_of_sides_set_the_order(make_run):
    # In u1 the seeds of each side differ most, but not their means.
    texts = {
        ("torch", 1): ("a a a", "a a a"),
        ("torch", 2): ("b b b", "a a a"),
        ("triton", 1): ("b b b", "a a b"),
        ("triton", 2): ("a a a", "a a b"),
    }
    folders = [
        make_run(
            f"{side}{seed}",
            {f"u{n}": ("a a a", text) for n, text in enumerate(decoded, 1)},
            conv_backend=side,
            seed=seed,
        )
        for (side, seed), decoded in texts.items()
    ]
    chosen, total = differing_utterances(compare(*folders), "test", limit=9)
    assert [utterance.key for utterance in chosen] == ["u2", "u1"]
    assert [h.runs for h in chosen[0].hypotheses] == [
        ("torch1", "torch2"),
        ("triton1", "triton2"),
    ]
    assert [h.runs for h in chosen[1].hypotheses] == [
        ("torch1", "triton2"),
        ("torch2", "triton1"),
    ]


def test_empty_texts(make_run):
    folders = [
        make_run("x", {"u1": ("", "a b"), "u2": ("a b", "")}),
        make_run("y", {"u1": ("", ""), "u2": ("a b", "a b")}),
    ]
    chosen, total = differing_utterances(compare(*folders), "test", limit=9)
    first, second = chosen
    assert first.reference == ("", "") and first.words == 0
    assert first.hypotheses[0].cells == (Cell("I", "a"), Cell("I", "b"))
    assert first.hypotheses[1].cells == (Cell("", ""), Cell("", ""))
    assert second.hypotheses[0].cells == (Cell("D", "a"), Cell("D", "b"))


words = st.lists(st.sampled_from("abc"), max_size=6)


@settings(max_examples=60, deadline=None)
@given(words, st.lists(words, min_size=2, max_size=4))
def test_alignments_hold_every_word_once(reference, texts):
    def run(number, text):
        decoded = Utterance(
            "u", tuple(reference), tuple(text), Edits(0, 0, 0, 9)
        )
        path = f"{number}/wer_test.txt"
        return Run(str(number), {"test": Evaluation("test", path, (decoded,))})

    comparison = compare_runs([run(n, text) for n, text in enumerate(texts)])
    chosen, total = differing_utterances(comparison, "test", limit=1)
    assert bool(chosen) == (len(set(map(tuple, texts))) > 1) == bool(total)
    for utterance in chosen:
        assert [word for word in utterance.reference if word] == reference
        by_run = {n: h for h in utterance.hypotheses for n in h.runs}
        for number, text in enumerate(texts):
            cells = by_run[str(number)].cells
            spoken = [cell.word for cell in cells if cell.edit in list("=SI")]
            assert spoken == text
            for word, cell in zip(utterance.reference, cells, strict=True):
                assert (cell.edit in ("I", "")) == (word == "")
                assert cell.edit not in ("=", "D") or cell.word == word
                assert cell.edit != "S" or cell.word != word
