"""Numba kernels. Importing the package does not load Numba. Their plain twins, `reference/`, are in `tests/kernels/`."""
