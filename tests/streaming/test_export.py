"""A run becomes a folder that SpeechBrain's StreamingASR loads."""

import re
import shutil

import pytest
import torch
from speechbrain.inference.ASR import StreamingASR
from speechbrain.tokenizers.SentencePiece import SentencePiece
from speechbrain.utils.checkpoints import Checkpointer
from speechbrain.utils.dynamic_chunk_training import DynChunkTrainConfig

from speechbrain_triton import cli
from speechbrain_triton.files import RunError
from speechbrain_triton.modules import TritonConvolutionModule
from speechbrain_triton.streaming import (
    LabelStream,
    decode_labels,
    export_run,
    load_folder,
    recognize_whole,
)

MODELS = ("conformer", "fast_conformer")
FILES = [
    "README.md",
    "hyperparams.yaml",
    "model.ckpt",
    "normalizer.ckpt",
    "tokenizer.ckpt",
]


@pytest.fixture
def run(runs, tmp_path):
    """A copy of a run, to be spoilt."""
    return shutil.copytree(runs / "conformer", tmp_path / "run")


def edit(run, old, new):
    path = run / "hyperparams.yaml"
    text = path.read_text()
    assert len(re.findall(old, text, re.M)) == 1, old
    path.write_text(re.sub(old, new, text, flags=re.M))


@pytest.mark.parametrize("name", MODELS)
def test_speechbrain_loads_the_folder(name, folders, tmp_path):
    folder = folders / name
    assert sorted(path.name for path in folder.iterdir()) == FILES
    asr = StreamingASR.from_hparams(
        source=str(folder),
        savedir=str(tmp_path / "cache"),
        run_opts={"device": "cpu"},
    )
    modules = list(asr.mods.enc.modules())
    assert sum(type(m) is TritonConvolutionModule for m in modules) == 2
    assert not any(p.requires_grad for p in asr.mods.parameters())
    assert not any(m.training for m in asr.mods.modules())
    chunk_size = {"conformer": 16, "fast_conformer": 8}[name]
    config = DynChunkTrainConfig(chunk_size, 4)
    assert asr.hparams.streaming_config == config
    context = asr.make_streaming_context(config)
    chunk = torch.randn(1, asr.get_chunk_size_frames(config))
    assert asr.encode_chunk(context, chunk).shape == (1, chunk_size, 16)
    text = (folder / "hyperparams.yaml").read_text()
    assert "conv_backend: auto" in text
    assert "kernels: !apply:speechbrain_triton.apply_kernels" in text
    assert ("ffn_backend: auto" in text) == (name == "fast_conformer")
    assert "ffn: geglu" in text or name == "conformer"
    readme = (folder / "README.md").read_text()
    assert f"--chunk_size={chunk_size} --left_context=4" in readme
    assert "is 640 ms" in readme and "$" not in readme


def test_parameters_are_the_average_that_the_test_took(runs, folders):
    run, folder = runs / "conformer", folders / "conformer"
    found = Checkpointer(run / "save").find_checkpoints(
        min_key="WER", max_num_checkpoints=2
    )
    assert len(found) == 2
    states = [torch.load(c.paramfiles["model"]) for c in found]
    exported = torch.load(folder / "model.ckpt")
    assert exported.keys() == states[0].keys()
    for name, value in exported.items():
        mean = (states[0][name] + states[1][name]) / 2
        torch.testing.assert_close(value, mean)
    asr = load_folder(folder, device="cpu")
    for name, value in asr.hparams.model.state_dict().items():
        assert torch.equal(value, exported[name])
    stats = torch.load(found[0].paramfiles["normalize"])
    assert torch.equal(asr.hparams.normalize.glob_mean, stats["glob_mean"])
    assert torch.equal(asr.hparams.normalize.glob_std, stats["glob_std"])


def test_one_checkpoint_is_copied_as_it_is(run, tmp_path):
    edit(run, r"^avg_checkpoints: 2", "avg_checkpoints: 1")
    export = export_run(run, tmp_path / "new" / "folder")
    best = Checkpointer(run / "save").find_checkpoint(min_key="WER")
    assert export.checkpoints == (best.path.name,)
    assert export.wer == best.meta["WER"]
    copied = export.folder / "model.ckpt"
    assert copied.read_bytes() == best.paramfiles["model"].read_bytes()


def test_same_encoder_output_as_the_run_itself(runs, folders):
    """The run's own modules, loaded as the recipe loads them."""
    from hyperpyyaml import load_hyperpyyaml

    run = runs / "fast_conformer"
    text = (run / "hyperparams.yaml").read_text()
    hparams = load_hyperpyyaml(text, {"avg_checkpoints": 1})
    state = torch.load(folders / "fast_conformer" / "model.ckpt")
    hparams["model"].load_state_dict(state)
    best = hparams["checkpointer"].find_checkpoint(min_key="WER")
    hparams["normalize"]._load(best.paramfiles["normalize"])
    x = 0.1 * torch.randn(1, 20000)
    lens, config = torch.ones(1), DynChunkTrainConfig(4, 1)
    with torch.no_grad():
        modules = hparams["modules"]
        for module in modules.values():
            module.eval()
        feats = modules["normalize"](hparams["compute_features"](x), lens)
        feats = modules["CNN"](feats, lens)
        encoded = modules["proj_enc"](
            modules["enc"](feats, lens, dynchunktrain_config=config)
        )
    asr = load_folder(folders / "fast_conformer", device="cpu")
    whole = recognize_whole(asr, x[0], config, as_tested=True)
    torch.testing.assert_close(whole.encoded, encoded, rtol=0, atol=1e-6)
    _, tokens = asr.decode_chunk(asr.make_streaming_context(config), encoded)
    assert tuple(tokens[0]) == whole.tokens


