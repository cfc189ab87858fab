"""The page of a comparison, parsed: it is well-formed XML, too."""

import itertools
import json
import re
from xml.etree import ElementTree

import matplotlib
import pytest
from run_folders import HAND_COUNTED, write_wer

from speechbrain_triton.runs import compare_runs, read_run
from speechbrain_triton.runs.page import comparison_to_html
from speechbrain_triton.runs.pictures import SIDES
from speechbrain_triton.runs.report import conclusions
from speechbrain_triton.runs.tables import settings_tables, training_tables

PERFECT = {key: (text, text) for key, (text, _) in HAND_COUNTED.items()}
HEADINGS = ("h1", "h2", "h3")


def compare(*folders, **options):
    return compare_runs([read_run(folder) for folder in folders], **options)


def parse(comparison):
    return ElementTree.fromstring(comparison_to_html(comparison))


def text(element):
    return " ".join("".join(element.itertext()).split())


def texts(page, tag):
    return [text(element) for element in page.iter(tag)]


def table(page, caption):
    (found,) = (
        t for t in page.iter("table") if text(t.find("caption")) == caption
    )
    return [[text(cell) for cell in row] for row in found.iter("tr")]


@pytest.fixture(scope="module")
def comparison(trained_runs):
    return compare(*trained_runs)


@pytest.fixture(scope="module")
def page(comparison):
    return parse(comparison)


@pytest.fixture
def log(make_run):
    """Gives a run a training: (folder, lines of train_log.txt)."""

    def write(folder, *lines):
        lines = [*lines, "Epoch loaded: 1 - test loss: 1.0"]
        (folder / "train_log.txt").write_text("\n".join(lines), "utf-8")
        return folder

    return write


def test_numbers(page, comparison):
    assert text(page.find("head/title")) == "Comparison of 2 runs"
    assert set(conclusions(comparison)) <= set(texts(page, "p"))
    scores = table(page, "test: 4 utterances, 8 words")
    assert scores[0] == [
        "Side", "Run", "WER %", "95%", "Ins/del/sub", "CER %", "Ins/del/sub",
    ]  # fmt: skip
    assert scores[1][:3] == ["torch", "off", "37.50"]
    assert scores[1][4] == "1/1/1"
    (difference,) = table(page, "test: differences")[1:]
    assert difference[:2] == ["triton - torch", "-12.50"]
    assert difference[5] == "3 of 4"
    for expected in itertools.chain(
        training_tables(comparison), settings_tables(comparison)
    ):
        rows = table(page, expected.title)
        assert rows[0] == [*expected.left, *expected.right]
        assert [tuple(row) for row in rows[1:]] == list(expected.rows)
    assert ["precision", "bf16"] in table(page, "The same in all runs")
    versions = dict(table(page, "Versions by env.log")[1:])
    assert versions["python"].startswith("3.")
    folders = [row[2] for row in table(page, "Runs")[1:]]
    assert folders == [str(run.path) for run in comparison.runs]


def test_pictures(page):
    titles = texts(page, "figcaption")
    assert [re.sub(",.*", "", title) for title in titles] == [
        "test: word error rate",
        "test: paired difference to torch",
        "Train loss by epoch",
        "Valid loss by epoch",
        "Seconds per epoch",
        "Peak memory",
    ]
    for figure, title in zip(page.iter("figure"), titles, strict=True):
        picture = figure.find("svg")
        assert picture.get("role") == "img"
        assert picture.get("aria-label").startswith(title)
        # It fills its column, however narrow.
        assert "viewBox" in picture.attrib and "width" not in picture.attrib
        drawn = texts(picture, "text")
        assert {"torch", "off"} & set(drawn) or "triton" in drawn
    assert "on 25.00" in page.find(".//svg").get("aria-label")


def test_aligned_words(page):
    rows = table(page, "spk2-0002")
    assert rows == [
        ["Reference 2 words", "seven", "eight"],
        ["off 1 error", "seven D", "eight"],
        ["on 2 errors", "seven D", "eight D"],
    ]
    words = next(
        t for t in page.iter("table") if text(t.find("caption")) == "spk2-0002"
    )
    deleted, right = words.findall("tbody/tr")[1].findall("td")
    assert text(deleted.find("del")) == "seven"
    assert deleted.find("abbr").get("title") == "deleted"
    assert not list(right.iter("del"))
    inserted = table(page, "spk2-0001")
    assert inserted[0] == ["Reference 1 word", "six", ""]
    assert inserted[1] == ["off 1 error", "six", "six I"]
    substituted = table(page, "spk1-0002")
    assert substituted[1] == ["off 1 error", "four", "nine S"]
    captions = texts(page, "caption")
    assert "spk1-0001" not in captions, "all runs recognised the same words"


