"""Experiment trackers: their protocol, and the threads that send them a run's reports."""

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
