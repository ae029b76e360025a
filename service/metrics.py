"""The route /metrics for Prometheus, filled from the newest snapshot at each request.

Names have the prefix adaptive_rec_, base units, and _total for counters. Labels name tables, tiers, stages and kinds, never rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from adaptive_rec.service.documented import answers
from adaptive_rec.service.hello import Values
from adaptive_rec.service.run_api import status, table_stats
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.tiers import tiers

PREFIX = "adaptive_rec_"
PHASES = (
    "starting",
    "training",
    "paused",
    "evaluating",
    "checkpointing",
    "finishing",
    "finished",
    "stopped",
    "failed",
)

TOTALS = {
    "samples_seen": "Samples read and planned.",
    "samples_trained": "Samples that went through the model; the others were skipped.",
    "samples_popular": "Samples all of whose rows were hot.",
    "malformed_rows": "Input lines that could not be read.",
    "row_updates": "Updates of embedding rows.",
    "row_updates_skipped": "Updates of stale rows that were left out.",
    "hot_row_updates": "Updates of rows in device memory.",
    "migrated_rows": "Rows moved from one tier to the other.",
    "host_to_device_bytes": "Bytes copied to the device.",
    "device_to_host_bytes": "Bytes copied from the device.",
}
"""Counters in a snapshot's totals, by name, with their descriptions."""

GAUGES = {
    "samples_per_second": "Samples a second since the last snapshot.",
    "loss": "Mean training loss since the last snapshot.",
    "hot_lookup_ratio": "Share of lookups that found their row in device memory, since the last snapshot.",
    "popular_sample_ratio": "Share of samples all of whose rows were hot, since the last snapshot.",
    "skipped_sample_ratio": "Share of samples skipped, since the last snapshot.",
    "skipped_row_update_ratio": "Share of row updates skipped, since the last snapshot.",
    "placement_version": "Number of the placement in use; grows with each reclassification.",
    "stale_threshold": "Movement under which a row is stale.",
}
"""Gauges in a snapshot, by name, with their descriptions."""


def router(view: RunView) -> APIRouter:
    routes = APIRouter(tags=["run"])
    registry = CollectorRegistry()
    registry.register(RunCollector(view))
    documented = answers(None, 503)
    documented["responses"][200] = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics"}

    @routes.get("/metrics", **documented, response_class=Response, operation_id="get_metrics")
    async def get_metrics() -> Response:
        """All metrics, in the text format of Prometheus."""
        view.refresh()
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return routes


class RunCollector(Collector):
    """Turns the newest snapshot into metrics."""

    def __init__(self, view: RunView) -> None:
        self.view = view

    def describe(self) -> list[Metric]:
        return []  # without this, the registry would collect once for the names

    def collect(self) -> Iterator[Metric]:
        snapshot: Values = self.view.board().get("snapshot") or {}
        yield from about_run(self.view)
        yield from from_snapshot({**snapshot, "placement_version": tiers(self.view).version} if snapshot else {})
        yield from about_tables(self.view)
        yield from about_knobs(self.view)


def gauge(name: str, text: str, value: Any) -> Iterator[Metric]:
    """Yield a gauge, or nothing if its value is not known."""
    if is_number(value):
        yield GaugeMetricFamily(PREFIX + name, text, value)


def counter(name: str, text: str, value: Any) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value if is_number(value) else 0)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def by_label(kind: type[Any], name: str, text: str, label: str, values: dict[str, Any]) -> Metric:
    """One metric with a value for each value of a label."""
    family: Metric = kind(PREFIX + name, text, labels=[label])
    for labelled, value in values.items():
        if is_number(value):
            family.add_metric([labelled], value)  # type: ignore[attr-defined]
    return family


