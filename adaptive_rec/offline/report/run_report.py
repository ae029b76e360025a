"""The report of a run: its result, its course, its events. Made from its directory alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptive_rec.config.metrics import ranked_of, ranking_label
from adaptive_rec.live.life import OVER, is_held, state_of
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.offline.pages.page import page, write_page
from adaptive_rec.offline.pages.plot import PlotMark
from adaptive_rec.offline.report.record import RunRecord, read_run
from adaptive_rec.offline.report.run_figures import RunFigures, capitalized
from adaptive_rec.offline.report.series import ReportSeries, series_of
from adaptive_rec.units import exact_size, fine, four, percent, whole

NAME = "report.html"
UNMARKED = {"reclassified", "evaluation", "finished", "sidecar", "saving"}
"""Kinds of events without a mark in the plots, which show them or have no use for them; the first start has none either."""
UNLISTED = {"knobs", "started", "reclassified", "evaluation", "saving", "checkpoint", "finished"}
"""Kinds of events that are not in the list of warnings, as the page shows them elsewhere."""
WORDS = {
    "knobs": "knob change", "split": "batches run whole or split", "started": "resumed from a checkpoint",
    "rolled_back": "went back to a checkpoint", "left_out": "data left out",
}  # fmt: skip
MOST_MARKS = 40
"""The most marks of each kind."""
MOST_LISTED = 200


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of a run directory, by default into it. Raises UsageError where it cannot be read or written."""
    out = out or run / NAME
    write_page(run_page(read_run(run)), out)
    return out


def run_page(record: RunRecord) -> str:
    series = series_of(record)
    name = str(record.about.get("run_name") or record.path.resolve().name)
    started = record.about.get("started")
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(started)) if started else "start unknown"
    subtitle = f"{_policies(record)} on {record.about.get('device', 'an unknown device')}, started {when}"
    now, tables = _newest(record), record.about.get("tables", [])
    quality = _quality(record, now)
    return page(
        "report.html", name, subtitle, phase(record),
        record=record, now=now, tables=tables, rows=sum(table["rows"] for table in tables), quality=quality,
        ranked=_ranked(quality), skipped=_skipped(now), policies=_policies(record), budget=_budget(record),
        **_course(record, series), **_events(record),
    )  # fmt: skip


