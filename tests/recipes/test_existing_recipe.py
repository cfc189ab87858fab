"""SpeechBrain's own LibriSpeech transducer recipe, with a few lines more.

Its YAML is not in SpeechBrain's package. What stands here builds the same
structure under the same names, tiny and without dropout, and is trained as its
train.py does. The lines to add are read from the guide.
"""

import re
import sys
import types
from copy import deepcopy
from types import SimpleNamespace

import pytest
import speechbrain as sb
import torch
from hyperpyyaml import load_hyperpyyaml
from recipe_runs import ROOT
from speechbrain.dataio.batch import PaddedData
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule

from speechbrain_triton.modules import TritonConvolutionModule
from speechbrain_triton.ops.transducer_loss import transducer_loss_reference

RECIPE = """
seed: 3407
__set_seed: !apply:torch.manual_seed [!ref <seed>]
save_folder: !PLACEHOLDER
streaming: True
ctc_weight: 0.3
max_grad_norm: 5.0
lr: 0.01
warmup_steps: 5
use_torchaudio: False
n_mels: 8
d_model: 16
num_encoder_layers: 2
joint_dim: 16
dec_dim: 16
output_neurons: 7
blank_index: 0
pad_index: 0
activation: !name:torch.nn.GELU
dynchunktrain_config_sampler: !new:speechbrain.utils.dynamic_chunk_training.DynChunkTrainConfigRandomSampler
   chunkwise_prob: 0.6
   chunk_size_min: 2
   chunk_size_max: 4
   limited_left_context_prob: 0.75
   left_context_chunks_min: 1
   left_context_chunks_max: 3
epoch_counter: !new:speechbrain.utils.epoch_loop.EpochCounter
   limit: 1
normalize: !new:speechbrain.processing.features.InputNormalization
   norm_type: global
   update_until_epoch: 4
compute_features: !new:speechbrain.lobes.features.Fbank
   n_mels: !ref <n_mels>
CNN: !new:speechbrain.lobes.models.convolution.ConvolutionFrontEnd
   input_shape: [8, 10, !ref <n_mels>]
   num_blocks: 2
   num_layers_per_block: 1
   out_channels: [8, 4]
   kernel_sizes: [3, 3]
   strides: [2, 2]
   residuals: [False, False]
   dropout: 0.0
Transformer: !new:speechbrain.lobes.models.transformer.TransformerASR.TransformerASR
   input_size: 8
   tgt_vocab: !ref <output_neurons>
   d_model: !ref <d_model>
   nhead: 2
   num_encoder_layers: !ref <num_encoder_layers>
   num_decoder_layers: 0
   d_ffn: 32
   kernel_size: 5
   dropout: 0.0
   activation: !ref <activation>
   encoder_module: conformer
   attention_type: RelPosMHAXL
   normalize_before: True
   causal: False
enc: !new:speechbrain.lobes.models.transformer.TransformerASR.EncoderWrapper
   transformer: !ref <Transformer>
proj_enc: !new:speechbrain.nnet.linear.Linear
   input_size: !ref <d_model>
   n_neurons: !ref <joint_dim>
   bias: False
proj_ctc: !new:speechbrain.nnet.linear.Linear
   input_size: !ref <joint_dim>
   n_neurons: !ref <output_neurons>
emb: !new:speechbrain.nnet.embedding.Embedding
   num_embeddings: !ref <output_neurons>
   consider_as_one_hot: True
   blank_id: !ref <blank_index>
dec: !new:speechbrain.nnet.RNN.LSTM
   input_shape: [null, null, !ref <output_neurons> - 1]
   hidden_size: !ref <dec_dim>
proj_dec: !new:speechbrain.nnet.linear.Linear
   input_size: !ref <dec_dim>
   n_neurons: !ref <joint_dim>
   bias: False
Tjoint: !new:speechbrain.nnet.transducer.transducer_joint.Transducer_joint
   joint: sum
   nonlinearity: !ref <activation>
transducer_lin: !new:speechbrain.nnet.linear.Linear
   input_size: !ref <joint_dim>
   n_neurons: !ref <output_neurons>
   bias: False
log_softmax: !new:speechbrain.nnet.activations.Softmax
   apply_log: True
ctc_cost: !name:speechbrain.nnet.losses.ctc_loss
   blank_index: !ref <blank_index>
   reduction: batchmean
transducer_cost: !name:speechbrain.nnet.losses.transducer_loss
   blank_index: !ref <blank_index>
modules:
   CNN: !ref <CNN>
   enc: !ref <enc>
   emb: !ref <emb>
   dec: !ref <dec>
   Tjoint: !ref <Tjoint>
   transducer_lin: !ref <transducer_lin>
   normalize: !ref <normalize>
   proj_ctc: !ref <proj_ctc>
   proj_dec: !ref <proj_dec>
   proj_enc: !ref <proj_enc>
model: !new:torch.nn.ModuleList
   - [!ref <CNN>, !ref <enc>, !ref <emb>, !ref <dec>, !ref <proj_enc>, !ref <proj_dec>, !ref <proj_ctc>, !ref <transducer_lin>]
opt_class: !name:torch.optim.AdamW
   lr: !ref <lr>
   betas: [0.9, 0.98]
noam_annealing: !new:speechbrain.nnet.schedulers.NoamScheduler
   lr_initial: !ref <lr>
   n_warmup_steps: !ref <warmup_steps>
checkpointer: !new:speechbrain.utils.checkpoints.Checkpointer
   checkpoints_dir: !ref <save_folder>
   recoverables:
      model: !ref <model>
      scheduler: !ref <noam_annealing>
      normalizer: !ref <normalize>
      counter: !ref <epoch_counter>
"""  # noqa: E501
GUIDE = (ROOT / "docs" / "existing_recipes.md").read_text(encoding="utf-8")
CONV, FRONT_END, LOSS = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
STOCK_LOSS = """transducer_cost: !name:speechbrain.nnet.losses.transducer_loss
   blank_index: !ref <blank_index>
"""
assert RECIPE.count(STOCK_LOSS) == 1
WITH_KERNELS = RECIPE + CONV
WITH_ALL = RECIPE.replace(STOCK_LOSS, LOSS) + FRONT_END

