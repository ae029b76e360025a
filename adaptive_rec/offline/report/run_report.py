"""The report of a run: its result, its course, its events. Made from its directory alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from adaptive_rec.live.life import OVER, is_held, state_of
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.offline.pages.markup import tag
from adaptive_rec.offline.pages.page import facts, notice, page, section, table, tiles, warnings, write_page
from adaptive_rec.offline.pages.plot import PlotMark, charts, mark_key
from adaptive_rec.offline.report.record import RunRecord, read_run
from adaptive_rec.offline.report.run_figures import RunFigures
from adaptive_rec.offline.report.series import ReportSeries, series_of
from adaptive_rec.units import clock, count, exact_size, fine, four, percent, size, whole

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
    return page(
        name, subtitle, phase(record),
        warnings(record.faults),
        section("Result", _tiles(record), _facts(record)),
        _plots(record, series) if series.samples else notice("The run has reported no figures yet."),
        _journal(record),
        _warnings(record),
    )  # fmt: skip


def phase(record: RunRecord) -> tuple[str, str]:
    """Return the state of the run as far as its directory shows it: a phase and a word for it."""
    kinds = [event["kind"] for event in record.events]
    state = state_of(kinds, is_held(record.path / ".lock"), lambda: record.summary is not None)
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


def _tiles(record: RunRecord) -> Markup:
    now = _newest(record)
    quality = (record.evaluations[-1] if record.evaluations else None) or now.get("eval") or {}
    at = f"at step {whole(quality['step'])}" if "step" in quality else ""
    what = record.scored
    held = f"{count(quality['samples'])} {what}" if quality.get("samples") else "not scored"

    def shown(value: float | None, text: Any) -> str:
        return "–" if value is None else str(text(value))

    return tiles(
        ("AUC", shown(quality.get("auc"), four), at or held),
        ("Log loss", shown(quality.get("logloss"), four), held),
        ("Calibration", shown(quality.get("calibration"), four), "1 is right"),
        ("Speed", shown(now.get("samples_per_second"), lambda v: f"{count(v)}/s"), "samples seen"),
        ("Duration", shown(now.get("seconds"), clock), f"{whole(now.get('steps', 0))} steps"),
        ("Hot lookups", shown(now.get("hot_lookup_ratio"), fine),
         f"{percent(now.get('popular_sample_ratio') or 0.0)} of samples popular"),
        ("Skipped", *_skipped(now)),
        ("Peak memory", shown(now.get("peak_rss_bytes"), size),
         f"hot tier {size(now['device_tier_bytes'])}" if "device_tier_bytes" in now else ""),
    )  # fmt: skip


def _skipped(now: Mapping[str, Any]) -> tuple[str, str]:
    """Return the larger skipped share, and the other one."""
    made, left = now.get("row_updates", 0), now.get("row_updates_skipped", 0)
    updates = ratio(left, made + left)
    samples = ratio(now.get("samples_skipped", 0), now.get("samples_seen", 0))
    if samples > updates:
        return fine(samples), f"of samples, {percent(updates)} of row updates"
    return fine(updates), f"of row updates, {percent(samples)} of samples"


def _facts(record: RunRecord) -> Markup:
    now, about, config = _newest(record), record.about, record.config
    run, tables = config.get("run", {}), about.get("tables", [])
    rows = sum(t["rows"] for t in tables)
    dims = "/".join(str(dim) for dim in sorted({t["dim"] for t in tables}))
    own = bool(about.get("own_loop"))
    device_memory = now.get("device_peak_bytes", 0)
    samples = hot = moved = None
    if now:
        samples = f"{whole(now.get('samples_seen', 0))} seen, {whole(now.get('samples_skipped', 0))} skipped"
    if now.keys() >= {"hot_rows", "stale_rows"}:
        hot = f"{whole(now['hot_rows'])}, {whole(now['stale_rows'])} of them stale at the end"
    if now.keys() >= {"host_to_device_bytes", "device_to_host_bytes"}:
        up, down = size(now["host_to_device_bytes"]), size(now["device_to_host_bytes"])
        moved = f"{up} to the hot tier, {down} back, {count(now.get('migrated_rows', 0))} rows changed tier"
    return facts(
        ("Policy", _policies(record)),
        ("Action", now.get("action")),
        ("Data", "of the loop's own" if own else str(config.get("data", {}).get("source", "?"))),
        ("Tables", f"{len(tables)}, {count(rows)} rows x {dims}" if tables else None),
        ("Samples", samples),
        ("Malformed rows", whole(now["malformed_rows"]) if now.get("malformed_rows") else None),
        ("Seed", str(about.get("seed", run.get("seed", "?")))),
        ("Device", f"{about.get('device', '?')}, {about.get('precision', '?')}"),
        ("Batch", None if own else f"{run.get('batch_size', '?')} samples"),
        ("Hot budget", _budget(record)),
        ("Hot rows", hot),
        ("Moved", moved),
        ("Device memory", f"{size(device_memory)} peak" if device_memory else None),
        ("Disk", _disk(now)),
        ("Version", about.get("version")),
        ("Branch of", _parent(about)),
        ("Command", tag("code", str(about["command"])) if about.get("command") else None),
        ("Again", None if own else tag("code", f"adaptive-rec train --replay {record.path}")),
    )


def _parent(about: Mapping[str, Any]) -> str | None:
    """Return where a branch comes from; None for another run."""
    parent = about.get("parent")
    return f"{parent.get('run')} at step {parent.get('step')}" if isinstance(parent, dict) else None


def _disk(now: Mapping[str, Any]) -> str | None:
    """Return what a run did with its disk; None where all rows were in memory, or without a summary."""
    if not (disk := now.get("disk")):
        return None
    if not disk.keys() >= {"rows_read", "rows_written", "size_bytes"}:
        return None
    rows = f"{whole(disk['rows_read'])} rows read from files, {whole(disk['rows_written'])} written"
    waited = now.get("seconds_by_stage", {}).get("disk", 0.0)
    return f"{rows}, {size(disk['size_bytes'])}, {clock(waited)} waited for rows"


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


def _plots(record: RunRecord, series: ReportSeries) -> Markup:
    marks, tables = list(_marks(record, series)), record.about.get("tables", [])
    total = sum(t["rows"] for t in tables) or _newest(record).get("total_rows", 0)
    drawn = RunFigures(record, series, marks).all(tables, total)
    points = len(series.samples)
    between = f"{count(record.reports)} reports as {points} points" if points < record.reports else f"{points} reports"
    note = f"Over the samples seen. {between}: a point is what happened since the one before it."
    key = mark_key({mark.kind: WORDS.get(mark.kind, mark.kind) for mark in marks}, numbered="knobs")
    return section("Over time", key, charts(*drawn), note=note)


# Journal -------------------------------------------------------------------------------------------------------------


def _changed(event: Mapping[str, Any]) -> Mapping[str, Any]:
    changed = event["details"].get("changed")
    return {k: v for k, v in changed.items() if isinstance(v, dict)} if isinstance(changed, dict) else {}


def _value(name: str, value: Any) -> str:
    return exact_size(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)


def _journal(record: RunRecord) -> Markup:
    rows = []
    changes = [event for event in record.events if event["kind"] == "knobs"]
    kept = {id(event) for event in _on_the_line(record)}
    for number, event in enumerate(changes[:MOST_LISTED], start=1):
        badge = tag("span", tag("i", str(number)), class_="number")
        changed = _changed(event) or {event["text"]: {}}
        for name, values in changed.items():
            old, new = (_value(name, values[side]) if side in values else "" for side in ("old", "new"))
            lost = "" if id(event) in kept else "lost when the run went back"
            rows.append((badge, _clock(event), whole(event["step"]), name, old, new, lost))
            badge = Markup("")
    if not rows:
        return section("Knob changes", notice("No knob was turned."))
    heads = ("no.", "time", "step>", "knob", "from", "to", "")
    return section("Knob changes", table(heads, rows), note=_more(record, "knobs", len(changes[:MOST_LISTED])))


def _warnings(record: RunRecord) -> Markup:
    listed = [event for event in record.events if event["kind"] not in UNLISTED][:MOST_LISTED]
    all_of_them = sum(n for kind, n in record.event_counts.items() if kind not in UNLISTED)
    counts = ", ".join(f"{whole(n)} {kind}" for kind, n in sorted(record.event_counts.items()))
    note = f"All events: {counts}." if counts else ""
    if not listed:
        return section(
            "Warnings and interruptions", notice("Nothing went wrong, and nobody paused the run."), note=note
        )
    rows = [(_clock(e), whole(e["step"]), e["kind"], tag("span", e["text"], class_="event-text")) for e in listed]
    left = f"The first {len(listed)} of {whole(all_of_them)}. " if len(listed) < all_of_them else ""
    return section("Warnings and interruptions", table(("time", "step>", "kind", "what"), rows), note=left + note)


def _more(record: RunRecord, kind: str, listed: int) -> str:
    there = record.event_counts.get(kind, 0)
    return f"The first {listed} of {whole(there)}." if there > listed else ""


def _clock(event: Mapping[str, Any]) -> str:
    at = event["time"]
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at)) if isinstance(at, int | float) else "–"
