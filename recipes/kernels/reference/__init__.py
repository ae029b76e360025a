"""Plain twins of the kernels, which tests compare with them."""
