"""Checkpoints: everything that a run needs to resume exactly, and tables that any run can take over.

``checkpoints/step-N/`` holds rows and their optimizer state in shards (`rows.py`), a safetensors file for the dense part and one
for all other arrays, ``state.json`` and ``MANIFEST.json`` (`generation.py`). It holds all rows, or those that changed since an
older checkpoint that it builds on (`history.py`). Under the policy and the budget that it was saved with, a run resumes bit by
bit; under others it takes over tables, dense part and position in the stream.
"""

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.loading import find, held, load, newest, saved_knobs
from adaptive_rec.checkpoint.writing import save

__all__ = ["DISK", "find", "held", "load", "newest", "save", "saved_knobs"]
