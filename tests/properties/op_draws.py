"""How hypothesis draws the arguments of each op."""

from typing import NamedTuple

from hypothesis import strategies as st

from speechbrain_triton.ops.inputs import PADDINGS

REDUCTIONS = ("none", "sum", "mean")


class Size(NamedTuple):
    """Largest numbers of utterances, frames, bins and labels."""

    utterances: int
    frames: int
    bins: int
    labels: int


class Parts(NamedTuple):
    """What a case has, but for strides and values."""

    shapes: dict[str, tuple[int, ...]]
    integers: dict[str, tuple] = {}
    options: dict[str, object] = {}


def draw_frames(draw, size, least=1):
    """Often few, as then every frame is at an edge."""
    few = st.integers(least, max(least, min(20, size.frames)))
    return draw(few | st.integers(least, max(least, size.frames)))


def draw_batch(draw, size, least=0):
    return draw(st.integers(least, size.utterances))


def draw_lengths(draw, B, most, least=1):
    return tuple(
        draw(st.lists(st.integers(least, most), min_size=B, max_size=B))
    )


def draw_chunks(draw, T):
    """A chunk's length; kernels know what divides it by 8, 4 and 1."""
    return draw(st.none() | st.sampled_from((8, 16, 20, 5, T, T + 7)))


def vectors(C, **present):
    """Shapes of the parameters that are there."""
    return {name: (C,) for name, there in present.items() if there}


def draw_depthwise_conv1d(draw, c, size):
    padding = draw(st.sampled_from(PADDINGS))
    B = draw_batch(draw, size)
    T = draw_frames(draw, size, c.K if padding == "valid" else 1)
    shapes = {"x": (B, T, c.C), "weight": (c.C, 1, c.K)}
    shapes |= vectors(c.C, bias=c.bias)
    options = {"padding": padding}
    if padding == "same":
        options["chunk_size"] = draw_chunks(draw, T)
    if padding != "valid" and draw(st.booleans()):
        shapes["left_context"] = (B, draw(st.integers(0, c.K + 2)), c.C)
    return Parts(shapes, {}, options)


def draw_layer_norm(draw, c, size):
    last = draw_frames(draw, size, 0)
    rows = draw(st.lists(st.integers(0, 3), max_size=2))
    shapes = {"x": (*rows, last, c.C), "weight": (c.C,), "bias": (c.C,)}
    return Parts(shapes, {}, {"activation": c.activation, "dtype": c.dtype})


def draw_conv_block(draw, c, size):
    padding = draw(st.sampled_from(PADDINGS))
    T = draw_frames(draw, size, c.K if padding == "valid" else 1)
    shapes = {
        "h": (draw_batch(draw, size), T, 2 * c.C),
        "weight": (c.C, 1, c.K),
        **vectors(c.C, bias=c.bias, norm_weight=True, norm_bias=True),
        **vectors(2 * c.C, glu_bias=c.glu_bias),
    }
    options = {"padding": padding, "activation": c.activation}
    if padding == "same":
        options["chunk_size"] = draw_chunks(draw, T)
    return Parts(shapes, {}, options)


def draw_conv_module(draw, c, size):
    padding = draw(st.sampled_from(("same", "causal")))
    T = draw_frames(draw, size)
    shapes = {
        "x": (draw_batch(draw, size), T, c.C),
        **vectors(c.C, layer_norm_weight=True, layer_norm_bias=True),
        "bottleneck_weight": (2 * c.C, c.C, 1),
        **vectors(2 * c.C, bottleneck_bias=c.bottleneck_bias),
        "conv_weight": (c.C, 1, c.K),
        **vectors(c.C, conv_bias=c.bias, norm_weight=True, norm_bias=True),
        "linear_weight": (c.C, c.C),
        **vectors(c.C, linear_bias=c.bias),
    }
    options = {"padding": padding, "activation": c.activation}
    if padding == "same":
        options["chunk_size"] = draw_chunks(draw, T)
    return Parts(shapes, {}, options)


def draw_conv_stem(draw, c, size):
    # So that either convolution has an output.
    least = 1
    if c.padding == "valid":
        least = (c.K - 1) * (c.stride + 1) + 1
    B = draw_batch(draw, size)
    T = draw_frames(draw, size, least)
    F = draw(st.integers(least, max(least, size.bins)))
    weight = (c.C, 1, c.K, c.K)
    shapes = {"x": (B, T, F), "weight": weight, **vectors(c.C, bias=c.bias)}
    shapes |= {"depthwise_weight": weight}
    shapes |= vectors(c.C, depthwise_bias=c.depthwise_bias)
    lengths = {"lengths": draw_lengths(draw, B, T, 0)} if c.lengths else {}
    return Parts(shapes, lengths, {"stride": c.stride, "padding": c.padding})