def test_a_moved_run_takes_its_checkpoints_along(run, tmp_path):
    edit(run, r"^save_folder: .*", "save_folder: /nowhere/at/all/save")
    assert export_run(run, tmp_path / "folder").folder.is_dir()


def test_chunks_of_a_run_that_was_not_tested_in_chunks(run, tmp_path):
    block = r"test_config: .*\n +chunk_size: 16\n +left_context_size: 4"
    edit(run, block, "test_config: null")
    folder = export_run(run, tmp_path / "folder").folder
    config = load_folder(folder, device="cpu").hparams.streaming_config
    assert config == DynChunkTrainConfig(32, 32)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            r"^streaming: true",
            "streaming: false",
            "streaming: False, and chunk",
        ),
        (
            r"encoder_module: conformer",
            "encoder_module: branchformer",
            "branch",
        ),
        (r"attention_type: RoPEMHA", "attention_type: regularMHA", "RelPosMHA"),
        (
            r"norm_type: global",
            "norm_type: sentence",
            "'sentence', and a model",
        ),
        (r"^token_type: char", "token_type: letter", "token_type is 'letter'"),
        (
            r"convolution\.ConvolutionFrontEnd",
            "convolution.Other",
            "CNN is !new",
        ),
        (r"^proj_dec: ", "renamed: ", "has no proj_dec: it is not"),
        (
            r"^token_type: char",
            "token_type: word",
            "word_labels.txt' is missing",
        ),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(
    old, new, message, run, tmp_path, capsys
):
    edit(run, old, new)
    folder = tmp_path / "folder"
    assert cli.main(["export", str(run), str(folder)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error
    assert not folder.exists() and len(list(tmp_path.iterdir())) == 1


def test_no_checkpoint_is_said(run, tmp_path, capsys):
    edit(run, r"^save_folder: .*", f"save_folder: {run}/save")
    for path in (run / "save").glob("CKPT*"):
        shutil.rmtree(path)
    assert cli.main(["export", str(run), str(tmp_path / "folder")]) == 2
    assert "has no checkpoint of a validated epoch" in capsys.readouterr().err
    shutil.rmtree(run / "save")
    with pytest.raises(RunError, match="no checkpoint of a validated epoch"):
        export_run(run, tmp_path / "folder")
    assert not (run / "save").exists()


def test_no_run_and_a_full_folder_are_refused(runs, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    run = str(runs / "conformer")
    for source, folder, message in (
        ("/nowhere/at/all", "folder", "does not exist"),
        (str(tmp_path), "folder", "has no hyperparams.yaml"),
        (run, "full", "is there already"),
        (run, "full/file", "is there already"),
    ):
        assert cli.main(["export", source, str(tmp_path / folder)]) == 2
        assert message in capsys.readouterr().err


def test_parameters_that_do_not_fit_are_refused(folders, tmp_path):
    folder = shutil.copytree(folders / "conformer", tmp_path / "folder")
    state = torch.load(folder / "model.ckpt")
    del state["7.w.bias"]
    torch.save(state, folder / "model.ckpt")
    with pytest.raises(RunError, match="only one of them has 7.w.bias"):
        load_folder(folder, device="cpu")
    state["7.w.bias"] = torch.zeros(3)
    torch.save(state, folder / "model.ckpt")
    with pytest.raises(RunError, match="cannot be loaded: .*7.w.bias"):
        load_folder(folder, device="cpu")


def test_pieces_stream_as_they_are_decoded_whole(run, tmp_path):
    words = ("ALPHA BETA GAMMA DELTA EPSILON ZETA ETA THETA IOTA" * 2).split()
    lines = [" ".join(words[k : k + 5]) for k in range(len(words) - 5)]
    csv = tmp_path / "train.csv"
    csv.write_text("ID,wrd\n" + "".join(f"u,{line}\n" for line in lines))
    sentencepiece = SentencePiece(
        str(run / "save"), 24, str(csv), "wrd", "unigram"
    )
    edit(run, r"^token_type: char", "token_type: unigram")
    edit(run, r"^output_neurons: 32", "output_neurons: 24")
    asr = load_folder(export_run(run, tmp_path / "folder").folder, device="cpu")
    text = "BETA PHAL THOTA I MASIL"
    labels = sentencepiece.sp.encode_as_ids(text)
    assert len(labels) > 10 and 0 not in labels
    decode = asr.hparams.tokenizer_decode_streaming
    for size in (1, 2, 3):
        stream = asr.hparams.make_tokenizer_streaming_context()
        texts = [
            decode(asr.hparams.tokenizer, part, stream)
            for k in range(0, len(labels), size)
            for part in (labels[k : k + size], [])
        ]
        assert "".join(texts) == text


@pytest.mark.parametrize("separator", ["", " "])
def test_labels_stream_as_they_are_decoded_whole(separator, folders):
    encoder = load_folder(folders / "conformer", device="cpu").hparams.tokenizer
    labels = encoder.encode_sequence(list("ABBA"))
    stream = LabelStream()
    texts = [
        decode_labels(encoder, part, stream, separator)
        for part in ([], labels[:2], [], labels[2:3], [10**6], labels[3:])
    ]
    assert "".join(texts) == separator.join(["A", "B", "B", "<unk>", "A"])
