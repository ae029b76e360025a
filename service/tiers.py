"""How many rows of each table are hot and stale now, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adaptive_rec.service.run_view import RunView


@dataclass(frozen=True)
class Tiers:
    """Lists have one entry per table; stale rows are hot rows too."""

    version: int
    step: int
    hot_rows: list[int]
    stale_rows: list[int]
    row_bytes: list[int]
    """Device memory of one hot row under the policy in force."""
    device_bytes: int
    """Device memory taken: also by slots that hold no row just now."""
    budget_bytes: int
    """What the policy in force asks for."""
    staging_bytes: int
    """Device memory beside the tier, for what is on its way; 0 on a CPU and where nothing tells."""
    peak_bytes: int
    """The most device memory the process has held at one time; 0 likewise."""


def tiers(view: RunView) -> Tiers:
    """As the board has it, which is written whenever rows move; without one, as of the newest snapshot."""
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
    """A number for each table; 0 where there is none yet."""
    tables = len(view.hello.tables)
    return [*(values or ())[:tables], *[0] * (tables - len(values or ()))]
