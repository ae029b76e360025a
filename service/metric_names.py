"""Names of events, counters and gauges that /metrics reports, with their descriptions."""

from __future__ import annotations

EVENT_KINDS = (
    "started",
    "finished",
    "failed",
    "knobs",
    "reclassified",
    "evicted",
    "memory",
    "guard",
    "split",
    "evaluation",
    "overfit",
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

TOTALS = {
    "samples_seen": "Samples read and planned.",
    "samples_trained": "Samples that went through the model; the others were skipped.",
    "samples_popular": "Samples all of whose rows were hot.",
    "malformed_rows": "Input lines that could not be read.",
    "row_updates": "Updates of embedding rows that were made.",
    "row_updates_skipped": "Updates of stale rows that were left out.",
    "hot_row_updates": "Updates made of rows in device memory; a part of row_updates.",
    "migrated_rows": "Rows moved from one tier to the other.",
    "host_to_device_bytes": "Bytes copied to the device.",
    "device_to_host_bytes": "Bytes copied from the device.",
}
"""Counters in a snapshot's totals, by name, with their descriptions."""

DISK_TOTALS = {
    "disk_rows_ahead": "Rows on the disk requested before their step.",
    "disk_rows_again": "Rows on the disk read in their step, as they had changed since or had become cold.",
    "disk_rows_read": "Rows read from files.",
    "disk_rows_found": "Rows found in segments that were still in memory.",
    "disk_rows_drawn": "Rows never written, whose first values were drawn.",
    "disk_rows_written": "Rows appended to segments.",
    "disk_rows_moved": "Rows that compaction appended once more.",
}
"""The same of a run whose cold rows lie on a disk."""

DISK_GAUGES = {"size_bytes": "Bytes of all files of rows.", "segments": "Files of rows."}

GAUGES = {
    "samples_per_second": "Samples a second since the last snapshot.",
    "loss": "Mean training loss since the last snapshot.",
    "hot_lookup_ratio": "Share of lookups that found their row in device memory, since the last snapshot.",
    "popular_sample_ratio": "Share of samples all of whose rows were hot, since the last snapshot.",
    "skipped_sample_ratio": "Share of samples skipped, since the last snapshot.",
    "skipped_row_update_ratio": "Share of row updates skipped, since the last snapshot.",
    "placement_version": "Number of the placement in use; grows with each reclassification.",
    "dense_lr": "Learning rate of the dense part at the next step, with schedule and knobs.",
    "embedding_lr": "Learning rate of embedding rows at the next step, with schedule and knobs.",
    "stale_threshold": "Movement under which a row is stale; no series where there is no such number.",
}
"""Gauges in a snapshot, by name, with their descriptions."""

RANK_SECONDS = {
    "rank_work_seconds": "Training time in which a rank did not wait for others.",
    "rank_wait_seconds": "Training time in which a rank waited for others.",
}
"""Counters of each rank of several processes."""