def test_long_utterances_are_cut_into_lines(make_run):
    words = [f"word{number:02}" for number in range(40)]
    decoded = [*words[:39], "wrong"]
    long = {"u1": (" ".join(words), " ".join(decoded))}
    other = {"u1": (" ".join(words), " ".join(words))}
    page = parse(compare(make_run("a", long), make_run("b", other)))
    lines = next(
        t for t in page.iter("table") if text(t.find("caption")) == "u1"
    ).findall("tbody")
    assert len(lines) > 3
    shown = []
    for line in lines:
        heads = [text(row.find("th")) for row in line]
        assert heads == ["Reference 40 words", "a 1 error", "b 0 errors"]
        reference = [text(cell) for cell in line[0].findall("td")]
        assert len(" ".join(reference)) <= 80
        assert {len(row) for row in line} == {1 + len(reference)}
        shown += reference
    assert shown == words


def test_structure_for_screen_readers(page):
    assert page.get("lang") == "en"
    names = [element.tag for element in page.iter() if element.tag in HEADINGS]
    assert names[0] == "h1" and names.count("h1") == 1
    for before, after in itertools.pairwise(map(HEADINGS.index, names)):
        assert after <= before + 1
    for found in page.iter("table"):
        assert text(found.find("caption"))
        assert all(row.find("th") is not None for row in found.iter("tr"))
        scopes = {th.get("scope") for th in found.iter("th")}
        assert scopes <= {"row", "col"}
    for region in page.findall(".//div[@role='region']"):
        # Scrollable, so it must be reachable by keyboard and have a name.
        assert region.get("class") == "scroll" and region.get("tabindex") == "0"
        assert region.get("aria-label") == text(region.find("table/caption"))
    scrolled = page.findall(".//div[@role='region']/table")
    assert len(scrolled) == len(list(page.iter("table")))


def test_ids_and_references(page):
    ids = [e.get("id") for e in page.iter() if e.get("id") is not None]
    assert len(set(ids)) == len(ids)
    references = [e.get("href") for e in page.iter() if e.get("href")]
    for element in page.iter():
        for value in element.attrib.values():
            references += re.findall(r"url\(([^)]*)\)", value)
    references += [f"#{e.get('aria-labelledby')}" for e in page.iter("section")]
    assert len(references) > 20
    assert {reference[0] for reference in references} == {"#"}
    assert {reference[1:] for reference in references} <= set(ids)


