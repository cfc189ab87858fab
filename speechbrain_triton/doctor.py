"""``speechbrain-triton doctor``: what would run on this machine, and why."""

import argparse
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable

# Distribution and the range that the package is tested with.
SUPPORTED = {
    "torch": ">=2.11,<2.15",
    "triton": ">=3.6,<3.9",
    "speechbrain": ">=1.1.2,<1.2",
    "torchaudio": ">=2.11",
    "hyperpyyaml": ">=1.2.2",
    "espeakng-loader": ">=0.2.4",
}
OPTIONAL = {
    "triton": "the kernels",
    "espeakng-loader": "the demo's spoken corpus",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document"
    )


def run(args: argparse.Namespace) -> int:
    """Print the findings.

    Returns
    -------
    int
        0; 1 if a needed package is missing or out of range, or a kernel gave
        a wrong result.
    """
    findings = examine()
    if args.json:
        json.dump(findings, sys.stdout, indent=1)
        print()
    else:
        _print(findings)
    return 0 if findings["healthy"] else 1


def examine() -> dict:
    """Look at the machine.

    Returns
    -------
    dict
        ``python``; ``packages`` (name to installed version, supported range
        and verdict); ``gpu`` (name, or None); ``kinds`` (kind to path,
        ``"triton"`` or ``"torch"``, reason and measured relative error of
        the kernel where it runs); ``healthy``.

    Example
    -------
    >>> sorted(examine())
    ['gpu', 'healthy', 'kinds', 'packages', 'python']
    """
    import torch

    packages = {name: _package(name) for name in SUPPORTED}
    kinds = {
        "conv": _examine(_try_conv),
        "frontend": _examine(_try_frontend),
        "ffn": _examine(_try_ffn),
    }
    gpu = None
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        gpu = f"{torch.cuda.get_device_name()} ({major}.{minor})"
    return {
        "python": platform.python_version(),
        "packages": packages,
        "gpu": gpu,
        "kinds": kinds,
        "healthy": all(p["verdict"] != "bad" for p in packages.values())
        and all(kind["verdict"] == "ok" for kind in kinds.values()),
    }


def _package(name: str) -> dict:
    from packaging.specifiers import SpecifierSet

    wanted = SUPPORTED[name]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        verdict = "absent" if name in OPTIONAL else "bad"
        return {"version": None, "supported": wanted, "verdict": verdict}
    # A local tag such as +cu130 is not part of the range.
    fits = SpecifierSet(wanted).contains(
        version.partition("+")[0], prereleases=True
    )
    verdict = "ok" if fits else "bad"
    return {"version": version, "supported": wanted, "verdict": verdict}


def _examine(try_kernels: Callable[[], float]) -> dict:
    """Say which path "auto" takes, and try the kernels where it is Triton."""
    from speechbrain_triton.kinds import expected_path

    path, reason = expected_path("auto")
    finding = {"path": path, "reason": reason, "error": None, "verdict": "ok"}
    if path == "triton":
        finding["error"] = try_kernels()
        if not finding["error"] < 1e-6:
            finding["verdict"] = "bad"
    return finding


def _try_conv() -> float:
    import torch

    from speechbrain_triton.bench.check import relative_error
    from speechbrain_triton.ops import depthwise_conv1d

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 64, generator=generator).cuda()
    weight = torch.randn(64, 1, 15, generator=generator).cuda()
    ours = depthwise_conv1d(x, weight, chunk_size=8, backend="triton")
    exact = depthwise_conv1d(
        x.double(), weight.double(), chunk_size=8, backend="torch"
    )
    return relative_error(ours, exact)


def _try_frontend() -> float:
    import torch

    from speechbrain_triton.modules import (
        FastConformerFrontEnd,
        TritonConvolutionFrontEnd,
    )

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 40, generator=generator).cuda()
    lengths = torch.tensor([1.0, 0.7]).cuda()
    fast = FastConformerFrontEnd(40, channels=64, backend="triton").cuda()
    stock = TritonConvolutionFrontEnd(
        x.shape,
        num_blocks=2,
        num_layers_per_block=1,
        out_channels=[64, 32],
        strides=[2, 2],
        residuals=[False, False],
        backend="triton",
    ).cuda()
    errors = _error_of(fast, x, lengths), _error_of(stock.eval(), x)
    return torch.tensor(errors).max().item()  # NaN, if one of them is


def _try_ffn() -> float:
    import torch

    from speechbrain_triton.modules import GEGLUFeedForward

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 64, generator=generator).cuda()
    return _error_of(
        GEGLUFeedForward(192, input_size=64, backend="triton").cuda(), x
    )


def _error_of(module, *inputs) -> float:
    """The error of a module on kernels against its torch path in float64."""
    import copy

    import torch

    from speechbrain_triton.bench.check import relative_error

    twin = copy.deepcopy(module).double()
    twin.backend = "torch"
    # SpeechBrain's import lets float32 products run in TF32.
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        with torch.no_grad():
            ours = module(*inputs)
            exact = twin(*(x.double() for x in inputs))
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
    return relative_error(ours, exact)


def _print(findings: dict) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title="packages", title_justify="left")
    for column in ("package", "installed", "supported", ""):
        table.add_column(column)
    table.add_row("python", findings["python"], ">=3.11,<3.13", "")
    for name, package in findings["packages"].items():
        note = {"ok": "ok", "bad": "NOT SUPPORTED"}.get(
            package["verdict"], f"needed for {OPTIONAL.get(name)}"
        )
        table.add_row(
            name,
            package["version"] or "not installed",
            package["supported"],
            note,
        )
    console.print(table)
    console.print(f"GPU: {findings['gpu'] or 'none that torch can use'}")
    for kind, finding in findings["kinds"].items():
        console.print(
            f"{kind}: 'auto' takes the {finding['path']} path here, because "
            f"{finding['reason']}."
        )
        if finding["error"] is not None:
            console.print(
                f"{kind}: kernel tried, relative error {finding['error']:.1e} "
                f"against float64: {finding['verdict']}."
            )
