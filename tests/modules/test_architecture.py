"""use_feedforward: the architecture of a Conformer encoder's feed-forwards."""

import copy
import logging

import pytest
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.lobes.models.transformer.Conformer import (
    ConformerDecoderLayer,
    ConformerEncoderLayer,
)
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from speechbrain.nnet.attention import PositionalwiseFeedForward
from torch import nn

import speechbrain_triton as st
from speechbrain_triton.modules import (
    GEGLUFeedForward,
    TritonConformerEncoderLayer,
    use_feedforward,
)

D = 8
REFUSED = [None, "False", "no", "geglu ", "GEGLU", "", 1.0, True, ["geglu"]]
MODEL = "speechbrain.lobes.models.transformer.TransformerASR.TransformerASR"
YAML = f"""
ffn: standard
ffn_backend: auto
geglu_keep: d_ffn
geglu_approximate: none
Transformer: !new:{MODEL}
   tgt_vocab: 5
   input_size: 8
   d_model: 8
   nhead: 2
   num_encoder_layers: 2
   num_decoder_layers: 0
   d_ffn: 384
   dropout: 0.2
   encoder_module: conformer
   attention_type: RoPEMHA
   kernel_size: 3
   normalize_before: True
   causal: False
modules:
   enc: !ref <Transformer>
model: !new:torch.nn.ModuleList
   - [!ref <Transformer>]
feedforwards: !apply:speechbrain_triton.modules.use_feedforward
   model: !ref <Transformer>
   ffn: !ref <ffn>
   keep: !ref <geglu_keep>
   approximate: !ref <geglu_approximate>
kernels: !apply:speechbrain_triton.apply_kernels
   model: !ref <Transformer>
   ffn: !ref <ffn_backend>
"""


def layer(d_ffn=16, dropout=0.0, **options):
    return ConformerEncoderLayer(
        D, d_ffn, 2, kernel_size=3, dropout=dropout, **options
    )


def model(layers=2, **options):
    return nn.Sequential(*(layer(**options) for _ in range(layers)))


def gated(modules):
    return [m for m in modules.modules() if isinstance(m, GEGLUFeedForward)]


def standard(modules):
    return [
        m for m in modules.modules() if isinstance(m, PositionalwiseFeedForward)
    ]


def fingerprint(modules):
    return [
        (name, id(module), type(module), list(module.__dict__))
        for name, module in modules.named_modules()
    ]


def test_both_feed_forwards_of_every_layer_are_replaced(caplog):
    net = model(3, dropout=0.3)
    norms = [id(block.ffn_module1[0].weight) for block in net]
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = use_feedforward(net, "geglu")
    assert report.names == [
        f"{i}.ffn_module{n}" for i in range(3) for n in (1, 2)
    ]
    assert str(report) == "ffn=geglu: 6 modules, d_ffn 16, approximate=none."
    assert caplog.messages == [str(report)]
    assert len(gated(net)) == 6 and not standard(net)
    for block in net:
        for place in (block.ffn_module1, block.ffn_module2):
            assert [type(m) for m in place] == [
                nn.LayerNorm,
                GEGLUFeedForward,
                nn.Dropout,
            ]
            assert (place[1].d_ffn, place[1].dropout.p) == (16, 0.3)
            assert place[1].backend == "auto"
    assert [id(block.ffn_module1[0].weight) for block in net] == norms


@pytest.mark.parametrize(
    ("d_ffn", "kept"), [(2048, 1408), (576, 384), (384, 256), (1024, 704)]
)
def test_number_of_parameters_may_be_kept(d_ffn, kept):
    net = layer(d_ffn)
    before = sum(p.numel() for p in net.ffn_module1.parameters())
    report = use_feedforward(net, "geglu", keep="parameters")
    assert report.sizes == [(d_ffn, kept)] * 2
    assert f"d_ffn {kept} in place of {d_ffn}" in str(report)
    after = sum(p.numel() for p in net.ffn_module1.parameters())
    assert before <= after + 2 * D and after <= 1.07 * before


