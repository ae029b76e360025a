"""The old address of `adaptive_rec.recipes`, which works until 0.4 (docs/versions.md)."""

import sys
import warnings
from importlib import import_module

warnings.warn("adaptive_rec.data.logs is adaptive_rec.recipes now; the old name ends with 0.4", DeprecationWarning, stacklevel=2)
for _name in ("avazu", "columns", "criteo", "globo", "globo_sequence", "histories", "movietweetings", "taobao"):
    sys.modules[f"{__name__}.{_name}"] = import_module(f"adaptive_rec.recipes.{_name}")