def test_it_loads_and_executes_nothing(page):
    tags = {element.tag for element in page.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "image"}
    for element in page.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on") and name != "src"
            assert "//" not in value or name == "aria-label"
    (style,) = page.iter("style")
    assert "url(" not in style.text and "@import" not in style.text
    (policy,) = (
        meta.get("content")
        for meta in page.iter("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy


def test_whatever_the_runs_hold_is_text(make_run, log):
    markup = "<b>&amp;</b>\"'<script>x</script>]]>{{7*7}}{%raw%}"
    names = [markup.replace("/", "!") + "$x^2$\n\x1b", "_\udcff\u202e"]
    folders = [
        make_run(
            name,
            {markup: ("<s>ref</s>", f"{word} {markup}")},
            test_set="<i>",
            conv_backend=json.dumps(f"<u>{word}"),
        )
        for name, word in zip(names, ("\x02", "\u202e"), strict=True)
    ]
    for folder in folders:
        log(folder, "epoch: 1, seconds: 1.0 - train <s>&\x02\x1b loss: 2.0")
        (folder / "env.log").write_text(f"Python version:\n{markup} x\nend")
    source = comparison_to_html(compare(*folders))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", source)
    page = ElementTree.fromstring(source.encode("utf-8"))
    assert not {e.tag for e in page.iter()} & {"b", "i", "u", "s", "script"}
    assert markup in texts(page, "caption")
    assert ["python", markup] in table(page, "Versions by env.log")
    runs = table(page, "Runs")[1:]
    assert runs[0][0].endswith(r"]]>{{7*7}}{%raw%}$x^2$\n\x1b")
    assert runs[1][0] == r"_\udcff\u202e"
    assert [row[1] for row in runs] == ["<u>\\x02", "<u>\\u202e"]
    words = table(page, markup)
    assert words[1][1:] == [r"\x02 S", f"{markup} I"]
    assert any(r"<s>&\x02\x1b loss" in t for t in texts(page, "figcaption"))


def test_the_same_runs_give_the_same_page(trained_runs, comparison):
    first = comparison_to_html(comparison)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        assert comparison_to_html(compare(*trained_runs)) == first
        assert dict(matplotlib.rcParams) == before
    swapped = compare(*reversed(trained_runs))
    assert comparison_to_html(swapped) != first


def test_runs_that_were_only_evaluated(make_run, log):
    page = parse(compare(log(make_run("a")), make_run("b", PERFECT)))
    assert [row[3] for row in table(page, "Runs")[1:]] == ["1", "-"]
    assert texts(page, "h2") == [
        "Conclusions",
        "test: word error rates",
        "Settings and versions",
    ]
    assert [a.get("href") for a in page.iter("a")] == ["#set-1", "#settings"]
    assert len(list(page.iter("svg"))) == 2
    assert any(
        line.startswith("No setting differs") for line in texts(page, "p")
    )


def test_only_some_runs_have_curves(make_run, log):
    first = log(make_run("a"), "epoch: 1, steps: 5 - train loss: 2.5")
    page = parse(compare(first, make_run("b", PERFECT)))
    assert table(page, "Train loss")[1:] == [["a", "1", "2.5", "2.5", "2.5"]]
    training = table(page, "Training (losses of the last epoch)")
    assert training[2] == ["b", "-", "-", "-", "-", "-", "-"]


def test_several_test_sets(make_run):
    folders = [make_run("a"), make_run("b", PERFECT)]
    for folder in folders:
        write_wer(folder / "wer_other.txt", HAND_COUNTED)
    write_wer(folders[0] / "wer_third.txt", HAND_COUNTED)
    page = parse(compare(*folders))
    assert texts(page, "h2")[1:3] == [
        "other: word error rates",
        "test: word error rates",
    ]
    # Nothing differs in "other".
    assert texts(page, "h3") == ["test: utterances that differ most"]
    assert any(
        "some runs lack them: third" in line for line in texts(page, "p")
    )


def test_one_side(make_run):
    folders = [
        make_run(f"r{n}", texts, seed=n)
        for n, texts in enumerate((HAND_COUNTED, PERFECT, PERFECT))
    ]
    page = parse(compare(*folders))
    assert texts(page, "h3") == [] and len(list(page.iter("svg"))) == 1
    means = table(page, "test: means of the runs of a side")
    assert means[1][1:3] == ["3", "7.69"]


def test_many_sides(make_run):
    folders = [
        make_run(f"r{n}", HAND_COUNTED if n else PERFECT, lr=n)
        for n in range(len(SIDES) + 2)
    ]
    page = parse(compare(*folders))
    swatches = [e.get("class") for e in page.findall(".//li/span")]
    assert len(swatches) == len(folders) and swatches[0] == swatches[len(SIDES)]
    (row,) = [t for t in table(page, "utt3") if len(t) and "r1" in t[0]]
    # Equal words stand in one row.
    assert row[0].split()[:-2] == [f"r{n}," for n in range(1, 7)] + ["r7"]
    assert "8 rows are in the table" not in page.find(".//svg").get(
        "aria-label"
    )


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in channels
    ]
    return sum(
        weight * c
        for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


def _contrast(first, second):
    low, high = sorted(map(_luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_from_the_paper(page):
    (style,) = page.iter("style")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", style.text, re.DOTALL)
    )
    assert light.keys() == dark.keys()
    assert [light[f"side-{n}"] for n in range(len(SIDES))] == list(SIDES)
    for colours in (light, dark):
        ink, paper = colours["ink"], colours["paper"]
        for name in (
            "ink",
            "dim",
            "link",
            *(k for k in colours if "side" in k),
        ):
            assert _contrast(colours[name], paper) >= 4.5, name
        for name in ("tint", "wrong", "added", "lost"):
            assert _contrast(ink, colours[name]) >= 4.5, name
    used = set(
        re.findall(r"var\(--([\w-]+)\)", ElementTree.tostring(page, "unicode"))
    )
    assert used <= light.keys()
