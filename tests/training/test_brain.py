"""The Brain: lengths of the front end."""

from types import SimpleNamespace

import torch
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from torch import nn

from speechbrain_triton.modules import FastConformerFrontEnd
from speechbrain_triton.training import TransducerBrain


class Wrapped(nn.Module):
    """As DDP does it: called like the module, without its attributes."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


def front_end_of_a_brain(module, feats, lens):
    brain = TransducerBrain.__new__(TransducerBrain)
    brain.hparams = SimpleNamespace(CNN=module)
    brain.modules = nn.ModuleDict({"CNN": Wrapped(module)})
    return brain._front_end(feats, lens)


def test_front_end_with_a_rule_gets_the_lengths_and_gives_its_own():
    module = FastConformerFrontEnd(9, channels=4)
    feats, lens = torch.randn(2, 363, 9), torch.tensor([288 / 363, 1.0])
    out, out_lens = front_end_of_a_brain(module, feats, lens)
    assert torch.equal(out, module(feats, lens))
    assert (out_lens * out.shape[1]).round().tolist() == [36, 46]


def test_speechbrains_front_end_is_called_as_ever():
    module = ConvolutionFrontEnd(
        (8, 10, 9), num_blocks=2, out_channels=[4, 4], strides=[2, 2]
    ).eval()
    feats, lens = torch.randn(2, 40, 9), torch.tensor([0.4, 1.0])
    out, out_lens = front_end_of_a_brain(module, feats, lens)
    assert torch.equal(out, module(feats))
    assert out_lens is lens
