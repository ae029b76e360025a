"""The old address of `adaptive_rec.recipes`, which works for one more release."""

import sys
import warnings
from importlib import import_module

warnings.warn("adaptive_rec.data.logs has become adaptive_rec.recipes", DeprecationWarning, stacklevel=2)
for _name in ("avazu", "columns", "criteo", "globo", "globo_sequence", "histories", "movietweetings", "taobao"):
    sys.modules[f"{__name__}.{_name}"] = import_module(f"adaptive_rec.recipes.{_name}")
