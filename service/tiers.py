"""Hot and stale rows of each table now, and their device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adaptive_rec.service.run_view import RunView


@dataclass(frozen=True)
class Tiers:
    """Hot and stale rows and their device memory. Lists have one entry per table; stale rows are hot rows too."""

    version: int
    step: int
    hot_rows: list[int]
    stale_rows: list[int]
    row_bytes: list[int]
    """Device memory of one hot row under the policy in effect."""
    device_bytes: int
    """Device memory taken, including free slots."""
    budget_bytes: int
    """Budget that the policy in effect requests."""
    staging_bytes: int
    """Device memory for rows and gradients on their way, without the hot tier; 0 on a CPU and where it is not known."""
    peak_bytes: int
    """The most device memory the process has held at one time; 0 on a CPU and where it is not known."""


def tiers(view: RunView) -> Tiers:
    """Return the tiers from the board, which is written whenever rows move; without it, from the newest snapshot."""
    board = view.board()
    snapshot: dict[str, Any] = board.get("snapshot") or {}
    placed: dict[str, Any] = board.get("placement") or {}
    counts = placed if "hot_rows" in placed else snapshot.get("tables") or {}
    hot_rows, stale_rows = per_table(view, counts.get("hot_rows")), per_table(view, counts.get("stale_rows"))
    row_bytes = per_table(view, placed.get("row_bytes") or [table.row_bytes for table in view.hello.tables])
    taken = sum(rows * size for rows, size in zip(hot_rows, row_bytes, strict=True))
    return Tiers(
        version=placed.get("version", snapshot.get("placement_version", 0)),
        step=placed.get("step", snapshot.get("step", 0)),
        hot_rows=hot_rows,
        stale_rows=stale_rows,
        row_bytes=row_bytes,
        device_bytes=placed.get("device_bytes", taken),
        budget_bytes=placed.get("budget_bytes", view.knobs.effective.get("hot_budget_bytes", 0)),
        staging_bytes=placed.get("staging_bytes", 0),
        peak_bytes=placed.get("peak_bytes", 0),
    )


def per_table(view: RunView, values: Sequence[int] | None) -> list[int]:
    """Return a number for each table, 0 for those without a value."""
    tables = len(view.hello.tables)
    return [*(values or ())[:tables], *[0] * (tables - len(values or ()))]
