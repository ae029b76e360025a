"""Names of events that /metrics counts. Those of figures are in `config/figures.py`."""

from __future__ import annotations

EVENT_KINDS = (
    "started",
    "finished",
    "suspended",
    "failed",
    "knobs",
    "reclassified",
    "evicted",
    "memory",
    "guard",
    "split",
    "evaluation",
    "overfit",
    "stopped_early",
    "scored",
    "saving",
    "checkpoint",
    "checkpoint_failed",
    "arranged",
    "nan",
    "settings",
    "going_back",
    "rolled_back",
    "left_out",
    "watchdog",
    "paused",
    "resumed",
    "stopping",
    "branched",
    "warning",
    "sidecar",
)
"""Kinds of events. Each is counted from 0, as Prometheus finds no increase where a series begins at 1."""

WATCHDOG_ACTIONS = ("warn", "pause", "checkpoint", "rollback", "stop", "fail")
"""What the watchdog does. Each is counted from 0, for the same reason."""
