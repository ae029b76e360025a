"""What reports say of rows on a disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DiskReport:
    """The rows on a disk. Rows and seconds are means of a step since the report before."""

    size_bytes: int
    """Bytes of all files of rows."""
    segments: int
    """These files."""
    wait_seconds_per_step: float
    """Time in which training waited for rows of a batch."""
    rows_ahead_per_step: float
    """Rows that were requested before their step."""
    rows_again_per_step: float
    """Rows that were read in their step, as they had changed since, or had become cold."""
    rows_read_per_step: float
    """Rows read from files, for whatever purpose; so are the next two."""
    rows_found_per_step: float
    """Rows found in segments that are still in memory."""
    rows_drawn_per_step: float
    """Rows that were never written: their first values were drawn."""
    rows_written_per_step: float
    rows_moved_per_step: float
    """Rows written once more, so that their segment could be removed."""
