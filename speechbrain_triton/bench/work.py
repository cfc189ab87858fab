"""What a case has to move and to multiply, whatever computes it.

It is what its floor does: a copy of as many bytes, and the same matmuls.
"""

from dataclasses import dataclass

from speechbrain_triton.bench.shapes import (
    Case,
    FeedForwardCase,
    JointCase,
    LinearCase,
    Measured,
    TransducerCase,
)

# Sizes of a matmul: (m, k) times (k, n).
Product = tuple[int, int, int]


@dataclass(frozen=True)
class Work:
    """What an op has to do at least.

    Arguments
    ---------
    copied : int
        Bytes that are moved outside of matmuls.
    products : tuple
        Sizes (m, k, n) of the matmuls.
    itemsize : int
        Bytes of an element of their operands and results.
    pointwise : int
        Operations outside of matmuls, counted where there is no matmul.
    """

    copied: int
    products: tuple[Product, ...]
    itemsize: int
    pointwise: int = 0

    @property
    def bytes_moved(self) -> int:
        """``copied``, and (m k + k n + m n) elements of each matmul."""
        elements = (m * k + k * n + m * n for m, k, n in self.products)
        return self.copied + self.itemsize * sum(elements)

    @property
    def flops(self) -> int:
        """2 m k n operations of each matmul, and ``pointwise``."""
        return self.pointwise + sum(2 * m * k * n for m, k, n in self.products)


def work(case: Measured, backward: bool) -> Work | None:
    """Count a case's bytes and operations.

    Arguments
    ---------
    case : Measured
        Op, shape and dtype.
    backward : bool
        Whether the gradients are computed, too.

    Returns
    -------
    Work or None
        None where no floor is known.

    Example
    -------
    >>> case = Case("depthwise_conv1d", 64, 400, 512, 31, "bfloat16")
    >>> forward = work(case, backward=False)
    >>> forward.bytes_moved, forward.flops / forward.bytes_moved
    (52428800, 15.5)
    """
    products = least_products(case, backward)
    copied = least_bytes(case, backward)
    if not products and not copied:
        return None
    pointwise = _POINTWISE.get(case.op)
    return Work(
        copied,
        products,
        case.torch_dtype.itemsize,
        pointwise(case, backward) if pointwise else 0,
    )


def least_bytes(case: Measured, backward: bool) -> int:
    """Bytes that have to be moved outside of matmuls, which move their own.

    Arguments
    ---------
    case : Measured
        Op, shape and dtype.
    backward : bool
        Whether the gradients are computed, too.

    Returns
    -------
    int
        0 where all can be done within the matmuls, or nothing is known.
    """
    count = _BYTES.get(case.op)
    return count(case, backward) if count else 0


def least_products(case: Measured, backward: bool) -> tuple[Product, ...]:
    """Sizes (m, k, n) of the matmuls that an op consists of.

    The gradients of y = x W^T add two for each: dy W (m, n, k), and dy^T x
    (n, m, k).

    Arguments
    ---------
    case : Measured
        Op, shape and dtype.
    backward : bool
        Whether the gradients are computed, too.

    Returns
    -------
    tuple
        Empty where there is none.
    """
    count = _PRODUCTS.get(case.op)
    forward = count(case) if count else ()
    if not backward:
        return forward
    return tuple(
        product
        for m, k, n in forward
        for product in ((m, k, n), (m, n, k), (n, m, k))
    )


