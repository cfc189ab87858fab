"""Greedy and beam search of padded batches."""

import copy

import torch
from speechbrain.decoders.transducer import TransducerBeamSearcher


class GreedySearcher(TransducerBeamSearcher):
    """Batched greedy search of a transducer.

    It finds what SpeechBrain's greedy search finds on an utterance alone.
    SpeechBrain's also walks through the padding of a batch, where the model
    is untrained and may emit anything, and reads every label from the device
    by itself; here each row has its own frame counter, so that rows wait
    neither for each other nor for the host.

    Arguments
    ---------
    decode_network_lst : list of torch.nn.Module
        Layers of the prediction network.
    tjoint : torch.nn.Module
        The joint.
    classifier_network : list of torch.nn.Module
        Layers from the joint to the logits.
    blank_id : int
        The blank's label.
    max_symbols_per_step : int
        Labels emitted at one frame at most. SpeechBrain's search emits one
        more with the same number.

    Example
    -------
    >>> from speechbrain.nnet.embedding import Embedding
    >>> from speechbrain.nnet.linear import Linear
    >>> from speechbrain.nnet.RNN import GRU
    >>> from speechbrain.nnet.transducer.transducer_joint import (
    ...     Transducer_joint,
    ... )
    >>> searcher = GreedySearcher(
    ...     decode_network_lst=[Embedding(5, 8), GRU(8, input_size=8)],
    ...     tjoint=Transducer_joint(joint="sum"),
    ...     classifier_network=[Linear(input_size=8, n_neurons=5)],
    ...     blank_id=0,
    ... )
    >>> len(searcher(torch.rand(2, 6, 8), frames=torch.tensor([6, 4])))
    2
    """

    def __init__(
        self,
        decode_network_lst: list[torch.nn.Module],
        tjoint: torch.nn.Module,
        classifier_network: list[torch.nn.Module],
        blank_id: int,
        max_symbols_per_step: int = 5,
    ) -> None:
        super().__init__(
            decode_network_lst, tjoint, classifier_network, blank_id, 1
        )
        self.max_symbols_per_step = max_symbols_per_step

    @torch.no_grad()
    def forward(
        self, tn_output: torch.Tensor, frames: torch.Tensor
    ) -> list[list[int]]:
        """Decode a batch.

        Arguments
        ---------
        tn_output : torch.Tensor
            (B, T, J), the projected encoder output.
        frames : torch.Tensor
            (B,), integer, the valid frames of each row.

        Returns
        -------
        list of list of int
            The labels of each row, without blanks.
        """
        batch, device = tn_output.shape[0], tn_output.device
        rows = torch.arange(batch, device=device)
        frame = torch.zeros_like(rows)
        emitted_here = torch.zeros_like(rows)
        last_label = rows.new_full((batch, 1), self.blank_id)
        prediction, state = self._forward_PN(
            last_label, self.decode_network_lst
        )
        emissions = []
        while (frame < frames).any():
            current = tn_output[rows, frame.clamp(max=tn_output.shape[1] - 1)]
            scores = self._joint_forward_step(
                current[:, None, None], prediction[:, None]
            )
            best = scores.flatten(1).argmax(-1)
            emit = (best != self.blank_id) & (frame < frames)
            emit &= emitted_here < self.max_symbols_per_step
            emissions.append(torch.where(emit, best, self.blank_id))

            advanced, new_state = self._forward_PN(
                best[:, None], self.decode_network_lst, state
            )
            prediction = torch.where(emit[:, None, None], advanced, prediction)
            state = _select_state(emit, new_state, state)
            frame = torch.where(emit, frame, frame + 1)
            emitted_here = torch.where(emit, emitted_here + 1, 0)

        table = torch.stack(emissions, 1).tolist() if emissions else []
        return [[k for k in row if k != self.blank_id] for row in table]


