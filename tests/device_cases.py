"""Every op and module with small inputs, and how they are run on a device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from speechbrain.lobes.models.transformer.Conformer import ConvolutionModule

from speechbrain_triton import ops
from speechbrain_triton.modules import (
    FastConformerFrontEnd,
    GEGLUFeedForward,
    TritonConvolutionFrontEnd,
    TritonConvolutionModule,
)

B, T, C, K = 2, 37, 64, 9


@dataclass
class Case:
    """A call on the kernels and on plain PyTorch.

    Arguments
    ---------
    name : str
    call : callable
        Takes tensors by name and ``backend``; returns a tensor.
    tensors : dict of torch.Tensor
        On the CPU, the input first.
    options : dict
        Other arguments.
    constant : tuple of str
        Floating tensors that have no gradient.
    rtol : float
        Error, relative to the norm of the plain result, that is allowed.
    """

    name: str
    call: Callable[..., torch.Tensor]
    tensors: dict[str, torch.Tensor]
    options: dict = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    rtol: float = 1e-4

    def run(self, tensors: dict, backend: str) -> torch.Tensor:
        return self.call(**tensors, **self.options, backend=backend)

    def outcome(self, tensors: dict, backend: str) -> dict:
        """Result and gradients, where rows and channels count differently."""
        inputs = {
            name: t.detach().requires_grad_(
                t.is_floating_point() and name not in self.constant
            )
            for name, t in tensors.items()
        }
        y = self.run(inputs, backend)
        wanted = [n for n, t in inputs.items() if t.requires_grad]
        dy = torch.linspace(0.5, 1.5, y.numel(), device=y.device)
        grads = torch.autograd.grad(
            y, [inputs[n] for n in wanted], dy.view(y.shape).to(y.dtype)
        )
        names = [f"d{n}" for n in wanted]
        return {"y": y.detach(), **dict(zip(names, grads, strict=True))}


def vectors(*names: str, size: int = C) -> dict[str, torch.Tensor]:
    return {name: torch.randn(size) for name in names}


def call_conv_module(x, *, backend, chunk_size, **parameters):
    return ops.conv_module(
        x,
        ops.ConvModuleParameters(**parameters),
        chunk_size=chunk_size,
        backend=backend,
    )


def op_cases() -> Iterator[Case]:
    torch.manual_seed(0)
    weight = torch.randn(C, 1, K) / 3
    halves = torch.randn(4 * C, C) / C**0.5
    yield Case(
        "depthwise_conv1d",
        ops.depthwise_conv1d,
        {"x": torch.randn(B, T, C), "weight": weight, **vectors("bias")},
        {"chunk_size": 8},
    )
    yield Case(
        "depthwise_conv1d_context",
        ops.depthwise_conv1d,
        {
            "x": torch.randn(B, T, C),
            "weight": weight,
            "left_context": torch.randn(B, 4, C),
        },
    )
    yield Case(
        "depthwise_conv2d",
        ops.depthwise_conv2d,
        {
            "x": torch.randn(B, 9, 8, C),
            "weight": torch.randn(C, 1, 3, 3),
            **vectors("bias", "input_bias"),
            "lengths": torch.tensor([9, 5]),
        },
        {"stride": 2, "relu": "before"},
    )
    yield Case(
        "conv_block",
        ops.conv_block,
        {
            "h": torch.randn(B, T, 2 * C),
            "weight": weight,
            **vectors("bias", "norm_weight", "norm_bias"),
            **vectors("glu_bias", size=2 * C),
        },
    )
    yield Case(
        "conv_module",
        call_conv_module,
        {
            "x": torch.randn(B, T, C),
            **vectors("layer_norm_weight", "layer_norm_bias"),
            "bottleneck_weight": torch.randn(2 * C, C, 1) / C**0.5,
            **vectors("bottleneck_bias", size=2 * C),
            "conv_weight": weight,
            **vectors("conv_bias", "norm_weight", "norm_bias"),
            "linear_weight": torch.randn(C, C) / C**0.5,
            **vectors("linear_bias"),
        },
        {"chunk_size": 8},
    )
    yield Case(
        "layer_norm",
        ops.layer_norm,
        {"x": torch.randn(B, T, C), **vectors("weight", "bias")},
        {"activation": "swish"},
    )
    yield Case(
        "conv_stem",
        ops.conv_stem,
        {
            "x": torch.randn(B, 17, 16),
            "weight": torch.randn(32, 1, 3, 3),
            **vectors("bias", size=32),
            "depthwise_weight": torch.randn(32, 1, 3, 3),
            **vectors("depthwise_bias", size=32),
            "lengths": torch.tensor([17, 11]),
        },
    )
    yield Case(
        "bias_relu",
        ops.bias_relu,
        {
            "x": torch.randn(B, 9, 4, C),
            **vectors("bias"),
            "lengths": torch.tensor([9, 5]),
        },
    )
    yield Case(
        "geglu_linear",
        ops.geglu_linear,
        {
            "x": torch.randn(B, T, C),
            "weight": halves,
            **vectors("bias", size=4 * C),
        },
        {"dropout": 0.1, "seed": 5},
    )
    yield Case(
        "geglu_ffn",
        ops.geglu_ffn,
        {
            "x": torch.randn(B, T, C),
            "weight": halves,
            **vectors("bias", size=4 * C),
            "out_weight": torch.randn(C, 2 * C) / C**0.5,
            **vectors("out_bias"),
        },
        {"dropout": 0.1, "seed": 5},
    )
    yield Case(
        "reflection_pad2d",
        ops.reflection_pad2d,
        {"x": torch.randn(B, 9, 8, C)},
        {"pad": (1, 1)},
    )
    lattice = {
        "targets": torch.tensor([[1, 2, 3], [4, 5, 0]]),
        "logit_lengths": torch.tensor([9, 6]),
        "target_lengths": torch.tensor([3, 2]),
    }
    yield Case(
        "transducer_loss",
        ops.transducer_loss,
        {"logits": torch.randn(B, 9, 4, 7), **lattice},
    )
    yield Case(
        "transducer_joint_loss",
        ops.transducer_joint_loss,
        {
            "encoder": torch.randn(B, 9, 24),
            "predictor": torch.randn(B, 4, 24),
            "weight": torch.randn(7, 24),
            **vectors("bias", size=7),
            **lattice,
        },
        {"reduction": "sum"},
    )


def fused_case(dtype: torch.dtype) -> Case:
    """What goes to the kernel for Hopper, where that is asked for."""
    tensors = {
        "x": torch.randn(300, 128),
        "weight": torch.randn(512, 128) / 128**0.5,
        **vectors("bias", size=512),
    }
    return Case(
        "geglu_linear_fused",
        ops.geglu_linear,
        {name: t.to(dtype) for name, t in tensors.items()},
        {"dropout": 0.1, "seed": 5},
        rtol=2e-2,
    )


def modules() -> dict[str, tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]:
    """Modules on the CPU and their inputs; ``backend`` is theirs to set."""
    conv = TritonConvolutionModule(C, K)
    conv.load_state_dict(ConvolutionModule(C, K).state_dict())
    return {
        "TritonConvolutionModule": (conv, (torch.randn(B, T, C),)),
        "FastConformerFrontEnd": (
            FastConformerFrontEnd(n_mels=16, channels=32),
            (torch.randn(B, 17, 16), torch.tensor([1.0, 0.6])),
        ),
        "TritonConvolutionFrontEnd": (
            TritonConvolutionFrontEnd(
                (B, 17, 16),
                num_blocks=2,
                num_layers_per_block=1,
                out_channels=[16, 8],
                strides=[2, 2],
                residuals=[False, False],
                dropout=0.0,
            ),
            (torch.randn(B, 17, 16),),
        ),
        "GEGLUFeedForward": (
            GEGLUFeedForward(2 * C, input_size=C),
            (torch.randn(B, T, C),),
        ),
    }


def module_case(name: str) -> Case:
    """A module's call as a function of its input and its parameters."""
    module, inputs = modules()[name]

    def call(*, backend, **tensors):
        module.backend = backend
        given = tuple(tensors.pop(n) for n in names)
        return torch.func.functional_call(module, tensors, given)

    names = ("x", "lengths")[: len(inputs)]
    tensors = dict(zip(names, inputs, strict=True))
    tensors |= {n: p.detach() for n, p in module.named_parameters()}
    return Case(name, call, tensors, constant=names[1:])
