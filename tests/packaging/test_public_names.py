"""The public names and their signatures change on purpose alone."""

import difflib

import public_names


def test_public_names_are_those_of_the_list():
    listed = public_names.LISTING.read_text(encoding="utf-8")
    found = public_names.listing()
    changes = difflib.unified_diff(
        listed.splitlines(), found.splitlines(), "listed", "found", n=0
    )
    assert found == listed, (
        "The public names changed. If that is meant, tell users in "
        "CHANGELOG.md and write the list anew with\n"
        "    python tests/packaging/public_names.py\n" + "\n".join(changes)
    )


def test_a_changed_default_and_a_lost_name_show(monkeypatch):
    import speechbrain_triton.ops as ops

    before = public_names.listing()

    def geglu_ffn(x, weight):
        pass

    monkeypatch.setattr(ops, "geglu_ffn", geglu_ffn)
    monkeypatch.setattr(
        ops, "__all__", [n for n in ops.__all__ if n != "conv_stem"]
    )
    changed = set(before.splitlines()) ^ set(
        public_names.listing().splitlines()
    )
    assert {line.partition("(")[0] for line in changed} == {
        "geglu_ffn",
        "conv_stem",
    }
