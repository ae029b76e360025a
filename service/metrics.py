"""The route /metrics for Prometheus, from the newest snapshot.

Names have the prefix adaptive_rec_, base units, and _total for counters. Every series has the label `run`; other labels name
tables, tiers, stages and kinds, never rows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from adaptive_rec.config.figures import metrics_of
from adaptive_rec.live.life import STATES
from adaptive_rec.service.documented import answers
from adaptive_rec.service.hello import Values
from adaptive_rec.service.metric_families import EVENT_KINDS, WATCHDOG_ACTIONS, ByLabels, Families, by_one
from adaptive_rec.service.run_api import status, table_stats
from adaptive_rec.service.run_view import RunView
from adaptive_rec.service.tiers import tiers

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


def router(view: RunView) -> APIRouter:
    routes = APIRouter(tags=["run"])
    make = Families(view.hello.run_name)
    documented = answers(None, 503)
    documented["responses"][200] = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics"}

    @routes.get("/metrics", **documented, response_class=Response, operation_id="get_metrics")
    async def get_metrics(
        x_prometheus_scrape_timeout_seconds: Annotated[str | None, Header(include_in_schema=False)] = None,
    ) -> Response:
        """All metrics, in the text format of Prometheus."""
        view.refresh()
        phase = view.board().get("phase", "starting")
        reported = view.answers.get("metrics", lambda: "".join(reported_metrics(make, view)))
        text = "".join((*about_run(make, view), *about_process(make, view), reported))
        if x_prometheus_scrape_timeout_seconds is not None and view.link is not None:
            view.link.scraped(phase)  # scrapers send this header; the trainer ends after the scrape that shows its end
        return Response(text, headers={"Content-Type": TEXT_FORMAT})

    return routes


def reported_metrics(make: Families, view: RunView) -> Iterator[str]:
    """Yield the metrics that stay as they are until the next report."""
    snapshot: Values = view.board().get("snapshot") or {}
    yield from about_checkpoints(make, view)
    yield make.counters("events", "Events of the run; every kind counts from 0.", ["kind"], by_one(event_counts(view)))
    watchdog = {action: view.events.watchdog_counts.get(action, 0) for action in WATCHDOG_ACTIONS}
    yield make.counters("watchdog", "Broken rules of the watchdog, by what was done.", ["action"], by_one(watchdog))
    yield from from_snapshot(make, {**snapshot, "placement_version": tiers(view).version} if snapshot else {})
    yield from about_tables(make, view)
    yield from about_disk(make, snapshot)
    yield from about_ranks(make, snapshot)
    yield from about_skipping(make, snapshot)
    yield make.gauges("knob", "Knobs in effect that are numbers.", ["knob"], by_one(view.knobs.effective))


def about_run(make: Families, view: RunView) -> Iterator[str]:
    now = status(view, "read")
    about: ByLabels = {(view.hello.version, now["policy"]): 1}
    yield make.gauges("build_info", "Version and policy; always 1.", ["version", "policy"], about)
    phases = {phase: float(phase == now["phase"]) for phase in STATES}
    yield make.gauges("phase", "1 for what the run is doing.", ["phase"], by_one(phases))
    yield from make.gauge("start_timestamp_seconds", "When the run's process started to train.", view.hello.started)
    yield make.counter("steps", "Mini-batches done.", now["step"])
    yield from make.gauge("planned_steps", "Mini-batches the run will have made at its end.", now["steps_total"])
    yield from make.gauge("steps_per_second", "Mini-batches a second, lately.", now["steps_per_second"])
    yield from make.gauge("eta_seconds", "Seconds of training left at this pace.", now["eta_seconds"])
    free = free_bytes(Path(view.hello.run))
    yield from make.gauge("directory_free_bytes", "Free on the disk under the run's directory.", free)
    pulse = view.pulse()
    last = "Last sign of life of training: a step, a change of phase, or being paused."
    yield from make.gauge("last_step_timestamp_seconds", last, time_of(pulse[1]) if pulse else None)
    yield from make.gauge(
        "device_staging_bytes", "Device memory beside the hot tier; 0 on a CPU.", now["staging_bytes"]
    )
    yield from make.gauge("device_peak_bytes", "Most device memory held at one time; 0 on a CPU.", now["peak_bytes"])
    evaluation = now["evaluation"] or {}
    yield from make.gauge("evaluation_auc", "Area under the ROC curve at the last evaluation.", evaluation.get("auc"))
    yield from make.gauge("evaluation_logloss", "Log loss at the last evaluation.", evaluation.get("logloss"))
    yield from make.gauge("evaluation_step", "Step of the last evaluation.", evaluation.get("step"))
    yield from about_ranking(make, evaluation)
    best = now["best_evaluation"] or {}
    yield from make.gauge("best_evaluation_auc", "Area under the ROC curve of the best evaluation so far.", best.get("auc"))
    yield from make.gauge("best_evaluation_step", "Step of the best evaluation so far.", best.get("step"))
    parted = "1 where training and evaluation loss have parted since the least logloss."
    yield from make.gauge("overfit", parted, float(now["overfit"] is not None))


def about_ranking(make: Families, evaluation: Values) -> Iterator[str]:
    """Yield nothing where an evaluation has no metrics that rank."""
    if (ranking := evaluation.get("ranking")) is None:
        return
    ranked = "Metrics of eval.metrics at the last evaluation, which rank the samples of each group."
    yield make.gauges("evaluation_ranking", ranked, ["metric"], by_one(ranking["metrics"]))
    kinds = {kind: ranking[f"groups_{kind}"] for kind in ("with_positive", "with_both")}
    groups = "Groups of the last evaluation: all, with a positive sample, with samples of both classes."
    yield make.gauges("evaluation_groups", groups, ["kind"], by_one({"all": ranking["groups"], **kinds}))


def about_process(make: Families, view: RunView) -> Iterator[str]:
    """Yield nothing of a run that has ended, or where the system does not tell."""
    if view.meter is None or (now := view.meter.read()) is None:
        return
    limits = view.answers.get("limits", view.meter.limits)
    yield make.counter("process_cpu_seconds", "Processor time of the trainer's process.", now.cpu_seconds)
    yield from make.gauge("process_resident_memory_bytes", "Memory of the trainer's process.", now.resident_bytes)
    yield from make.gauge("process_threads", "Threads of the trainer's process.", now.threads)
    allowed = "The most memory that it may use: the machine's, or less by its control groups."
    yield from make.gauge("process_memory_limit_bytes", allowed, limits.memory_bytes)
    yield from make.gauge("process_cores", "Cores' time that it may use: by affinity and control groups.", limits.cores)


def time_of(monotonic_seconds: float) -> float:
    """Return a moment of the monotonic clock in seconds since the epoch, as the wall clock counts now. Scrapers subtract it from
    their own time, so a wall clock that was set meanwhile must not count."""
    return round(time.time() - time.monotonic() + monotonic_seconds, 3)


def free_bytes(run: Path) -> int | None:
    """Return what is free on the disk under a run's directory; None where the directory is gone."""
    try:
        return shutil.disk_usage(run).free
    except OSError:
        return None


