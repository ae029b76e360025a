"""Trackers: where a run's figures go besides its own files. What one has to be, and how it is found by its name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from adaptive_rec.config.plugins import find_plugin
from adaptive_rec.errors import ConfigError, UsageError, first_line

KEY = "run.track"
BUILT_IN = {"tensorboard": "adaptive_rec.tracker.tensorboard:TensorBoard"}
METHODS = ("log", "event", "close")


class Tracker(Protocol):
    """Made with the run's folder, in which it may keep files, and the step that training begins at: when a run goes on from a
    checkpoint, figures of later steps are void. All methods are called from one thread, which is not the one that trains."""

    def __init__(self, folder: Path, step: int) -> None: ...

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the figures of a step, by names such as ``train/loss``; all of them are finite."""

    def event(self, step: int, kind: str, text: str) -> None:
        """Take something that happened, such as a change of knobs, in one line."""

    def close(self) -> None:
        """Nothing follows."""


def load_tracker(name: str) -> type[Tracker]:
    """Find a tracker's class by built-in name, by entry point (group ``adaptive_rec.tracker``), or as ``package.module:Class``.
    Raises ConfigError."""
    found = find_plugin(KEY, name, BUILT_IN, "adaptive_rec.trackers")
    missing = [each for each in METHODS if not callable(getattr(found, each, None))]
    if not isinstance(found, type) or missing:
        lacks = f", it lacks {', '.join(missing)}" if missing else ""
        raise ConfigError(
            f"{KEY} must name a class with the methods {', '.join(METHODS)} (as a subclass of adaptive_rec.tracker.Tracker has), "
            f"got {name!r}{lacks}"
        )
    return found


def make_tracker(name: str, folder: Path, step: int) -> Tracker:
    """A tracker by its name. Raises UsageError where it cannot be made."""
    kind = load_tracker(name)
    try:
        return kind(folder, step)
    except Exception as error:  # whatever a user's class raises
        raise UsageError(f"{KEY} {name} cannot be made: {type(error).__name__}: {first_line(error)}") from error