def _quality(record: RunRecord, now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the score to show: of the held-out samples by the best model where a slice has chosen it, else the last one."""
    final = now.get("eval")
    if final and now.get("eval_mode") == "validation":
        return {**final, **({} if now.get("eval_step") is None else {"step": now["eval_step"]})}
    return (record.evaluations[-1] if record.evaluations else None) or final or {}


def phase(record: RunRecord) -> tuple[str, str]:
    """Return the state of the run as far as its directory shows it: a phase and a word for it."""
    kinds = [event["kind"] for event in record.events]
    state = state_of(kinds, is_held(record.path), lambda: record.summary is not None)
    if state != "finished":
        return (state, state) if state in (*OVER, "branched") else ("starting", f"under way: {state.replace('_', ' ')}")
    last = kinds[len(kinds) - kinds[::-1].index("started") :] if "started" in kinds else kinds
    return ("stopped", "stopped early") if "stopping" in last or _early(record) else ("finished", "finished")


def _early(record: RunRecord) -> bool:
    snapshots = [s for stretch in record.stretches for s in stretch.snapshots]
    summary = record.summary
    return bool(
        summary
        and snapshots
        and summary.get("steps", 0) < summary.get("steps_total", snapshots[-1]["steps_total"] or 0)
    )


# Result --------------------------------------------------------------------------------------------------------------


def _newest(record: RunRecord) -> Mapping[str, Any]:
    """Return the figures of the summary; without one, those that the newest report has."""
    if record.summary:
        return record.summary
    if not record.stretches:
        return {}
    last = record.stretches[-1].snapshots[-1]
    totals = last["totals"]
    return {
        **totals,
        "steps": last["step"],
        "samples_skipped": totals["samples_seen"] - totals["samples_trained"],
        "seconds": last["seconds"],
        "samples_per_second": ratio(totals["samples_seen"], last["seconds"]),
        "hot_lookup_ratio": ratio(totals["lookups_hot"], totals["lookups"]),
        "popular_sample_ratio": ratio(totals["samples_popular"], totals["samples_seen"]),
        "hot_rows": last["hot_rows"],
        "stale_rows": last["stale_rows"],
    }


def _ranked(quality: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return label, value and groups of each metric that ranks the samples of groups."""
    metrics = ranked_of(quality)
    if not metrics:
        return []
    counts = quality["ranking"]
    groups = {name: counts["groups_with_both" if name == "gauc" else "groups_with_positive"] for name in metrics}
    of_all = f"of {whole(counts['groups'])} groups"
    return [
        (capitalized(ranking_label(name)), "–" if value is None else four(value), f"{whole(groups[name])} {of_all}")
        for name, value in metrics.items()
    ]


def _skipped(now: Mapping[str, Any]) -> tuple[str, str]:
    """Return the larger skipped share, and the other one."""
    made, left = now.get("row_updates", 0), now.get("row_updates_skipped", 0)
    updates = ratio(left, made + left)
    samples = ratio(now.get("samples_skipped", 0), now.get("samples_seen", 0))
    if samples > updates:
        return fine(samples), f"of samples, {percent(updates)} of row updates"
    return fine(updates), f"of row updates, {percent(samples)} of samples"


def _budget(record: RunRecord) -> str:
    value = record.config.get("knobs", {}).get("hot_budget_bytes")
    return f"{exact_size(value)} at first" if isinstance(value, int) else ""


def _policies(record: RunRecord) -> str:
    """Return the policy of the run, and those it changed to."""
    names = [str(record.config.get("knobs", {}).get("policy", "?"))]
    for event in _on_the_line(record):
        change = _changed(event).get("policy")
        if change:
            names.append(str(change.get("new")))
    return ", then ".join(names)


# Plots ---------------------------------------------------------------------------------------------------------------


def _on_the_line(record: RunRecord) -> list[Mapping[str, Any]]:
    """Return the events but for those that the run lost when it went back to a checkpoint: they are not on its line any more."""
    kept: list[tuple[int, Mapping[str, Any]]] = []
    saved: dict[str, int] = {}
    for place, event in enumerate(record.events):
        kind, step, checkpoint = event["kind"], event["step"], str(event["details"].get("checkpoint"))
        if kind == "saving":
            saved[checkpoint] = place
        elif kind in ("started", "rolled_back"):
            last = saved.get(checkpoint, place)
            kept = [(at, each) for at, each in kept if each["step"] < step or (each["step"] == step and at <= last)]
        kept.append((place, event))
    return [event for _, event in kept]


def _marks(record: RunRecord, series: ReportSeries) -> Iterator[PlotMark]:
    """Yield the events that plots mark. Knob changes are numbered, as in the journal."""
    seen: dict[str, int] = {}
    kept = {id(event) for event in _on_the_line(record)}
    for event in record.events:
        kind = event["kind"]
        seen[kind] = number = seen.get(kind, 0) + 1
        if id(event) not in kept:
            continue
        if kind not in UNMARKED and number <= MOST_MARKS and (kind, number) != ("started", 1):
            said = f"step {whole(event['step'])}: {event['text']}"
            yield PlotMark(series.samples_at(event["step"]), kind, said, number if kind == "knobs" else None)


def _course(record: RunRecord, series: ReportSeries) -> dict[str, Any]:
    """Return the plots of a run, the meaning of their marks, and the number of their points."""
    if not series.samples:
        return {"plots": []}
    marks, tables = list(_marks(record, series)), record.about.get("tables", [])
    total = sum(t["rows"] for t in tables) or _newest(record).get("total_rows", 0)
    return {
        "plots": RunFigures(record, series, marks).all(tables, total), "points": len(series.samples),
        "marks": {mark.kind: WORDS.get(mark.kind, mark.kind) for mark in marks},
    }  # fmt: skip


# Journal -------------------------------------------------------------------------------------------------------------


def _changed(event: Mapping[str, Any]) -> Mapping[str, Any]:
    changed = event["details"].get("changed")
    return {k: v for k, v in changed.items() if isinstance(v, dict)} if isinstance(changed, dict) else {}


def _value(name: str, value: Any) -> str:
    return exact_size(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)


def _events(record: RunRecord) -> dict[str, Any]:
    """Return the changes of knobs and the other events worth a line, with the numbers of all of them."""
    changes = [event for event in record.events if event["kind"] == "knobs"][:MOST_LISTED]
    kept = {id(event) for event in _on_the_line(record)}
    return {
        "changes": [
            row for number, event in enumerate(changes, 1) for row in _change_rows(number, event, id(event) in kept)
        ],
        "listed_changes": len(changes),
        "events": [
            (_clock(event), whole(event["step"]), event["kind"], event["text"])
            for event in [event for event in record.events if event["kind"] not in UNLISTED][:MOST_LISTED]
        ],
        "all_events": sum(n for kind, n in record.event_counts.items() if kind not in UNLISTED),
    }  # fmt: skip


def _change_rows(number: int, event: Mapping[str, Any], kept: bool) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each knob that a change set; its number is in the first one."""
    for place, (name, values) in enumerate((_changed(event) or {event["text"]: {}}).items()):
        old, new = (_value(name, values[side]) if side in values else "" for side in ("old", "new"))
        lost = "" if kept else "lost when the run went back"
        yield (None if place else number, _clock(event), whole(event["step"]), name, old, new, lost)


def _clock(event: Mapping[str, Any]) -> str:
    at = event["time"]
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at)) if isinstance(at, int | float) else "–"