def draw_depthwise_conv2d(draw, c, size):
    B = draw_batch(draw, size)
    K_T, K_F = c.kernel if c.padding == "valid" else (1, 1)
    T = draw_frames(draw, size, K_T)
    F = draw(st.integers(K_F, max(K_F, size.bins)))
    shapes = {"x": (B, T, F, c.C), "weight": (c.C, 1, *c.kernel)}
    shapes |= vectors(c.C, bias=c.bias, input_bias=c.input_bias)
    lengths = {"lengths": draw_lengths(draw, B, T, 0)} if c.lengths else {}
    options = {"stride": c.stride, "padding": c.padding, "relu": c.relu}
    return Parts(shapes, lengths, options)


def draw_bias_relu(draw, c, size):
    B, T = draw_batch(draw, size), draw_frames(draw, size, 0)
    F = draw(st.integers(0, size.bins))
    lengths = {"lengths": draw_lengths(draw, B, T, 0)} if c.lengths else {}
    return Parts({"x": (B, T, F, c.C), "bias": (c.C,)}, lengths)


def draw_reflection_pad2d(draw, c, size):
    frames, bins = c.pad
    T = draw_frames(draw, size, frames + 1)
    F = draw(st.integers(bins + 1, max(bins + 1, size.bins)))
    shapes = {"x": (draw_batch(draw, size), T, F, c.C)}
    return Parts(shapes, {}, {"pad": c.pad, "dtype": c.dtype})


def draw_frontend(draw, c, size):
    B, T = draw_batch(draw, size), draw_frames(draw, size)
    shapes = {"x": (B, T, draw(st.integers(1, size.bins)))}
    shapes |= {"conv_weight": (c.C, 1, c.K, c.K), "conv_bias": (c.C,)}
    for n in range(c.blocks):
        shapes |= {
            f"depthwise_weight{n}": (c.C, 1, c.K, c.K),
            f"depthwise_bias{n}": (c.C,),
            f"pointwise_weight{n}": (c.C, c.C, 1, 1),
            f"pointwise_bias{n}": (c.C,),
        }
    frames = {"frames": draw_lengths(draw, B, T)} if c.lengths else {}
    return Parts(shapes, frames, {"padding": c.padding})


def draw_geglu_linear(draw, c, size):
    rows = draw(st.sampled_from((0, 1, 2)))
    shape = tuple(draw_batch(draw, size) for _ in range(rows))
    D, F = c.widths
    shapes = {"x": (*shape, draw_frames(draw, size, 0), D)}
    shapes |= {"weight": (2 * F, D), **vectors(2 * F, bias=c.bias)}
    options = {"approximate": c.approximate, "dropout": c.dropout}
    if c.dropout:
        options["seed"] = draw(st.integers(-(2**63), 2**64))
    return Parts(shapes, {}, options)


def draw_geglu_ffn(draw, c, size):
    shapes, _, options = draw_geglu_linear(draw, c, size)
    shapes |= {"out_weight": (c.out, c.widths[1])}
    shapes |= vectors(c.out, out_bias=c.out_bias)
    return Parts(shapes, {}, options)


def draw_lattices(draw, c, size):
    """B, T and U, with labels and lengths that fit."""
    B = draw_batch(draw, size, 1)
    T = draw_frames(draw, size._replace(frames=min(size.frames, 100)))
    U = draw(st.integers(0, size.labels))
    blank = c.blank % c.V
    label = st.integers(0, c.V - 2).map(lambda v: v + (v >= blank))
    labels = st.lists(label, min_size=U, max_size=U).map(tuple)
    integers = {
        "targets": tuple(draw(labels) for _ in range(B)),
        "logit_lengths": draw_lengths(draw, B, T),
        "target_lengths": draw_lengths(draw, B, U, 0),
    }
    options = {
        "blank": c.blank,
        "clamp": 0.2 if c.clamp else -1.0,
        "reduction": draw(st.sampled_from(REDUCTIONS)),
        "fastemit_lambda": draw(st.sampled_from((0.0, 0.3))),
    }
    return (B, T, U + 1), integers, options


def draw_transducer_loss(draw, c, size):
    sizes, integers, options = draw_lattices(draw, c, size)
    options["inplace"] = draw(st.booleans())
    return Parts({"logits": (*sizes, c.V)}, integers, options)


def draw_transducer_joint_loss(draw, c, size):
    (B, T, U1), integers, options = draw_lattices(draw, c, size)
    shapes = {
        "encoder": (B, T, c.J),
        "predictor": (B, U1, c.J),
        "weight": (c.V, c.J),
        **vectors(c.V, bias=c.bias),
    }
    options |= {
        "nonlinearity": c.nonlinearity,
        "workspace": draw(st.sampled_from((2**28, 2**14, 2000, 1))),
    }
    return Parts(shapes, integers, options)
