"""Parts of a run's state as a checkpoint has them."""

from __future__ import annotations

from adaptive_rec.config.knobs import Knobs, within_bounds
from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.saved import Saved

BOUNDARY_TASKS = ("windows", "report", "evaluation", "best")
"""What each step boundary does after commands and checkpoints, in this order, where it is due."""


def read_knobs(found: Saved) -> Knobs:
    """Read the knobs of a checkpoint. Raises CheckpointError."""
    try:
        return Knobs().changed(within_bounds(found.everything()))
    except ConfigError as error:
        raise CheckpointError(f"knobs of a checkpoint must be valid: {error}") from None


def saved_owed(found: Saved) -> tuple[str, ...]:
    """Read the tasks that a boundary still owed. Older versions saved only whether its windows had still to end."""
    if not found.has("owed"):
        return BOUNDARY_TASKS if found.flag("window_due") else ()
    owed = found.part("owed")
    tasks = BOUNDARY_TASKS if owed.has("best") else BOUNDARY_TASKS[:-1]  # older versions have no such task
    return tuple(task for task in tasks if owed.flag(task))
