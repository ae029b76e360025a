"""Numba kernels and their plain twins. Importing the package, or a twin, does not load Numba."""
