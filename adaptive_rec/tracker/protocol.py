"""Protocol of trackers, which get a run's figures besides its own files, and how they are found by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from adaptive_rec.config.trust import find_plugin
from adaptive_rec.errors import ConfigError, UsageError, first_line

KEY = "run.track"
BUILT_IN = {"tensorboard": "adaptive_rec.tracker.tensorboard:TensorBoard"}
METHODS = ("log", "event", "close")


class Tracker(Protocol):
    """Receiver of a run's figures and events.

    It is made with the run's folder, where it may keep files, and with the step that training starts at: in a resumed run,
    figures of later steps are void. All methods are called from one thread, which is not the training thread.
    """

    def __init__(self, folder: Path, step: int) -> None: ...

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the figures of a step, by names such as ``train/loss``; all values are finite."""

    def event(self, step: int, kind: str, text: str) -> None:
        """Log an event, such as a change of knobs, as one line of text."""

    def close(self) -> None:
        """End; no other method is called after it."""


def load_tracker(name: str) -> type[Tracker]:
    """Find a tracker's class by built-in name, by entry point (group ``adaptive_rec.trackers``), or as ``package.module:Class``.
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
    """Make a tracker by its name. Raises UsageError where it cannot be made."""
    kind = load_tracker(name)
    try:
        return kind(folder, step)
    except Exception as error:  # whatever a user's class raises
        raise UsageError(f"{KEY} {name} cannot be made: {type(error).__name__}: {first_line(error)}") from error
