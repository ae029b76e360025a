"""What a training loop of the user's own has done, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ByteSize


@dataclass(frozen=True)
class TableStats:
    """One table: how large it is, how much of it is hot, and what share of its lookups was."""

    rows: int
    dim: int
    hot_rows: int
    lookups: int
    hot_lookup_ratio: float


@dataclass(frozen=True)
class RuntimeStats:
    """A moment between two steps. Bytes are of the device tier: weights, optimizer state and records of movement."""

    steps: int
    policy: str
    lookups: int
    hot_lookup_ratio: float
    """Since the beginning."""
    hot_rows: int
    stale_rows: int
    total_rows: int
    device_bytes: int
    budget_bytes: int
    migrated_rows: int
    row_updates: int
    row_updates_skipped: int
    looked_up_ahead_ratio: float
    """Share of the steps whose lookups had all been made ready by `prefetch`."""
    seconds_by_stage: Mapping[str, float]
    tables: Mapping[str, TableStats]

    def as_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        sizes = f"{ByteSize(self.device_bytes).human_readable()} of {ByteSize(self.budget_bytes).human_readable()}"
        lines = [
            f"{self.steps:,} steps under {self.policy}: {self.hot_lookup_ratio:.1%} of {self.lookups:,} lookups hot",
            f"{self.hot_rows:,} of {self.total_rows:,} rows hot, {sizes} used, {self.migrated_rows:,} rows moved so far",
        ]
        largest = sorted(self.tables.items(), key=lambda entry: -entry[1].lookups)[:10]
        width = max((len(name) for name, _ in largest), default=0)
        for name, table in largest:
            share = f"{table.hot_rows:>11,} of {table.rows:>12,} rows hot, {table.hot_lookup_ratio:6.1%} of lookups"
            lines.append(f"  {name:<{width}} {share}")
        return "\n".join(lines)