def test_standard_changes_nothing_and_draws_nothing(caplog):
    net = model()
    before, state = fingerprint(net), torch.get_rng_state()
    with caplog.at_level(logging.INFO, "speechbrain_triton"):
        report = use_feedforward(net, "standard", keep="parameters")
    assert fingerprint(net) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert str(report) == "ffn=standard: 4 modules, left as they are."
    assert not caplog.messages


def test_new_feed_forwards_are_where_and_as_the_old_ones_were():
    net = model().double().eval()
    use_feedforward(net, "geglu", approximate="tanh")
    for module in gated(net):
        assert not module.training and not module.dropout.training
        assert module.linear_in.weight.dtype is torch.float64
        assert module.approximate == "tanh"
        assert all(p.requires_grad for p in module.parameters())
    x = torch.randn(1, 5, D, dtype=torch.float64)
    assert net[0].ffn_module1(x).dtype is torch.float64


def test_same_seed_gives_the_same_weights_whatever_the_backend():
    weights = []
    for backend in ("torch", "auto"):
        torch.manual_seed(3)
        net = model()
        use_feedforward(net, "geglu")
        st.apply_kernels(net, ffn=backend)
        weights.append(list(net.parameters()))
    assert all(map(torch.equal, *weights))


def test_another_model_stays_as_it_is():
    net, other = model(), model()
    before = fingerprint(other)
    use_feedforward(net, "geglu")
    assert fingerprint(other) == before
    assert len(standard(layer())) == 2


def test_kernels_switched_before_are_refused():
    """Their flag ffn would not reach the new feed-forwards."""
    net = model()
    st.apply_kernels(net, ffn="torch")
    assert type(net[0]) is TritonConformerEncoderLayer
    before = fingerprint(net)
    use_feedforward(net, "standard")
    with pytest.raises(ValueError, match="must be chosen before apply_kernels"):
        use_feedforward(net, "geglu")
    assert fingerprint(net) == before
    st.restore(net)
    use_feedforward(net, "geglu")
    st.apply_kernels(net, ffn="torch")
    assert {module.backend for module in gated(net)} == {"torch"}
    assert type(net[0]) is TritonConformerEncoderLayer
    st.restore(net)
    assert len(gated(net)) == 4 and type(net[0]) is ConformerEncoderLayer


def test_subclasses_and_decoders_are_left_alone():
    class Own(ConformerEncoderLayer):
        pass

    net = model(3)
    net[1].__class__ = Own
    decoder = ConformerDecoderLayer(D, 16, 2, 3, attention_type="regularMHA")
    report = use_feedforward({"enc": net, "dec": decoder}, "geglu")
    assert len(report.names) == 4 and report.names[2] == "enc.2.ffn_module1"
    assert len(standard(net)) == 2 and len(standard(decoder)) == 2


@pytest.mark.parametrize("ffn", ["standard", "geglu"])
def test_model_without_such_layers_gets_a_sentence(ffn):
    with pytest.raises(ValueError, match="has no ConformerEncoderLayer") as e:
        use_feedforward(nn.Linear(2, 2), ffn)
    assert "\n" not in str(e.value)
    with pytest.raises(TypeError, match="model must be a torch.nn.Module"):
        use_feedforward({"lr": 1.0}, ffn)


def adapter(block):
    block.ffn_module2[1] = nn.Sequential(block.ffn_module2[1])


def inner_adapter(block):
    block.ffn_module2[1].ffn[3] = nn.Identity()


def hook(block):
    block.ffn_module2[1].register_forward_hook(lambda *_: None)


def inner_hook(block):
    block.ffn_module2[1].ffn[0].register_forward_hook(lambda *_: None)


def other_container(block):
    block.ffn_module2 = nn.Identity()


def other_inner_container(block):
    block.ffn_module2[1].ffn.append(nn.Identity())