pytestmark = pytest.mark.filterwarnings(
    # Of Triton's interpreter.
    "ignore:divide by zero",
    "ignore:invalid value",
)


class Transducer(torch.autograd.Function):
    """What SpeechBrain's class of this name computes, on any device.

    Its value is the mean of -log p / T and its gradient that of the sum of
    -log p.
    """

    @staticmethod
    def forward(ctx, log_probs, labels, T, U, blank, reduction):
        assert reduction == "mean"
        with torch.enable_grad():
            x = log_probs.detach().requires_grad_()
            cost = transducer_loss_reference(x, labels, T, U, blank=blank)
            (ctx.grads,) = torch.autograd.grad(cost.sum(), x)
        return (cost.detach() / T).mean()

    @staticmethod
    def backward(ctx, grad):
        return ctx.grads * grad, *(None,) * 5


@pytest.fixture(autouse=True)
def numba(monkeypatch):
    """Let SpeechBrain's transducer_loss run without numba and a GPU."""
    name = "speechbrain.integrations.numba.transducer_loss"
    module = types.ModuleType(name)
    module.Transducer = Transducer
    monkeypatch.setitem(sys.modules, name, module)


class ASR(sb.Brain):
    """Trains as the recipe's train.py does."""

    def compute_forward(self, batch, stage):
        wavs, wav_lens = batch.sig
        feats = self.hparams.compute_features(wavs)
        feats = self.modules.normalize(feats, wav_lens, epoch=1)
        x = self.modules.enc(
            self.modules.CNN(feats),
            wav_lens,
            pad_idx=self.hparams.pad_index,
            dynchunktrain_config=(
                self.hparams.dynchunktrain_config_sampler(stage)
                if self.hparams.streaming
                else None
            ),
        )
        x = self.modules.proj_enc(x)
        h, _ = self.modules.dec(self.modules.emb(batch.tokens_bos.data))
        h = self.modules.proj_dec(h)
        joint = self.modules.Tjoint(x.unsqueeze(2), h.unsqueeze(1))
        logits = self.modules.transducer_lin(joint)
        p_ctc = self.hparams.log_softmax(self.modules.proj_ctc(x))
        return p_ctc, logits, wav_lens

    def compute_objectives(self, predictions, batch, stage):
        p_ctc, logits, wav_lens = predictions
        tokens, token_lens = batch.tokens
        ctc = self.hparams.ctc_cost(p_ctc, tokens, wav_lens, token_lens)
        transducer = self.hparams.transducer_cost(
            logits, tokens, wav_lens, token_lens
        )
        weight = self.hparams.ctc_weight
        return weight * ctc + (1 - weight) * transducer

    def on_fit_batch_end(self, batch, outputs, loss, should_step):
        if should_step:
            self.hparams.noam_annealing(self.optimizer)


