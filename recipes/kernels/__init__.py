"""Compiled kernels of the recipes; each has a plain twin in `tests/kernels/reference/`."""
