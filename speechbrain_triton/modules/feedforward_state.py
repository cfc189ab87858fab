"""What a gated feed-forward says of a checkpoint that is not its own."""

from collections.abc import Mapping

from torch import nn

from speechbrain_triton.ops.geglu_linear.reference import APPROXIMATIONS


def checkpoint_obstacle(
    module: nn.Module, state_dict: Mapping, prefix: str
) -> str | None:
    """Say why a checkpoint is of another feed-forward, if it is.

    Arguments
    ---------
    module : GEGLUFeedForward
        The feed-forward that loads it.
    state_dict : mapping
        The checkpoint, maybe of a whole model.
    prefix : str
        Begins the names of the feed-forward in it.

    Returns
    -------
    str or None
        A sentence without its full stop; None where nothing speaks against
        it. Missing keys are left to torch.
    """
    if f"{prefix}ffn.0.weight" in state_dict:
        return (
            "the checkpoint holds SpeechBrain's PositionalwiseFeedForward and "
            f"not a GEGLUFeedForward{_place(prefix)}: set ffn: standard, "
            "as in its training, or train anew"
        )
    return _size_obstacle(module, state_dict, prefix) or _gelu_obstacle(
        module, state_dict, prefix
    )


def _size_obstacle(module, state_dict, prefix):
    own = 2 * module.d_ffn, module.input_size
    weight = state_dict.get(f"{prefix}linear_in.weight")
    saved = tuple(getattr(weight, "shape", own))
    if saved == own or len(saved) != 2:
        return None
    return (
        f"the checkpoint has d_ffn={saved[0] // 2} and input_size={saved[1]}, "
        f"and this feed-forward d_ffn={module.d_ffn} and "
        f"input_size={module.input_size}{_place(prefix)}: build the model "
        "with the sizes of the checkpoint, or train anew"
    )


def _gelu_obstacle(module, state_dict, prefix):
    key = f"{prefix}_extra_state"
    if key not in state_dict:
        return None
    # An average of checkpoints of both kinds lies between the two numbers.
    saved = float(state_dict[key])
    names = [n for i, n in enumerate(APPROXIMATIONS) if i == saved]
    if names == [module.approximate]:
        return None
    trained = f"approximate={names[0]!r}" if names else "different GELUs"
    return (
        f"the checkpoint was trained with {trained}, and this feed-forward "
        f"has approximate={module.approximate!r}{_place(prefix)}: give "
        "approximate the value of the checkpoint, or train anew"
    )


def _place(prefix: str) -> str:
    return f" (module {prefix.removesuffix('.')!r})" if prefix else ""
