"""Experiment trackers: what one must be, and how reports of a run are handed to it."""

from adaptive_rec.tracker.protocol import (
    BUILT_IN,
    KEY,
    METHODS,
    Tracker,
    load_tracker,
    make_tracker,
)

__all__ = [
    "BUILT_IN",
    "KEY",
    "METHODS",
    "Tracker",
    "load_tracker",
    "make_tracker",
]
