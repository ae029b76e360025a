"""Checkpoints: everything that a run needs to resume exactly, and tables that any run can take over.

``checkpoints/step-N/`` holds rows and their optimizer state in shards (`rows.py`), a safetensors file for the dense part and one
for all other arrays, ``state.json`` and ``MANIFEST.json`` (`generation.py`). It holds all rows, or those that changed since an
older checkpoint that it builds on (`history.py`). Under the policy and the budget that it was saved with, a run resumes bit by
bit; under others it takes over tables, dense part and position in the stream.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive_rec.checkpoint.files import DISK as DISK
    from adaptive_rec.checkpoint.loading import find as find
    from adaptive_rec.checkpoint.loading import folders_of_rows as folders_of_rows
    from adaptive_rec.checkpoint.loading import held as held
    from adaptive_rec.checkpoint.loading import load as load
    from adaptive_rec.checkpoint.loading import newest as newest
    from adaptive_rec.checkpoint.loading import remove_unused_rows as remove_unused_rows
    from adaptive_rec.checkpoint.loading import rows_folders as rows_folders
    from adaptive_rec.checkpoint.loading import saved_followed_file as saved_followed_file
    from adaptive_rec.checkpoint.loading import saved_knobs as saved_knobs
    from adaptive_rec.checkpoint.loading import saved_layout as saved_layout
    from adaptive_rec.checkpoint.writing import save as save

_PUBLIC = {
    "DISK": "files",
    "find": "loading",
    "folders_of_rows": "loading",
    "held": "loading",
    "load": "loading",
    "newest": "loading",
    "remove_unused_rows": "loading",
    "rows_folders": "loading",
    "save": "writing",
    "saved_followed_file": "loading",
    "saved_knobs": "loading",
    "saved_layout": "loading",
}
"""Names and where they are: found when they are asked for, as listing checkpoints needs no torch, which is slow to load."""

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
