"""A comparison as text: two tables for a terminal of 80 columns, and a Markdown document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptive_rec.offline.compare.headline import headline
from adaptive_rec.offline.compare.measures import (
    AUC,
    LOGLOSS,
    OTHERS,
    TARGETS,
    TO_TARGET,
    WALL_CLOCK,
    WINDOW_AUC,
    WINDOW_LOGLOSS,
    Measure,
    duration,
    in_windows,
    judged_in,
    measures_in,
    measures_of,
    ranked_in,
)
from adaptive_rec.offline.compare.processes import LOG
from adaptive_rec.offline.compare.statements import (
    BEYOND,
    PERHAPS,
    notes,
    signed,
    spanned,
    statements,
    to_target,
    verdict,
)
from adaptive_rec.units import counted, percent, size

Results = Mapping[str, Any]
QUALITY_HEADS = ("policy", "AUC reached>", "wall clock>", "AUC>", "log loss>")
WINDOW_HEADS = ("policy", "wall clock>", "AUC (mean)>", "log loss (mean)>", "AUC (last)>")
WORK_HEADS = ("policy", "calibration>", "trained>", "skipped>", "hot>", "moved>", "tier>")
SIGNS = {"better": "*", "worse": "*", "maybe_better": "?", "maybe_worse": "?"}
"""Sign after a figure that differs from the baseline's beyond noise, or perhaps."""


def quality_heads(results: Results) -> tuple[str, ...]:
    """Return the heads of `quality_rows`."""
    return WINDOW_HEADS if in_windows(results) else QUALITY_HEADS


