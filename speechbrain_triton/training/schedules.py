"""Learning rates over the steps of a training."""

from collections.abc import Callable

import torch
from speechbrain.nnet.schedulers import NoamScheduler


def noam_schedule(
    lr: float, warmup_steps: int
) -> Callable[[torch.optim.Optimizer, int], None]:
    """Make SpeechBrain's Noam schedule a function of the optimizer step.

    ``NoamScheduler`` counts its own calls; the Brain says which step comes,
    so that the schedule has nothing to save.

    Arguments
    ---------
    lr : float
        The highest learning rate, that of step ``warmup_steps``.
    warmup_steps : int
        Steps of linear growth; the rate falls with the root of the step then.

    Returns
    -------
    callable
        Takes the optimizer and the number of the coming step, from 1.

    Raises
    ------
    ValueError
        If ``warmup_steps`` is not a number of at least 1.

    Example
    -------
    >>> optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    >>> schedule = noam_schedule(0.001, 100)
    >>> for step in (50, 100, 400):
    ...     schedule(optimizer, step)
    ...     print(round(optimizer.param_groups[0]["lr"], 6))
    0.0005
    0.001
    0.0005
    """
    if not (isinstance(warmup_steps, int | float) and warmup_steps >= 1):
        raise ValueError(
            f"warmup_steps={warmup_steps!r} is not a number of at least 1."
        )
    scheduler = NoamScheduler(lr, warmup_steps)

    def schedule(optimizer: torch.optim.Optimizer, step: int) -> None:
        scheduler.n_steps = step - 1
        scheduler(optimizer)

    return schedule
