"""The recipes' YAML files load anywhere and say what the flags are."""

import subprocess
import sys

import pytest
import torch
from hyperpyyaml import load_hyperpyyaml
from recipe_runs import RECIPES, ROOT
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule

from speechbrain_triton.modules import (
    FastConformerFrontEnd,
    GEGLUFeedForward,
    TritonConvolutionFrontEnd,
    TritonConvolutionModule,
)

YAMLS = sorted(RECIPES.glob("**/hparams/*.yaml"))
IDS = ["/".join(path.relative_to(RECIPES).parts[::4]) for path in YAMLS]
FAST = [path for path in YAMLS if path.name.startswith("fast_")]
FLAGS = {
    "conv_backend": "auto",
    "frontend_backend": "auto",
    "ffn": "standard",
    "ffn_backend": "auto",
    "streaming": False,
    "precision": "fp32",
    "eval_precision": "fp32",
}
# Published for LibriSpeech.
LIBRISPEECH = {"streaming": True, "precision": "bf16"}
CALL = """kernels: !apply:speechbrain_triton.apply_kernels
   model: [!ref <CNN>, !ref <Transformer>]
   conv: !ref <conv_backend>
   frontend: !ref <frontend_backend>
   ffn: !ref <ffn_backend>
"""
CHOICE = """feedforwards: !apply:speechbrain_triton.modules.use_feedforward
   model: !ref <Transformer>
   ffn: !ref <ffn>
   keep: !ref <geglu_keep>
   approximate: !ref <geglu_approximate>
"""


def load(path, **overrides):
    with path.open(encoding="utf-8") as file:
        return load_hyperpyyaml(file, {"data_folder": "data", **overrides})


def test_there_are_recipes():
    assert len(YAMLS) >= 6 and len(FAST) == 3


@pytest.mark.parametrize("path", YAMLS, ids=IDS)
@pytest.mark.parametrize("backend", ["auto", "triton", "torch"])
def test_loads_from_another_folder(path, backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hparams = load(path, conv_backend=backend)
    classes = [
        type(module)
        for module in hparams["modules"]["enc"].modules()
        if isinstance(module, ConvolutionModule)
    ]
    expected = ConvolutionModule if backend == "torch" else None
    expected = expected or TritonConvolutionModule
    assert classes == [expected] * hparams["num_encoder_layers"]
    assert len(hparams["kernels"].conv.names) == len(classes)


@pytest.mark.parametrize("path", YAMLS, ids=IDS)
@pytest.mark.parametrize("backend", ["auto", "triton", "torch"])
def test_front_end_follows_its_own_flag(path, backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hparams = load(path, frontend_backend=backend, conv_backend="torch")
    front_end = hparams["modules"]["CNN"]
    assert hparams["kernels"].frontend.names == ["0"]
    assert hparams["kernels"].conv.path == "torch"
    if path in FAST:
        assert type(front_end) is FastConformerFrontEnd
        assert front_end.backend == backend
        assert hparams["kernel_size"] == 9 and front_end.subsampling == 8
    elif backend == "torch":
        assert type(front_end) is ConvolutionFrontEnd
    else:
        assert type(front_end) is TritonConvolutionFrontEnd
        assert front_end.backend == backend


@pytest.mark.parametrize("path", YAMLS, ids=IDS)
@pytest.mark.parametrize("backend", ["auto", "triton", "torch"])
def test_gated_feed_forwards_follow_their_own_flags(
    path, backend, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = {"num_encoder_layers": 2, "conv_backend": "torch"}
    before = sum(p.numel() for p in load(path, **options)["model"].parameters())
    options |= {"ffn": "geglu", "geglu_keep": "parameters"}
    hparams = load(path, ffn_backend=backend, **options)
    gated = [
        module
        for module in hparams["modules"]["enc"].modules()
        if isinstance(module, GEGLUFeedForward)
    ]
    assert len(gated) == 4 == len(hparams["kernels"].ffn.names)
    assert {module.backend for module in gated} == {backend}
    assert {module.dropout.p for module in gated} == {hparams["dropout"]}
    assert hparams["kernels"].conv.path == "torch"
    after = sum(p.numel() for p in hparams["model"].parameters())
    assert after == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize("path", FAST, ids=lambda path: path.parts[-5])
def test_chunks_last_as_long_as_with_the_other_front_end(path):
    fast, other = (
        load(p)["dynchunktrain_config_sampler"]
        for p in (path, path.with_name("conformer_transducer.yaml"))
    )
    for name in ("chunk_size_min", "chunk_size_max"):
        assert 80 * getattr(fast, name) == 40 * getattr(other, name)
    assert 2 * fast.test_config.chunk_size == other.test_config.chunk_size
    for name in ("left_context_chunks_min", "left_context_chunks_max"):
        assert getattr(fast, name) == getattr(other, name)


@pytest.mark.parametrize("path", YAMLS, ids=IDS)
def test_every_trained_module_is_saved(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hparams = load(path)
    trained = torch.nn.ModuleDict(hparams["modules"]).parameters()
    saved = {id(p) for p in hparams["model"].parameters()}
    assert {id(p) for p in trained} == saved
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("path", YAMLS, ids=IDS)
def test_flags_are_the_first_keys(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    keys = [line for line in lines if line and line[0] not in "# \t-"]
    flags = FLAGS | (LIBRISPEECH if "LibriSpeech" in path.parts else {})
    for line, (flag, default) in zip(keys, flags.items(), strict=False):
        assert line.split("#")[0].strip() == f"{flag}: {default}"
    # The architecture first: else its kernels would not be switched.
    assert f"{CHOICE}{CALL}\n" in path.read_text(encoding="utf-8")


def test_loads_without_triton(tmp_path):
    program = f"""
import sys
sys.modules["triton"] = None
from hyperpyyaml import load_hyperpyyaml
for path in {[str(path) for path in YAMLS]!r}:
    for backend in ("torch", "auto"):
        with open(path) as file:
            hparams = load_hyperpyyaml(
                file, dict(data_folder="data", conv_backend=backend)
            )
        print(hparams["kernels"].conv.path)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    paths = [line for line in done.stdout.splitlines() if line[:1] == "t"]
    assert paths == ["torch"] * 2 * len(YAMLS)
