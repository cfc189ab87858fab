"""The transducer's definition: a sum over all paths of a small lattice."""

import itertools

import torch


def path_sum(
    log_probs: torch.Tensor, labels: list[int], blank: int
) -> torch.Tensor:
    """-log p of one utterance, path by path.

    Arguments
    ---------
    log_probs : torch.Tensor
        (T, U + 1, V), log-softmaxed.
    labels : list of int
        U of them.
    blank : int
        Index of the blank.

    Returns
    -------
    torch.Tensor
        A scalar of log_probs' dtype.
    """
    frames = log_probs.shape[0]
    scores = []
    # A path is the frames at which the labels are emitted, in order.
    for emitted_at in itertools.combinations_with_replacement(
        range(frames), len(labels)
    ):
        score, u = 0.0, 0
        for t in range(frames):
            while u < len(labels) and emitted_at[u] == t:
                score = score + log_probs[t, u, labels[u]]
                u += 1
            score = score + log_probs[t, u, blank]
        scores.append(score)
    return -torch.stack(scores).logsumexp(0)
