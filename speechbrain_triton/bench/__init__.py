"""Timing tables of the kernels on the user's own card."""
