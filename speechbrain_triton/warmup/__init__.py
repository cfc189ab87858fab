"""Compiling a training's kernels before it starts."""
