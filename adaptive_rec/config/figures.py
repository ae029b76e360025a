"""The figures that a run reports, each declared once.

Snapshots, `/metrics`, trackers, the API's models, plots of reports and the dashboard's labels are derived from these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Part = Literal["snapshot", "totals", "disk", "keys", "skipping", "rank"]
PER_STEP = "_per_step"


@dataclass(frozen=True)
class Figure:
    """One figure of a run. Its unit ends its name; where a text is empty, the figure is not shown in that place."""

    part: Part
    """Where a snapshot has it: on its own, among the totals, or in the part on a disk, raw keys, skipping or ranks."""
    name: str
    kind: Literal["counter", "gauge", "mean"] = "gauge"
    """`counter`: counted since the run began. On a disk, `NAME_per_step` is the mean of a counter since the snapshot before.
    `mean`: a gauge, the mean of the steps since the snapshot before."""
    help: str = ""
    """Text in `/metrics`."""
    tag: str = ""
    """Name for trackers."""
    about: str = ""
    """Text in the API's description."""
    is_in_api: bool = False
    label: str = ""
    """Name on the dashboard."""
    title: str = ""
    """Text on the dashboard under the pointer."""
    line: tuple[str, str] | None = None
    """Text and colour of its line in the plots of a report."""
    is_whole: bool = False
    is_new: bool = False
    """Whether files of earlier versions do not have it."""

    @property
    def field(self) -> str:
        """The name in a snapshot's part: on a disk, counters are means of a step there."""
        return self.name + PER_STEP if self.part == "disk" and self.kind == "counter" else self.name

    @property
    def total(self) -> str:
        """The name among a snapshot's totals, and in `/metrics`."""
        return f"{self.part}_{self.name}" if self.part in ("disk", "rank") else self.name