def front_end_sizes(case: Case) -> tuple[int, int, int, int]:
    """Frames and bins, 4 times and 8 times fewer."""
    return tuple(
        -(-size // factor) for factor in (4, 8) for size in (case.T, case.F)
    )


def _depthwise_bytes(case: Case, backward: bool) -> int:
    """x and y, and for the gradients x, dy and dx.

    Parameters and their gradients are too small to count.
    """
    tensors = 5 if backward else 2
    return tensors * case.elements * case.torch_dtype.itemsize


def _module_bytes(case: Case, backward: bool) -> int:
    """One pass each between the matmuls of a convolution module.

    An element here is one channel of one frame, s the size of autocast's
    dtype. A pass reads what it needs and writes what the next matmul reads:

    - layer norm: x in float32 (4), the normalised x (s);
    - gate, depthwise convolution, layer norm, activation: h, which has
      2 C channels (2 s), and the activation (s);
    - backward through these: the activation's gradient (s), h once more
      (2 s), the gradient of h (2 s);
    - backward through the first layer norm: the gradient of the normalised x
      (s), x once more (4), dx in float32 (4).

    That is 4 + 4 s bytes an element forward and 8 + 6 s more backward. The
    convolution's output is in no pass: backward can compute it again from h.
    An implementation that keeps it instead writes and reads it (2 s), and
    one that takes two passes backward writes and reads what stands between
    them (2 s). Parameters, their gradients and statistics of rows are too
    small to count.
    """
    size = case.torch_dtype.itemsize
    forward = 4 + 4 * size
    return case.elements * (forward + (8 + 6 * size) * backward)


def _front_end_bytes(case: Case, backward: bool) -> int:
    """One pass each between the matmuls of a front end.

    With s the size of autocast's dtype, X the elements of x (float32), and
    N and M those of the layers with 4 and 8 times fewer frames and bins:

    - forward: x is read and the first depthwise convolution's output written
      (4 X + s N), the first matmul's is read and the second depthwise
      convolution's written (s N + s M); the last bias and ReLU belong to the
      second matmul;
    - backward: dy and y are read, the gradient behind ReLU is written (3 s M);
      the gradient of the second depthwise convolution's output and its input
      are read, the input's gradient is written (s M + 2 s N); the gradient of
      the first one's output and x are read (s N + 4 X).

    The layer with twice fewer frames and bins, 4 N elements, is in no pass.
    """
    size = case.torch_dtype.itemsize
    frames, bins, last_frames, last_bins = front_end_sizes(case)
    x = 4 * case.B * case.T * case.F
    n = size * case.B * case.C * frames * bins
    m = size * case.B * case.C * last_frames * last_bins
    forward = x + 2 * n + m
    return forward + (x + 3 * n + 4 * m) * backward


def _loss_bytes(case: TransducerCase, backward: bool) -> int:
    """The logits, and for the gradient them and it.

    The gradient needs the sum over all paths first, and no cache holds the
    logits until it is there.
    """
    return (3 if backward else 1) * case.logits_bytes


def _module_products(case: Case) -> tuple[Product, ...]:
    """The linear layers, C to 2 C and C to C channels."""
    rows, C = case.B * case.T, case.C
    return (rows, C, 2 * C), (rows, C, C)


def _front_end_products(case: Case) -> tuple[Product, ...]:
    """The pointwise convolutions with 4 and 8 times fewer frames and bins.

    Those from one channel and the depthwise ones, of 9 taps each, are not
    counted: with 256 channels they are a seventh of these.
    """
    frames, bins, last_frames, last_bins = front_end_sizes(case)
    return tuple(
        (case.B * positions, case.C, case.C)
        for positions in (frames * bins, last_frames * last_bins)
    )


def _linear_products(case: LinearCase) -> tuple[Product, ...]:
    """Both halves at once."""
    return ((case.M, case.K, 2 * case.N),)


def _feed_forward_products(case: FeedForwardCase) -> tuple[Product, ...]:
    """C to 2 F, and F to C channels."""
    rows = case.B * case.T
    return (rows, case.C, 2 * case.F), (rows, case.F, case.C)


def _joint_products(case: JointCase) -> tuple[Product, ...]:
    """The output layer, J to V channels."""
    return ((case.rows, case.J, case.V),)


def _depthwise_flops(case: Case, backward: bool) -> int:
    """2 K operations an element, and as many for dx and for dweight.

    Taps that meet a zero, at an edge or past a chunk's end, count too.
    """
    return (3 if backward else 1) * 2 * case.K * case.elements


def _loss_flops(case: TransducerCase, backward: bool) -> int:
    """3 operations a logit: less the maximum, exponential, sum.

    The gradient has 3 more: less the normaliser, exponential, times the
    probability of the node.
    """
    logits = case.logits_bytes // case.torch_dtype.itemsize
    return (6 if backward else 3) * logits


_BYTES = {
    "depthwise_conv1d": _depthwise_bytes,
    "conv_module": _module_bytes,
    "frontend": _front_end_bytes,
    "transducer_loss": _loss_bytes,
}
_PRODUCTS = {
    "conv_module": _module_products,
    "frontend": _front_end_products,
    "geglu_linear": _linear_products,
    "geglu_ffn": _feed_forward_products,
    "transducer_joint_loss": _joint_products,
}
_POINTWISE = {
    "depthwise_conv1d": _depthwise_flops,
    "transducer_loss": _loss_flops,
}