class BeamSearcher(TransducerBeamSearcher):
    """SpeechBrain's beam search, without the padding and with an end.

    SpeechBrain's search leaves a frame when hypotheses have taken the blank,
    and only labels among the ``beam_size`` best are ever looked at: with a
    model that is not trained yet, the blank may never be one of them, and
    the search runs for ever. Here the blank is the one way on after a number
    of expansions at the same frame. Below that number the result is the same.

    Arguments
    ---------
    beam_size : int
        Hypotheses kept at each frame, 2 or more.
    max_expansions_per_step : int
        Hypotheses extended at one frame before only the blank is left.
    **kwargs : dict
        Those of ``TransducerBeamSearcher``.

    Raises
    ------
    ValueError
        If ``beam_size`` is below 2.

    Example
    -------
    >>> from speechbrain.nnet.embedding import Embedding
    >>> from speechbrain.nnet.linear import Linear
    >>> from speechbrain.nnet.RNN import GRU
    >>> from speechbrain.nnet.transducer.transducer_joint import (
    ...     Transducer_joint,
    ... )
    >>> searcher = BeamSearcher(
    ...     decode_network_lst=[Embedding(5, 8), GRU(8, input_size=8)],
    ...     tjoint=Transducer_joint(joint="sum"),
    ...     classifier_network=[Linear(input_size=8, n_neurons=5)],
    ...     blank_id=0,
    ...     beam_size=2,
    ... )
    >>> len(searcher(torch.rand(2, 6, 8), frames=torch.tensor([6, 4])))
    2
    """

    def __init__(
        self, *, beam_size: int, max_expansions_per_step: int = 50, **kwargs
    ) -> None:
        if beam_size < 2:
            raise ValueError(
                f"beam_size={beam_size!r} must be 2 or more; switch "
                "test_beam_search off to do without."
            )
        super().__init__(beam_size=beam_size, **kwargs)
        self.max_expansions_per_step = max_expansions_per_step
        self._frame = self._expansions = 0

    @torch.no_grad()
    def forward(
        self, tn_output: torch.Tensor, frames: torch.Tensor
    ) -> list[list[int]]:
        """Decode the rows of a batch one by one.

        Arguments
        ---------
        tn_output : torch.Tensor
            (B, T, J), the projected encoder output.
        frames : torch.Tensor
            (B,), integer, the valid frames of each row.

        Returns
        -------
        list of list of int
            The best labels of each row, without blanks.
        """
        if tn_output.device.type != "cpu":
            # The search asks about every label it looks at: thousands of tiny
            # steps, which a GPU makes wait for the host one by one.
            twin = _copy_on_cpu(self)
            return twin(tn_output.float().cpu(), frames.cpu())
        self._frame = 0
        rows = zip(tn_output.contiguous(), frames.tolist(), strict=True)
        return [self.searcher(row[None, :length])[0][0] for row, length in rows]

    def _joint_forward_step(self, h_i, out_PN):
        log_probs = super()._joint_forward_step(h_i, out_PN)
        # A frame is a view into the encoder's output: its address names it.
        if h_i.data_ptr() != self._frame:
            self._frame, self._expansions = h_i.data_ptr(), 0
        self._expansions += 1
        if self._expansions > self.max_expansions_per_step:
            blank = log_probs[..., self.blank_id].clone()
            log_probs = torch.full_like(log_probs, -1e4)
            log_probs[..., self.blank_id] = blank
        return log_probs


def _copy_on_cpu(searcher: BeamSearcher) -> BeamSearcher:
    """Copy a searcher with its networks, which it does not register."""
    twin = copy.deepcopy(searcher)
    for layer in (
        *twin.decode_network_lst,
        twin.tjoint,
        *twin.classifier_network,
    ):
        layer.to("cpu")
    return twin


def _select_state(
    mask: torch.Tensor,
    new: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    old: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Take rows of a (layers, B, H) state, or a pair of them, by a mask."""
    if isinstance(new, tuple):
        return tuple(
            _select_state(mask, n, o) for n, o in zip(new, old, strict=True)
        )
    return torch.where(mask[None, :, None], new, old)
