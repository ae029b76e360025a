"""Plain twins of the kernels: slow, obvious, and compared with them in tests."""