def about_checkpoints(make: Families, view: RunView) -> Iterator[str]:
    newest, figures = view.board().get("checkpoint") or {}, view.board().get("checkpoints") or {}
    yield from make.gauge("checkpoint_step", "Step of the newest checkpoint.", newest.get("step"))
    yield from make.gauge("checkpoint_bytes", "Size of the newest checkpoint.", newest.get("size_bytes"))
    yield from make.gauge("checkpoint_seconds", "How long it took to write, beside training.", newest.get("seconds"))
    written = figures.get("newest_timestamp_seconds")
    yield from make.gauge("checkpoint_timestamp_seconds", "When the newest checkpoint was written.", written)
    for unit in ("seconds", "steps"):
        text = f"{unit.capitalize()} from one checkpoint to the next, as configured; 0: none by {unit}."
        yield from make.gauge(f"checkpoint_interval_{unit}", text, figures.get(f"every_{unit}"))
    yield make.counter("failed_checkpoints", "Checkpoints that could not be written.", figures.get("failed"))
    stalled = figures.get("stall_seconds")
    yield make.counter("checkpoint_stall_seconds", "Seconds that training stood still for checkpoints.", stalled)


def event_counts(view: RunView) -> dict[str, int]:
    return {**dict.fromkeys(EVENT_KINDS, 0), **view.events.counts}