def load(text, folder, **overrides):
    overrides = {"save_folder": str(folder), **overrides}
    return load_hyperpyyaml(text, overrides)


def brain_of(text, folder, device, **overrides):
    """A Brain that is ready to train, from a checkpoint where there is one."""
    hparams = load(text, folder, **overrides)
    brain = ASR(
        modules=hparams["modules"],
        opt_class=hparams["opt_class"],
        hparams=hparams,
        run_opts={"device": device},
        checkpointer=hparams["checkpointer"],
    )
    brain.on_fit_start()
    brain.modules.train()
    return brain


def draw(device, seed=0):
    """Two utterances, the second of which is shorter in all."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 7, (2, 3), generator=random)
    lens = {"sig": [1.0, 0.75], "tokens": [1.0, 2 / 3]}
    data = {
        "sig": 0.1 * torch.randn(2, 4800, generator=random),
        "tokens": tokens,
    }
    data["tokens_bos"] = torch.nn.functional.pad(tokens, (1, 0))
    return SimpleNamespace(
        **{
            name: PaddedData(
                tensor.to(device),
                torch.tensor(lens.get(name, [1.0, 0.75]), device=device),
            )
            for name, tensor in data.items()
        }
    )


def train(brain, steps):
    """Train on a batch and in chunks that follow from the step's number."""
    losses = []
    for step in steps:
        torch.manual_seed(step)
        losses.append(brain.fit_batch(draw(brain.device, step)).item())
    return losses


@pytest.mark.parametrize(
    "text",
    [
        WITH_KERNELS,
        RECIPE + CONV.replace("<Transformer>", "<modules>"),
        WITH_ALL,
    ],
    ids=["conv", "all_modules", "all"],
)
def test_modules_are_switched_and_parameters_stay(text, tmp_path):
    stock = load(RECIPE, tmp_path / "stock")
    ours = load(text, tmp_path / "ours")
    switched = [
        module
        for module in ours["modules"]["enc"].modules()
        if isinstance(module, ConvolutionModule)
    ]
    assert [type(m) for m in switched] == [TritonConvolutionModule] * 2
    assert len(ours["kernels"].conv.names) == 2
    front_ends = ours["kernels"].frontend.names
    assert len(front_ends) == (
        text is WITH_ALL or "model: !ref <modules>" in text
    )
    # The same tensors under the same names, in their order.
    expected = stock["model"].state_dict()
    found = ours["model"].state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    named = [list(h["model"].named_parameters()) for h in (stock, ours)]
    assert [n for n, _ in named[0]] == [n for n, _ in named[1]]