FIGURES = (
    Figure("snapshot", "samples_per_second", "mean", "Samples a second since the last snapshot.", "train/samples_per_second"),
    Figure("snapshot", "loss", "mean", "Mean training loss since the last snapshot.", "train/loss"),
    Figure(
        "snapshot", "hot_lookup_ratio", "mean",
        "Share of lookups that found their row in device memory, since the last snapshot.", "hot/lookup_ratio",
    ),
    Figure(
        "snapshot", "popular_sample_ratio", "mean", "Share of samples all of whose rows were hot, since the last snapshot.",
        "hot/popular_sample_ratio",
    ),
    Figure(
        "snapshot", "skipped_sample_ratio", "mean", "Share of samples skipped, since the last snapshot.", "skipped/sample_ratio"
    ),
    Figure(
        "snapshot", "skipped_row_update_ratio", "mean", "Share of row updates skipped, since the last snapshot.",
        "skipped/row_update_ratio",
    ),
    Figure(
        "snapshot", "placement_version", help="Number of the placement in use; grows with each reclassification.", is_whole=True
    ),
    Figure(
        "snapshot", "dense_lr", help="Learning rate of the dense part at the next step, with schedule and knobs.",
        tag="train/dense_lr",
    ),
    Figure(
        "snapshot", "embedding_lr", help="Learning rate of embedding rows at the next step, with schedule and knobs.",
        tag="train/embedding_lr",
    ),
    Figure(
        "snapshot", "stale_threshold", help="Movement under which a row is stale; no series where there is no such number.",
        tag="rows/stale_threshold",
    ),
    Figure(
        "snapshot", "stale_agreement",
        help="Share of the rows stale at one of the last two judgements that was stale at both; no series before there were two.",
        tag="rows/stale_agreement",
    ),
    Figure("snapshot", "hot_rows", tag="rows/hot", is_whole=True),
    Figure("snapshot", "stale_rows", tag="rows/stale", is_whole=True),
    Figure("totals", "samples_seen", "counter", "Samples read and planned."),
    Figure(
        "totals", "samples_trained", "counter",
        "Samples that went through the model, or count nothing (weight 0); the others were skipped.", "totals/samples_trained",
    ),
    Figure("totals", "samples_popular", "counter", "Samples all of whose rows were hot."),
    Figure("totals", "malformed_rows", "counter", "Input lines that could not be read."),
    Figure("totals", "row_updates", "counter", "Updates of embedding rows that were made."),
    Figure("totals", "row_updates_skipped", "counter", "Updates of stale rows that were left out."),
    Figure("totals", "hot_row_updates", "counter", "Updates made of rows in device memory; a part of row_updates."),
    Figure("totals", "migrated_rows", "counter", "Rows moved from one tier to the other.", "totals/migrated_rows"),
    Figure("totals", "host_to_device_bytes", "counter", "Bytes copied to the device.", "totals/host_to_device_bytes"),
    Figure("totals", "device_to_host_bytes", "counter", "Bytes copied from the device.", "totals/device_to_host_bytes"),
    Figure(
        "disk", "size_bytes", help="Bytes of all files of rows.", about="Bytes of all files of rows", is_in_api=True,
        is_whole=True,
    ),
    Figure("disk", "segments", "gauge", "Files of rows.", about="Number of these files", is_in_api=True, is_whole=True),
    Figure(
        "disk", "wait_seconds_per_step", "mean", about="Time in which training waited for rows of a batch", is_in_api=True,
        label="Waiting", title="Time of a step in which training waited for rows of its batch",
    ),
    Figure(
        "disk", "rows_ahead", "counter", "Rows on the disk requested before their step.",
        about="Rows requested before their step", is_in_api=True,
        label="Rows ahead", title="Rows on the disk that were requested before their step",
    ),
    Figure(
        "disk", "rows_again", "counter", "Rows on the disk read in their step, as they had changed since or had become cold.",
        "totals/disk_rows_again", "Rows read in their step, as they had changed since, or had become cold", is_in_api=True,
        label="Read again", title="Rows read in their step, as they had changed since or had become cold",
        line=("read again in their step", "stale-line"),
    ),
    Figure(
        "disk", "rows_read", "counter", "Rows read from files.", "totals/disk_rows_read", "Rows read from files",
        is_in_api=True, label="From files", title="Rows read from files", line=("read from files", "line-1"),
    ),
    Figure(
        "disk", "rows_found", "counter", "Rows found in segments that were still in memory.",
        about="Rows found in segments that are still in memory", is_in_api=True,
        label="From memory", title="Rows found in segments that are still in memory", line=("found in new segments", "cold"),
    ),
    Figure(
        "disk", "rows_drawn", "counter", "Rows never written, whose first values were drawn.",
        about="Rows never written, whose first values were drawn", is_in_api=True,
        label="First values", title="Rows never written, whose first values were drawn",
    ),
    Figure(
        "disk", "rows_written", "counter", "Rows appended to segments.", "totals/disk_rows_written", is_in_api=True,
        label="Written", title="Rows appended to segments", line=("written", "line-2"),
    ),
    Figure(
        "disk", "rows_moved", "counter", "Rows that compaction appended once more.",
        about="Rows that compaction wrote once more", is_in_api=True,
        label="Compaction", title="Rows that compaction appended once more", line=("moved", "hot"),
    ),
    Figure(
        "disk", "written_bytes", "counter", "Bytes of full files of rows that were written.", "totals/disk_written_bytes",
        "Bytes of full files of rows that were written: what a drive's endurance is spent on", is_in_api=True,
        label="Bytes written", title="Bytes of full files of rows that were written", is_new=True,
    ),
    Figure("keys", "keys", about="Ids that have a row of their own", is_in_api=True, is_whole=True),
    Figure("keys", "admitted_per_step", "mean", about="Ids that got one", is_in_api=True),
    Figure(
        "keys", "shared_lookup_ratio", "mean", about="Part of the lookups whose id has no row of its own", is_in_api=True
    ),
    Figure("keys", "evicted", about="Ids that have lost theirs, in all steps", is_in_api=True, is_whole=True),
    Figure(
        "keys", "refused_per_step", "mean", about="Ids that were due for a row in tables that have none left", is_in_api=True
    ),
    Figure(
        "skipping", "cost", help="Logloss that a stretch of skipping costs: while it lasts or later, whichever is more.",
        about="Logloss that a stretch of skipping costs, by the last trial: while it lasts or later, whichever is more",
        is_in_api=True, is_new=True,
    ),
    Figure(
        "skipping", "least_cost", help="Lower bound of that cost, 95 %.", about="Its lower bound, one-sided, 95 %",
        is_in_api=True, is_new=True,
    ),
    Figure(
        "skipping", "most_cost", help="Upper bound of that cost, 95 %.", about="Its upper bound, one-sided, 95 %",
        is_in_api=True, is_new=True,
    ),
    Figure(
        "skipping", "cost_at_random", help="Cost of skipping as much at random, by the last trial that measured it.",
        about="Cost of skipping as much at random, by the last trial that measured it", is_in_api=True, is_new=True,
    ),
    Figure(
        "skipping", "ratio", help="Share that a stretch skips: of samples, or of row updates under freeze.",
        about="Share that a stretch skips: of samples, or of row updates under freeze", is_in_api=True, is_new=True,
    ),
    Figure(
        "skipping", "steps", help="Steps of a stretch of skipping.", about="Steps of a stretch", is_in_api=True, is_new=True,
    ),
    Figure(
        "skipping", "left", help="What is left of knobs.guard_max_logloss_increase.",
        about="What is left of knobs.guard_max_logloss_increase", is_in_api=True, is_new=True,
    ),
    Figure("rank", "work_seconds", "counter", "Training time in which a rank did not wait for others."),
    Figure("rank", "wait_seconds", "counter", "Training time in which a rank waited for others."),
)  # fmt: skip


def of_part(part: Part) -> Iterator[Figure]:
    """Yield the figures of one part of a snapshot, in their order."""
    return (figure for figure in FIGURES if figure.part == part)


def metrics_of(part: Part, counters: bool) -> dict[str, str]:
    """Return the counters of a part that `/metrics` shows, or its other figures there: their help by their names there."""
    shown = (figure for figure in of_part(part) if figure.help and (figure.kind == "counter") == counters)
    return {figure.total if counters else figure.name: figure.help for figure in shown}


def tags_of(*parts: Part) -> dict[str, str]:
    """Return the names that trackers have of the figures of some parts, by their names among fields or totals of a snapshot."""
    return {figure.total: figure.tag for part in parts for figure in of_part(part) if figure.tag}


def labels(part: Part) -> list[dict[str, str]]:
    """Return field, label and title of the figures of a part that the dashboard shows."""
    return [{"field": each.field, "label": each.label, "title": each.title} for each in of_part(part) if each.label]
