"""The page of a comparison: statements, plots, tables, every run, and the conditions of the runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from adaptive_rec.offline.compare.compare_plots import (
    color,
    dots,
    over_samples,
    over_time,
    plot_in_time,
    plot_stages,
    trade,
)
from adaptive_rec.offline.compare.headline import headline
from adaptive_rec.offline.compare.measures import (
    OTHERS,
    TARGETS,
    Measure,
    duration,
    in_windows,
    judged_in,
    measures_in,
    measures_of,
    ranked_in,
)
from adaptive_rec.offline.compare.statements import (
    change,
    disturbed,
    most_seeds,
    notes,
    spanned,
    statements,
    to_target,
    verdict,
)
from adaptive_rec.offline.compare.statistics import LEAST_SEEDS
from adaptive_rec.offline.compare.tables import title
from adaptive_rec.offline.pages.page import page
from adaptive_rec.offline.pages.plot import Plot, Tracks
from adaptive_rec.units import exact_size, size

CALIBRATION = tuple(measure for measure in OTHERS if measure.key == "calibration")
WORK = tuple(measure for measure in OTHERS if measure.key not in {"calibration", "process_seconds"})

Results = Mapping[str, Any]


class Cell(NamedTuple):
    """A figure, its interval below it, and what is said by its colour."""

    text: str
    span: str = ""
    verdict: str = ""


class PolicyTable(NamedTuple):
    """A table with a row per policy, whose name has the policy's colour."""

    measures: Sequence[Measure]
    rows: Sequence[tuple[str, str, Sequence[Cell]]]


def compare_page(results: Results) -> str:
    """Return the page of what `results.gather` put together."""
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(results["made"]))
    more = _figures(results) if results["runs"] else {}
    return page(
        "compare.html", title(results), f"{', '.join(results['policies'])} · {made}", _state(results), "compare.css",
        results=results, disturbed=disturbed(results), headline=headline(results), baseline=_baseline(results),
        windows=in_windows(results), ranked=ranked_in(results["runs"]), duration=duration,
        conditions=list(_conditions(results)), notes=notes(results), **more,
    )  # fmt: skip


def _state(results: Results) -> tuple[str, str]:
    done, planned, failed = len(results["runs"]), results["planned_runs"], len(results["failed"])
    if failed:
        return "failed", f"{failed} of {planned} runs failed"
    return ("finished", f"{planned} runs") if done == planned else ("starting", f"{done} of {planned} runs")


def _baseline(results: Results) -> dict[str, Any]:
    """Return the means of the baseline over its seeds and the number of its runs."""
    over = results["over_seeds"][results["baseline"]]
    means = {measure.key: over[measure.key]["mean"] for measure in measures_in(results["runs"]) if over.get(measure.key)}
    return {"runs": over["runs"], **means} if over["runs"] else {}


def _figures(results: Results) -> dict[str, Any]:
    """Return what a page has once a run is finished."""
    judged = measures_of(judged_in(results["runs"]), results)
    return {
        "differences": _differences(results), "statements": statements(results),
        "enough": most_seeds(results) >= LEAST_SEEDS,
        "plots": _plots(results), "stages": plot_stages(results),
        "figures": [_table(results, each) for each in ((*judged, *CALIBRATION), measures_of(WORK, results))],
        "waiting": sorted({str(run["seed"]) for run in results["runs"] if not run["counted"]}),
    }  # fmt: skip


def _differences(results: Results) -> PolicyTable:
    judged = measures_of(judged_in(results["runs"]), results)
    differences = {policy: found for policy, found in results["differences"].items() if found}
    rows = [
        (policy, color(results, policy), [_difference(measure, found.get(measure.key)) for measure in judged])
        for policy, found in differences.items()
    ]
    return PolicyTable(judged, rows)


def _difference(measure: Measure, found: Mapping[str, Any] | None) -> Cell:
    if found is None:
        return Cell("–", verdict="unknown")
    kind = verdict(measure, found)
    return Cell("same", verdict=kind) if kind == "same" else Cell(change(measure, found), spanned(measure, found), kind)


def _plots(results: Results) -> list[Plot | Tracks | None]:
    rows = [dots(results, measure, _note(measure, results)) for measure in measures_of(judged_in(results["runs"]), results)]
    return [over_time(results), over_samples(results), plot_in_time(results), trade(results), *rows]


def _note(measure: Measure, results: Results) -> str:
    if measure not in TARGETS:
        return ""
    never = [policy for policy in results["policies"] if _missed(results["over_seeds"][policy])]
    return f"Not reached in every seed: {', '.join(f'{p} ({to_target(results, p)})' for p in never)}." if never else ""


def _missed(over: Mapping[str, Any]) -> bool:
    return bool(over["targets"]) and over["reached"] < over["targets"]


def _table(results: Results, measures: Sequence[Measure]) -> PolicyTable:
    rows = [
        (policy, color(results, policy), [_figure(results, policy, measure) for measure in measures])
        for policy in results["policies"]
        if results["over_seeds"][policy]["runs"]
    ]
    return PolicyTable(measures, rows)


def _figure(results: Results, policy: str, measure: Measure) -> Cell:
    each = results["over_seeds"][policy][measure.key]
    if each is None:
        return Cell(to_target(results, policy, measure) if measure in TARGETS else "–")
    mean = measure.text(each["mean"])
    if each["low"] is None or measure.text(each["low"]) == measure.text(each["high"]):
        return Cell(mean)
    low, high = (measure.text(max(0.0, bound)) for bound in (each["low"], each["high"]))
    return Cell(mean, f"{low} – {high}")


def _conditions(results: Results) -> Iterator[tuple[str, str]]:
    for key, value in results["conditions"].items():
        is_size = key.endswith("_bytes") and isinstance(value, int)
        yield key, size(value) if key == "size of the data" else exact_size(value) if is_size else str(value)