def from_snapshot(make: Families, snapshot: Values) -> Iterator[str]:
    totals = snapshot.get("totals", {})
    for name, text in metrics_of("totals", counters=True).items():
        yield make.counter(name, text, totals.get(name, 0))
    clock = "Training clock: pauses and evaluations left out."
    yield make.counter("training_seconds", clock, snapshot.get("seconds", 0.0))
    for name, text in metrics_of("snapshot", counters=False).items():
        yield from make.gauge(name, text, snapshot.get(name))
    stages = by_one(snapshot.get("stage_seconds", {}))
    yield make.counters("stage_seconds", "Time by stage of a step.", ["stage"], stages)


def about_tables(make: Families, view: RunView) -> Iterator[str]:
    tables = table_stats(view)
    lookups: ByLabels = {}
    for table in tables:
        lookups[table["table"], "hot"] = table["lookups_hot"]
        lookups[table["table"], "cold"] = table["lookups"] - table["lookups_hot"]
    yield make.counters("lookups", "Lookups, by where the row was.", ["table", "tier"], lookups)

    def per_table(name: str, text: str, value: Callable[[Values], float]) -> str:
        return make.gauges(name, text, ["table"], by_one({table["table"]: value(table) for table in tables}))

    about, now = view.hello.tables, tiers(view)
    yield per_table("table_rows", "Rows of a table.", lambda table: about[table["index"]].rows)
    yield per_table("hot_rows", "Rows in device memory, stale ones included.", lambda table: table["hot_rows"])
    yield per_table("stale_rows", "Hot rows that have stopped moving.", lambda table: table["stale_rows"])
    yield per_table(
        "hot_row_bytes",
        "Device memory of a table's hot rows.",
        lambda table: table["hot_rows"] * now.row_bytes[table["index"]],
    )


def about_disk(make: Families, snapshot: Values) -> Iterator[str]:
    """Yield nothing for a run with all rows in memory."""
    if (disk := snapshot.get("disk")) is None:
        return
    for name, text in metrics_of("disk", counters=True).items():
        if name in snapshot.get("totals", {}):  # a run of an earlier version has fewer
            yield make.counter(name, text, snapshot["totals"][name])
    waited = snapshot.get("stage_seconds", {}).get("disk")
    yield make.counter("disk_wait_seconds", "Training time in which rows of a batch were waited for.", waited)
    for name, text in metrics_of("disk", counters=False).items():
        yield from make.gauge(f"disk_{name}", text, disk.get(name))


def about_skipping(make: Families, snapshot: Values) -> Iterator[str]:
    """Yield nothing before a trial has found what skipping costs."""
    if (skipping := snapshot.get("skipping")) is None:
        return
    for name, text in metrics_of("skipping", counters=False).items():
        yield from make.gauge(f"skipping_{name}", text, skipping.get(name))


def about_ranks(make: Families, snapshot: Values) -> Iterator[str]:
    """Yield nothing for a run of one process."""
    ranks: dict[str, Values] = {str(rank): found for rank, found in enumerate(snapshot.get("ranks", ()))}
    if not ranks:
        return
    for name, text in metrics_of("rank", counters=True).items():
        seconds = by_one({rank: each[name.removeprefix("rank_")] for rank, each in ranks.items()})
        yield make.counters(name, text, ["rank"], seconds)
    sent: ByLabels = {(rank, kind): sent for rank, each in ranks.items() for kind, sent in each["sent_bytes"].items()}
    yield make.counters("rank_sent_bytes", "Bytes that a rank has sent to others.", ["rank", "kind"], sent)
    hot = by_one({rank: each["hot_lookup_ratio"] for rank, each in ranks.items()})
    yield make.gauges("rank_hot_lookup_ratio", "Share of a rank's lookups whose rows were hot, lately.", ["rank"], hot)
    slow = (snapshot.get("straggler") or {}).get("rank")
    named = by_one({rank: float(rank == str(slow)) for rank in ranks})
    yield make.gauges("rank_is_straggler", "1 for the rank that the others wait for.", ["rank"], named)