def about_run(view: RunView) -> Iterator[Metric]:
    now = status(view, "read")
    build = GaugeMetricFamily(PREFIX + "build_info", "Version and policy; always 1.", labels=["version", "policy"])
    build.add_metric([view.hello.version, now["policy"]], 1)
    yield build
    phases = {phase: float(phase == now["phase"]) for phase in PHASES}
    yield by_label(GaugeMetricFamily, "phase", "1 for what the run is doing.", "phase", phases)
    yield counter("steps", "Mini-batches done.", now["step"])
    yield from gauge("planned_steps", "Mini-batches the run will have made at its end.", now["steps_total"])
    yield from gauge("steps_per_second", "Mini-batches a second, lately.", now["steps_per_second"])
    yield from gauge("eta_seconds", "Seconds of training left at this pace.", now["eta_seconds"])
    pulse = view.pulse()
    yield from gauge("last_step_timestamp_seconds", "Last sign of life of training.", pulse[1] if pulse else None)
    yield from gauge("device_staging_bytes", "Device memory beside the hot tier; 0 on a CPU.", now["staging_bytes"])
    yield from gauge("device_peak_bytes", "Most device memory held at one time; 0 on a CPU.", now["peak_bytes"])
    evaluation = now["evaluation"] or {}
    yield from gauge("evaluation_auc", "Area under the ROC curve at the last evaluation.", evaluation.get("auc"))
    yield from gauge("evaluation_logloss", "Log loss at the last evaluation.", evaluation.get("logloss"))
    yield from gauge("evaluation_step", "Step of the last evaluation.", evaluation.get("step"))
    newest, all_of_them = now["checkpoint"] or {}, view.board().get("checkpoints") or {}
    yield from gauge("checkpoint_step", "Step of the newest checkpoint.", newest.get("step"))
    yield from gauge("checkpoint_bytes", "Size of the newest checkpoint.", newest.get("size_bytes"))
    yield from gauge("checkpoint_seconds", "How long it took to write, beside training.", newest.get("seconds"))
    yield counter("failed_checkpoints", "Checkpoints that could not be written.", all_of_them.get("failed"))
    stalled = all_of_them.get("stall_seconds")
    yield counter("checkpoint_stall_seconds", "Seconds that training stood still for checkpoints.", stalled)
    yield by_label(CounterMetricFamily, "events", "Events of the run.", "kind", dict(view.events.counts))


def from_snapshot(snapshot: Values) -> Iterator[Metric]:
    totals = snapshot.get("totals", {})
    for name, text in TOTALS.items():
        yield counter(name, text, totals.get(name, 0))
    yield counter("training_seconds", "Training clock: pauses and evaluations left out.", snapshot.get("seconds", 0.0))
    for name, text in GAUGES.items():
        value = snapshot.get(name)
        if name == "stale_threshold" and snapshot and value is None:
            value = math.inf
        yield from gauge(name, text, value)
    stages = snapshot.get("stage_seconds", {})
    yield by_label(CounterMetricFamily, "stage_seconds", "Time by stage of a step.", "stage", stages)


def about_tables(view: RunView) -> Iterator[Metric]:
    tables = table_stats(view)
    lookups = CounterMetricFamily(PREFIX + "lookups", "Lookups, by where the row was.", labels=["table", "tier"])
    for table in tables:
        lookups.add_metric([table["table"], "hot"], table["lookups_hot"])
        lookups.add_metric([table["table"], "cold"], table["lookups"] - table["lookups_hot"])
    yield lookups

    def per_table(name: str, text: str, value: Callable[[Values], float]) -> Metric:
        return by_label(GaugeMetricFamily, name, text, "table", {table["table"]: value(table) for table in tables})

    about, now = view.hello.tables, tiers(view)
    yield per_table("table_rows", "Rows of a table.", lambda table: about[table["index"]].rows)
    yield per_table("hot_rows", "Rows in device memory, stale ones included.", lambda table: table["hot_rows"])
    yield per_table("stale_rows", "Hot rows that have stopped moving.", lambda table: table["stale_rows"])
    yield per_table(
        "hot_row_bytes",
        "Device memory of a table's hot rows.",
        lambda table: table["hot_rows"] * now.row_bytes[table["index"]],
    )


def about_knobs(view: RunView) -> Iterator[Metric]:
    effective = view.knobs.effective
    yield by_label(GaugeMetricFamily, "knob", "Knobs in effect that are numbers.", "knob", effective)
