"""Names of NumPy and SciPy that RecBole 1.2 still uses. It runs with today's versions once they are back."""

from __future__ import annotations

import numpy as np


def restore_old_names() -> None:
    import scipy.sparse

    for name, now in {
        "float_": np.float64,
        "complex_": np.complex128,
        "unicode_": np.str_,
        "float": np.float64,
        "int": np.int_,
        "object": np.object_,
    }.items():
        if name not in vars(np):
            setattr(np, name, now)
    if not hasattr(scipy.sparse.dok_matrix, "_update"):
        scipy.sparse.dok_matrix._update = lambda matrix, cells: matrix._dict.update(cells)
