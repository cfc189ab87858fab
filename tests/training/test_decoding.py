"""Greedy and beam search in padded batches."""

import pytest
import torch
from speechbrain.decoders.transducer import TransducerBeamSearcher
from speechbrain.nnet.embedding import Embedding
from speechbrain.nnet.linear import Linear
from speechbrain.nnet.RNN import GRU, LSTM
from speechbrain.nnet.transducer.transducer_joint import Transducer_joint

from speechbrain_triton.training.decoding import (
    BeamSearcher,
    GreedySearcher,
    _copy_on_cpu,
)

VOCABULARY = 7
WIDTH = 12
FRAMES = torch.tensor([9, 4, 7, 1])


@pytest.fixture(params=[LSTM, GRU])
def networks(request):
    """A random transducer that emits several labels at some frames."""
    torch.manual_seed(3)
    layers = {
        "decode_network_lst": [
            Embedding(VOCABULARY, WIDTH),
            request.param(hidden_size=WIDTH, input_size=WIDTH),
            Linear(input_size=WIDTH, n_neurons=WIDTH),
        ],
        "tjoint": Transducer_joint(joint="sum", nonlinearity=torch.nn.Tanh),
        "classifier_network": [Linear(input_size=WIDTH, n_neurons=VOCABULARY)],
        "blank_id": 0,
    }
    classifier = layers["classifier_network"][0].w
    with torch.no_grad():
        classifier.weight *= 8
        classifier.bias[0] += 2
    return layers


@pytest.fixture
def encoded():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(len(FRAMES), 9, WIDTH, generator=generator)


def alone(networks, encoded, **options):
    searcher = TransducerBeamSearcher(**networks, **options)
    with torch.no_grad():
        return [
            searcher(row[None, :length])[0][0]
            for row, length in zip(encoded, FRAMES, strict=True)
        ]


def test_greedy_finds_what_speechbrain_finds_on_each_row_alone(
    networks, encoded
):
    # SpeechBrain's limit of 5 lets through 6 labels at a frame.
    searcher = GreedySearcher(**networks, max_symbols_per_step=6)
    found = searcher(encoded, FRAMES)
    assert found == alone(networks, encoded, beam_size=1)
    counts = [len(labels) for labels in found]
    assert max(counts) > 9, "no row tests several labels at a frame"
    assert sum(counts) < 6 * FRAMES.sum(), "no row tests the blank"


def test_greedy_ignores_the_padding(networks, encoded):
    searcher = GreedySearcher(**networks)
    before = searcher(encoded, FRAMES)
    padded = torch.cat([encoded, torch.randn(4, 3, WIDTH)], 1)
    for row, length in zip(padded, FRAMES, strict=True):
        row[length:] = 50.0
    assert searcher(padded, FRAMES) == before


def test_greedy_stops_at_the_limit_of_labels_per_frame(networks, encoded):
    with torch.no_grad():
        networks["classifier_network"][0].w.bias[0] = -1e4
    searcher = GreedySearcher(**networks, max_symbols_per_step=2)
    found = searcher(encoded, FRAMES)
    assert [len(labels) for labels in found] == (2 * FRAMES).tolist()


def test_beam_finds_what_speechbrain_finds_on_each_row_alone(networks, encoded):
    # With the blank always likely, SpeechBrain's own search comes to an end.
    classifier = networks["classifier_network"][0].w
    with torch.no_grad():
        classifier.weight /= 4
        classifier.bias[0] += 1
    options = {"beam_size": 3, "nbest": 1}
    found = BeamSearcher(**networks, **options)(encoded, FRAMES)
    assert found == alone(networks, encoded, **options)
    assert any(found)


def test_beam_on_a_copy_of_the_networks(networks, encoded):
    """What a GPU's search goes through; the networks stay where they are."""
    searcher = BeamSearcher(**networks, beam_size=2, nbest=1)
    twin = _copy_on_cpu(searcher)
    assert twin.searcher.__self__ is twin
    found = twin(encoded, FRAMES)
    with torch.no_grad():
        for layer in searcher.classifier_network:
            layer.w.bias += torch.arange(VOCABULARY) * 9.0
    assert twin(encoded, FRAMES) == found
    assert searcher(encoded, FRAMES) != found


def test_beam_ends_where_the_blank_is_never_among_the_best(networks, encoded):
    with torch.no_grad():
        networks["classifier_network"][0].w.bias[0] = -100.0
    searcher = BeamSearcher(
        **networks, beam_size=2, nbest=1, max_expansions_per_step=4
    )
    found = searcher(encoded, FRAMES)
    assert all(0 not in labels for labels in found)
    assert all(
        len(labels) <= 5 * length
        for labels, length in zip(found, FRAMES, strict=True)
    )


def test_beam_of_one_is_refused(networks):
    with pytest.raises(ValueError, match="beam_size=1 must be 2 or more"):
        BeamSearcher(**networks, beam_size=1)