def test_optimizer_and_checkpointer_see_the_switched_modules(tmp_path):
    brain = brain_of(WITH_ALL, tmp_path, "cpu")
    hparams = brain.hparams
    in_modules = {id(p) for p in brain.modules.parameters()}
    in_model = {id(p) for p in hparams.model.parameters()}
    in_transformer = {id(p) for p in hparams.Transformer.parameters()}
    optimized = [
        id(p) for group in brain.optimizer.param_groups for p in group["params"]
    ]
    assert len(optimized) == len(set(optimized))
    assert set(optimized) == in_modules == in_model > in_transformer
    assert brain.checkpointer.recoverables["model"] is hparams.model
    assert hparams.enc.transformer is hparams.Transformer


@pytest.mark.parametrize("text", [WITH_KERNELS, WITH_ALL], ids=["conv", "all"])
@pytest.mark.parametrize("on_first", [False, True], ids=["off_on", "on_off"])
def test_a_checkpoint_goes_on(text, on_first, tmp_path, device, launches):
    small = {"num_encoder_layers": 1}
    flags = {**small, "conv_backend": "triton"}
    if text is WITH_ALL:
        flags["frontend_backend"] = "triton"
    runs = [(RECIPE, small), (text, flags)]
    (before, options), (after, other_options) = runs[:: -1 if on_first else 1]

    brain = brain_of(before, tmp_path, device, **options)
    train(brain, range(2))
    brain.checkpointer.save_checkpoint()
    saved = deepcopy(brain.optimizer.state_dict()["state"])
    assert bool(launches) == on_first
    expected = train(brain, range(2, 4))
    launches.clear()

    brain = brain_of(after, tmp_path, device, **other_options)
    assert brain.optimizer_step == 2
    assert brain.hparams.noam_annealing.n_steps == 2
    state = brain.optimizer.state_dict()["state"]
    assert list(state) == list(saved)
    for number, moments in saved.items():
        for name, tensor in moments.items():
            assert torch.equal(state[number][name], tensor)
    found = train(brain, range(2, 4))
    assert bool(launches) != on_first
    assert found == pytest.approx(expected, rel=1e-5)

    # Were nothing recovered, the losses would be others.
    brain = brain_of(RECIPE, tmp_path / "new", device, **small)
    assert train(brain, range(2, 4)) != pytest.approx(expected, rel=1e-3)


def test_switched_off_it_is_the_recipe_as_it_was(tmp_path, launches):
    stock = brain_of(RECIPE, tmp_path / "stock", "cpu")
    ours = brain_of(
        WITH_KERNELS, tmp_path / "ours", "cpu", conv_backend="torch"
    )
    assert train(ours, range(3)) == train(stock, range(3))
    assert not launches


@pytest.mark.parametrize("backend", ["triton", "torchaudio", "torch", "auto"])
def test_the_loss_is_speechbrains(backend, tmp_path, device):
    """With the call of train.py, and an option that it may add on a CPU."""
    text = RECIPE.replace(STOCK_LOSS, f"{LOSS}   backend: {backend}\n")
    stock = load(RECIPE, tmp_path / "stock")["transducer_cost"]
    ours = load(text, tmp_path / "ours", use_torchaudio=True)["transducer_cost"]
    batch = draw(device)
    logits = torch.randn(2, 9, 4, 7, device=device)
    arguments = *batch.tokens, batch.sig.lengths
    results = []
    for cost in (stock, ours):
        x = logits.clone().requires_grad_()
        tokens, token_lens, wav_lens = arguments
        loss = cost(x, tokens, wav_lens, token_lens)
        (grad,) = torch.autograd.grad(0.7 * loss, x)
        results.append((loss.detach(), grad))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_an_argument_of_older_recipes_is_named(tmp_path):
    text = RECIPE.replace(
        STOCK_LOSS, f"{LOSS}   use_torchaudio: !ref <use_torchaudio>\n"
    )
    cost = load(text, tmp_path)["transducer_cost"]
    with pytest.raises(TypeError, match="no argument use_torchaudio.*backend"):
        cost(torch.zeros(1, 2, 2, 3), *([torch.ones(1, 1)] * 3))