def quality_rows(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield time and quality of each policy."""
    for policy in results["policies"]:
        over = results["over_seeds"][policy]
        found = results["differences"].get(policy, {})
        if in_windows(results):
            yield (policy, *(_cell(measure, over, found) for measure in (WALL_CLOCK, WINDOW_AUC, WINDOW_LOGLOSS, AUC)))
            continue
        cells = [_cell(measure, over, found) for measure in (WALL_CLOCK, AUC, LOGLOSS)]
        yield (policy, to_target(results, policy) + _sign(TO_TARGET, found), *cells)


def ranked_heads(results: Results) -> tuple[str, ...]:
    """Return the heads of `ranked_rows`; empty where runs have no `eval.metrics`."""
    heads = tuple(f"{measure.title}>" for measure in ranked_in(results["runs"]))
    return ("policy", *heads) if heads else ()


def ranked_rows(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield the metrics that rank of each policy."""
    measures = ranked_in(results["runs"])
    for policy in results["policies"]:
        over, found = results["over_seeds"][policy], results["differences"].get(policy, {})
        yield (policy, *(_cell(measure, over, found) for measure in measures))


def work_rows(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield calibration, skipping and traffic of each policy."""
    for policy in results["policies"]:
        over = results["over_seeds"][policy]
        if over["runs"]:
            mean = {measure.key: over[measure.key]["mean"] for measure in OTHERS if over[measure.key]}
            shares = (percent(mean[key]) for key in ("trained_ratio", "updates_skipped_ratio", "hot_lookup_ratio"))
            sizes = (
                size(each) for each in (mean["to_device_bytes"] + mean["to_host_bytes"], mean["device_tier_bytes"])
            )
            yield (policy, _calibration(over["calibration"]), *shares, *sizes)


def _calibration(each: Mapping[str, Any] | None) -> str:
    """Return a calibration with three decimals, for which a column has room."""
    if each is None:
        return "–"
    half = "" if each["low"] is None else f" ±{(each['high'] - each['low']) / 2:.3f}".replace("±0.", "±.")
    return f"{each['mean']:.3f}{half}"


def _cell(measure: Measure, over: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return _value(measure, over) + _sign(measure, found)


def _sign(measure: Measure, found: Mapping[str, Any]) -> str:
    return SIGNS.get(verdict(measure, found.get(measure.key)), "")


def _value(measure: Measure, over: Mapping[str, Any]) -> str:
    """Return a mean and half its interval."""
    each = over.get(measure.key)
    if each is None:
        return "–"
    half = None if each["low"] is None else (each["high"] - each["low"]) / 2
    if half is None:
        return measure.text(each["mean"])
    if measure.as_share:
        return f"{measure.text(each['mean'])} ±{percent(half / each['mean'])}"
    return f"{measure.text(each['mean'])} ±{half:.4f}".replace("±0.", "±.")


# Markdown --------------------------------------------------------------------------------------------------------------


def markdown(results: Results) -> str:
    """Return the results as a Markdown document: statements, tables, notes."""
    base = results["baseline"]
    parts = [f"# {title(results)}", " ".join(headline(results))]
    measures = measures_of(measures_in(results["runs"]), results)
    parts.append(_markdown_table(("policy", *(measure.title for measure in measures)), _all_rows(results)))
    judged = list(_difference_rows(results))
    if judged:
        heads = (f"against {base}", *(measure.title for measure in measures_of(judged_in(results["runs"]), results)))
        said = "Bold: beyond noise; slanted: perhaps." if any("*" in cell for row in judged for cell in row) else ""
        parts += ["## Differences", _markdown_table(heads, judged), said]
        parts += ["\n".join(f"- {policy}: {line}" for policy, line in statements(results).items())]
    if results["failed"]:
        failed = [(run["policy"], str(run["seed"]), run["why"]) for run in results["failed"]]
        parts += ["## Failed runs", _markdown_table(("policy", "seed", "why"), failed)]
    parts += ["## How to read this", "\n".join(f"- {note}" for note in notes(results))]
    return "\n\n".join(part for part in parts if part) + "\n"


def title(results: Results) -> str:
    source = str(results["conditions"]["data.source"]).rstrip("/").rpartition("/")[2]
    variants = len(results["variants"])
    more = f" and {counted(variants, 'variant')}" if variants else ""
    return f"{len(results['policies']) - variants} policies{more} on {source}"


def _all_rows(results: Results) -> Iterator[Sequence[str]]:
    for policy in results["policies"]:
        over = results["over_seeds"][policy]
        if over["runs"]:
            measures = measures_of(measures_in(results["runs"]), results)
            yield (policy, *(to_target(results, policy, m) if m in TARGETS else _with_interval(m, over) for m in measures))


def _with_interval(measure: Measure, over: Mapping[str, Any]) -> str:
    each = over[measure.key]
    if each is None:
        return "–"
    if each["low"] is None or each["low"] == each["high"]:
        return measure.text(each["mean"])
    return f"{measure.text(each['mean'])} ({measure.text(max(0.0, each['low']))} – {measure.text(each['high'])})"


def _difference_rows(results: Results) -> Iterator[Sequence[str]]:
    for policy, found in results["differences"].items():
        if not found:
            continue
        cells = []
        for measure in measures_of(judged_in(results["runs"]), results):
            each = found.get(measure.key)
            if each is None:
                cells.append("–")
                continue
            span = spanned(measure, each)
            text = f"{signed(measure, each['mean'])}" + (f" ({span})" if span else "")
            kind = verdict(measure, each)
            cells.append(f"**{text}**" if kind in BEYOND else f"*{text}*" if kind in PERHAPS else text)
        yield (policy, *cells)


def _markdown_table(heads: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join("---" if place == 0 else "---:" for place in range(len(heads))) + "|"
    return "\n".join([line(heads), rule, *(line(row) for row in rows)])


def failures(results: Results, out: Path) -> Iterator[str]:
    """Yield a line for each failed run."""
    for run in results["failed"]:
        log = out / run["directory"] / LOG
        yield f"{run['policy']}, seed {run['seed']}: {run['why']} after {duration(run['seconds'])}; its log is {log}"
