"""Options of a run that are not in its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptive_rec.batch import Position
from adaptive_rec.live.evaluations import PastEvaluations
from adaptive_rec.live.mailbox import Command, Mailbox
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.saved import SavedLayout


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that are not in its configuration."""

    checkpoints: Path | None = None
    """Folder for checkpoints; without one none is written."""
    journal: Path | None = None
    """The file to which the run's events are written, to be on the disk before a checkpoint is."""
    rows: Path | None = None
    """Folder for rows on the disk, where the configuration names none."""
    own_rows: Collection[Path] = ()
    """Folders that may have rows on the disk already, as they are of this run."""
    trains: bool = True
    """False for a runtime that only scores: no raw id that leaves is kept, and a CPU may have what only a device trains with."""
    saved: SavedLayout | None = None
    """The layout of the checkpoint that the run goes on from, which it keeps."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Knobs that a resumed run is to have instead of those it was saved with."""
    replayed: Mapping[int, list[Command]] | None = None
    """Commands by step, where another run is replayed."""
    left_out: Mapping[Position, Position] = field(default_factory=dict)
    """The ends of the parts of the stream that the replayed run left out, by their beginnings."""
    evaluated: PastEvaluations | None = None
    """Where another run is replayed: when that was evaluated."""
    mailbox: Mailbox | None = None
    """The mailbox of the runtime that this one takes over from."""
    rollback: Rollback | None = None
    """The rollback by which this runtime goes on."""
    notices: Sequence[str] = ()
    """Warnings to give when the run starts."""
    times: StageTimes | None = None
    """The seconds of stages, given where a profiler reads them too."""
