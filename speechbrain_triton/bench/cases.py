"""Which shapes are timed, the most important first."""

from collections.abc import Sequence
from dataclasses import replace

from speechbrain_triton.bench.shapes import (
    Case,
    FeedForwardCase,
    JointCase,
    LinearCase,
    Measured,
    TrainingCase,
    TransducerCase,
)

DEPTHWISE = Case("depthwise_conv1d", 64, 400, 512, 31, "bfloat16")
MODULE = replace(DEPTHWISE, op="conv_module")
FRONTEND = Case("frontend", 64, 3200, 256, 3, "bfloat16", F=80)
CNN = Case("convolution_frontend", 40, 1500, 64, 3, "bfloat16", F=80)
STREAM = replace(MODULE, T=16, dtype="float32", stream=True)
GEGLU = LinearCase("geglu_linear", 25600, 512, 2048, "bfloat16")
LADDER = replace(GEGLU, op="geglu_ladder", step="matmul")
FEED_FORWARD = FeedForwardCase("geglu_ffn", 64, 400, 512, 2048, "bfloat16")
TRANSDUCER = TransducerCase("transducer_loss", 40, 375, 55, 1000, "bfloat16")
JOINT = JointCase("transducer_joint_loss", 40, 375, 55, 1000, "bfloat16")
TRAINING = TrainingCase("train_step", "bfloat16")

CASES: tuple[Measured, ...] = (
    DEPTHWISE,
    *(
        replace(MODULE, dtype=dtype, chunk=chunk)
        for dtype in ("bfloat16", "float16")
        for chunk in (0, 16, 8)
    ),
    *(replace(MODULE, B=16, chunk=chunk) for chunk in (0, 16, 8)),
    *(replace(STREAM, B=B) for B in (1, 8, 64)),
    replace(STREAM, B=1, T=4),
    replace(STREAM, B=8, T=32),
    FRONTEND,
    replace(FRONTEND, dtype="float16"),
    replace(FRONTEND, B=8, T=1600),
    replace(FRONTEND, B=16, dtype="float32"),
    CNN,
    replace(CNN, dtype="float16"),
    replace(CNN, B=16),
    replace(DEPTHWISE, dtype="float16"),
    replace(DEPTHWISE, chunk=16),
    replace(DEPTHWISE, chunk=8),
    replace(DEPTHWISE, K=9),
    replace(DEPTHWISE, K=9, dtype="float16"),
    replace(MODULE, K=9),
    replace(DEPTHWISE, dtype="float32"),
    replace(DEPTHWISE, dtype="float32", chunk=16),
    *(replace(DEPTHWISE, C=C) for C in (144, 256, 1024)),
    replace(DEPTHWISE, B=16),
    replace(DEPTHWISE, B=8, T=4000),
    replace(DEPTHWISE, T=20),
    replace(DEPTHWISE, B=1, T=20),
    GEGLU,
    replace(GEGLU, M=6400),
    replace(GEGLU, N=1408),
    replace(GEGLU, K=256, N=1024),
    replace(GEGLU, M=8192, K=1024, N=4096),
    replace(GEGLU, M=16384, K=2048, N=8192),
    replace(GEGLU, dtype="float16"),
    replace(GEGLU, dtype="float32"),
    FEED_FORWARD,
    replace(FEED_FORWARD, F=1408),
    replace(FEED_FORWARD, B=16),
    replace(FEED_FORWARD, dropout=0.1),
    *(
        replace(LADDER, step=step)
        for step in (
            "matmul",
            "matmul_gelu",
            "matmul_gelu_mul",
            "second_half",
            "first_half",
            "both_halves",
            "gelu_mul",
        )
    ),
    *(
        replace(case, B=B, T=T, U=U, V=V)
        for case in (TRANSDUCER, JOINT)
        for B, T, U, V in (
            (40, 375, 55, 1000),
            (16, 400, 60, 1000),
            (16, 200, 30, 4096),
            (64, 200, 60, 500),
        )
    ),
    *(
        replace(TRAINING, dtype=dtype, chunk=chunk, fast=fast)
        for fast, chunks in ((False, (0, 16, 8)), (True, (0, 16)))
        for dtype in ("bfloat16", "float16")
        for chunk in chunks
    ),
)


def select(
    ops: Sequence[str],
    shape: str | None = None,
    quick: bool = False,
    dtype: str | None = None,
) -> list[Measured]:
    """Choose cases, in their order.

    Arguments
    ---------
    ops : sequence of str
        Names of ops.
    shape : str, optional
        A text that the shape must contain.
    quick : bool
        Of each op only the first case.
    dtype : str, optional
        ``"float32"``, ``"bfloat16"`` or ``"float16"``: only cases of it.

    Returns
    -------
    list of Measured

    Raises
    ------
    ValueError
        If nothing is left.

    Example
    -------
    >>> [case.dtype for case in select(["conv_module"], "T400_C512_K9")]
    ['bfloat16']
    """
    chosen = [
        case
        for case in CASES
        if case.op in ops
        and (shape is None or shape in case.shape)
        and (dtype is None or dtype == case.dtype)
    ]
    if not chosen:
        wanted = dtype or ""
        if shape is not None:
            wanted = f"{wanted} with {shape!r} in its shape".strip()
        raise ValueError(
            f"No case of {', '.join(ops)} is {wanted}; shapes are written like "
            f"{CASES[0].shape}_chunk16."
        )
    if quick:
        first = {case.op: case for case in reversed(chosen)}
        chosen = [case for case in chosen if case is first[case.op]]
    return chosen