CHANGES = [
    (adapter, "a Sequential in place of Positionalwise"),
    (inner_adapter, "a Identity in place of ffn.3"),
    (hook, "hooks on Positionalwise"),
    (inner_hook, "hooks on ffn.0"),
    (other_container, "a Identity that SpeechBrain did not build"),
    (other_inner_container, "a Sequential that SpeechBrain did not build"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_changed_feed_forward_is_not_thrown_away(change, reason):
    net = model()
    change(net[1])
    before = fingerprint(net)
    with pytest.raises(ValueError, match=f"1.ffn_module2 has {reason}"):
        use_feedforward(net, "geglu")
    assert fingerprint(net) == before
    use_feedforward(net, "standard")
    assert fingerprint(net) == before


@pytest.mark.parametrize("ffn", ["standard", "geglu"])
def test_second_architecture_is_refused(ffn):
    net = model()
    use_feedforward(net, "geglu")
    before = fingerprint(net)
    with pytest.raises(ValueError, match="ffn_module1 has a GEGLUFeedForward"):
        use_feedforward(net, ffn)
    assert fingerprint(net) == before


@pytest.mark.parametrize("flag", ["ffn", "keep", "approximate"])
@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_unknown_flag_value_is_refused_and_changes_nothing(flag, value):
    net = model()
    before = fingerprint(net)
    with pytest.raises(ValueError, match=f"^{flag}=.* is not one of '"):
        use_feedforward(net, **{"ffn": "geglu", flag: value})
    assert fingerprint(net) == before


@pytest.mark.parametrize("backend", ["auto", "torch", "triton"])
@pytest.mark.parametrize("keep", ["d_ffn", "parameters"])
def test_yaml_chooses_before_kernels_and_optimizer(backend, keep):
    hparams = load_hyperpyyaml(
        YAML, {"ffn": "geglu", "ffn_backend": backend, "geglu_keep": keep}
    )
    modules = gated(hparams["modules"]["enc"])
    assert len(modules) == 4
    size = 384 if keep == "d_ffn" else 256
    for module in modules:
        assert module.backend == backend and module.d_ffn == size
        assert module.dropout.p == 0.2
    trained = nn.ModuleDict(hparams["modules"]).parameters()
    saved = {id(p) for p in hparams["model"].parameters()}
    assert {id(p) for p in trained} == saved
    assert len(hparams["kernels"].ffn.names) == 4
    assert len(hparams["feedforwards"].names) == 4


def test_yaml_leaves_the_weights_of_standard_as_they_were():
    """Results of recipes without the flag must not move."""
    start, end = YAML.index("feedforwards:"), YAML.index("kernels:")
    states = []
    for text in (YAML, YAML[:start] + YAML[end:]):
        torch.manual_seed(0)
        hparams = load_hyperpyyaml(text)
        states.append(copy.deepcopy(hparams["Transformer"].state_dict()))
        states[-1]["next"] = torch.rand(1)
    assert list(states[0]) == list(states[1])
    assert all(map(torch.equal, states[0].values(), states[1].values()))


@pytest.mark.parametrize(
    ("key", "flag"),
    [
        ("ffn", "ffn"),
        ("geglu_keep", "keep"),
        ("geglu_approximate", "approximate"),
        ("ffn_backend", "ffn"),
    ],
)
@pytest.mark.parametrize("value", ["", "'False'", "no", "1.0", "True", "Geglu"])
def test_yaml_flag_that_only_looks_set_is_refused(key, flag, value):
    text = "\n".join(
        f"{key}: {value}" if line.startswith(f"{key}:") else line
        for line in YAML.splitlines()
    )
    with pytest.raises(ValueError, match=f"^{flag}=.* is not one of '"):
        load_hyperpyyaml(text)


def test_yaml_with_kernels_first_is_refused():
    start, end = YAML.index("feedforwards:"), YAML.index("kernels:")
    text = YAML[:start] + YAML[end:] + YAML[start:end]
    with pytest.raises(ValueError, match="in YAML put it first"):
        load_hyperpyyaml(text, {"ffn": "geglu"})


def test_yaml_without_gated_feed_forwards_refuses_their_kernels():
    with pytest.raises(ValueError, match="no GEGLUFeedForward .*ffn: geglu"):
        load_hyperpyyaml(YAML, {"ffn_backend": "triton"})


def test_file_of_the_other_architecture_names_the_flag():
    trained, loaded = (
        load_hyperpyyaml(YAML, {"ffn": ffn})["Transformer"]
        for ffn in ("standard", "geglu")
    )
    assert type(loaded) is TransformerASR
    with pytest.raises(RuntimeError, match="ffn_module1.1.*ffn: standard") as e:
        loaded.load_state_dict(trained.state_dict())
    assert "\n" not in str(e.value)
