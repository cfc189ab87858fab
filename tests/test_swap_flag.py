"""The flag in a recipe's YAML, and the line that says what it did."""

import logging
import subprocess
import sys

import pytest
from hyperpyyaml import load_hyperpyyaml
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import TritonConvolutionModule

YAML = {
    "model": """
Encoder: !new:speechbrain.lobes.models.transformer.Conformer.ConvolutionModule
   input_size: 8
   kernel_size: 3
modules:
   encoder: !ref <Encoder>
""",
    "kernels": """
kernels: !apply:speechbrain_triton.apply_kernels
   model: !ref <{what}>
   conv: !ref <conv_backend>
""",
}


@pytest.mark.parametrize("order", [("model", "kernels"), ("kernels", "model")])
@pytest.mark.parametrize("what", ["Encoder", "modules"])
def test_yaml_flag_switches_the_module_that_the_recipe_trains(what, order):
    text = "conv_backend: torch\n" + "".join(YAML[part] for part in order)
    text = text.replace("{what}", what)
    hparams = load_hyperpyyaml(text, {"conv_backend": "triton"})
    assert type(hparams["modules"]["encoder"]) is TritonConvolutionModule
    assert hparams["modules"]["encoder"] is hparams["Encoder"]
    assert hparams["Encoder"].backend == "triton"
    assert len(hparams["kernels"].conv.names) == 1


@pytest.mark.parametrize("value", ["", "'False'", "no", "1.0", "True"])
def test_yaml_flag_that_only_looks_set_is_refused(value):
    text = f"conv_backend: {value}" + YAML["model"] + YAML["kernels"]
    with pytest.raises(ValueError, match="conv=.*'auto', 'triton', 'torch'"):
        load_hyperpyyaml(text.replace("{what}", "Encoder"))


def test_report_is_one_line_with_path_and_reason(caplog):
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = st.apply_kernels(
            nn.ModuleList(ConvolutionModule(8, 3) for _ in range(2)),
            conv="torch",
        )
    assert str(report) == (
        "conv=torch: 2 modules, torch path, because the flag asks for "
        "SpeechBrain's own forward."
    )
    assert caplog.messages == [str(report)]
    assert str(st.apply_kernels(nn.Linear(2, 2))) == (
        "conv=auto: 0 modules, torch path, because the model has no "
        "ConvolutionModule to switch."
    )
    one = str(st.apply_kernels(ConvolutionModule(8, 3), conv="triton"))
    assert one.startswith("conv=triton: 1 module, triton path, because ")


def test_report_goes_to_stderr_before_logging_is_configured():
    code = (
        "import torch, speechbrain_triton as st; import logging; "
        "from speechbrain.lobes.models.transformer.Conformer "
        "import ConvolutionModule; logging.getLogger().handlers.clear(); "
        "st.apply_kernels(ConvolutionModule(8, 3), conv='torch')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert "speechbrain_triton: conv=torch: 1 module, " in run.stderr
    assert not run.stdout and run.returncode == 0


def test_report_does_not_promise_a_path_that_triton_will_not_take(monkeypatch):
    """The flag triton never falls back: where it cannot run it raises."""
    monkeypatch.setattr(
        "speechbrain_triton.kinds.triton_obstacle",
        lambda device: "the package triton is not installed",
    )
    report = st.apply_kernels(ConvolutionModule(8, 3), conv="triton")
    assert "the package triton is not installed" in str(report)
    assert "torch path" not in str(report)
