"""The page of a comparison: statements, plots, tables, every run, and the conditions of the runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from adaptive_rec.offline.compare.compare_plots import color, dots, in_time, over_samples, over_time, stages, trade
from adaptive_rec.offline.compare.headline import headline
from adaptive_rec.offline.compare.measures import (
    JUDGED,
    MEASURES,
    OTHERS,
    TARGETS,
    Measure,
    duration,
    in_windows,
    shown,
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
from adaptive_rec.offline.pages.markup import BLANK, join, tag
from adaptive_rec.offline.pages.page import facts, folded, notice, page, section, table, tiles, warnings
from adaptive_rec.offline.pages.plot import charts
from adaptive_rec.units import count, exact_size, four, size, whole

WORK = tuple(measure for measure in OTHERS if measure.key not in {"calibration", "process_seconds"})

Results = Mapping[str, Any]


def compare_page(results: Results) -> str:
    """Return the page of what `results.gather` put together."""
    parts = [warnings(disturbed(results)), section("Result", _lead(results), _tiles(results), _facts(results))]
    if results["runs"]:
        parts += [_differences(results), _plots(results), _stages(results), _tables(results), _runs(results)]
    else:
        parts.append(notice("No run is finished yet."))
    if results["failed"]:
        parts.append(_failed(results))
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(results["made"]))
    subtitle = f"{', '.join(results['policies'])} · {made}"
    return page(title(results), subtitle, _state(results), *parts, _conditions(results), style="compare.css")


def _state(results: Results) -> tuple[str, str]:
    done, planned, failed = len(results["runs"]), results["planned_runs"], len(results["failed"])
    if failed:
        return "failed", f"{failed} of {planned} runs failed"
    return ("finished", f"{planned} runs") if done == planned else ("starting", f"{done} of {planned} runs")


# Result ----------------------------------------------------------------------------------------------------------------


def _lead(results: Results) -> Markup:
    return tag("div", *(tag("p", said) for said in headline(results)), class_="lead")


def _tiles(results: Results) -> Markup | None:
    over = results["over_seeds"][results["baseline"]]
    if not over["runs"]:
        return None
    mean = {measure.key: over[measure.key]["mean"] for measure in MEASURES if over[measure.key]}
    auc = four(mean["auc"]) if "auc" in mean else "–"
    finished = f"{len(results['runs'])} of {results['planned_runs']} runs finished"
    return tiles(
        ("Seeds", str(len(results["seeds"])), finished),
        ("Baseline", results["baseline"], f"{over['runs']} run{'s' if over['runs'] > 1 else ''}"),
        ("Its wall clock", duration(mean["seconds"]), f"{count(mean['samples_per_second'])} samples/s"),
        ("Its AUC", auc, "of the last window" if in_windows(results) else "on held-out samples"),
    )


def _facts(results: Results) -> Markup:
    held, runs = results["conditions"], results["runs"]
    held_out = runs[0]["held_out_samples"] if runs else 0
    return facts(
        ("Data", str(held["data.source"])),
        ("Hot budget", exact_size(held["knobs.hot_budget_bytes"])),
        ("Steps", f"{whole(runs[0]['steps'])} of {whole(held['run.batch_size'])} samples" if runs else None),
        ("Last window" if in_windows(results) else "Held out", f"{whole(held_out)} samples" if held_out else None),
        ("Machine", ", ".join([*held["graphics processors"], f"{held['processor']}, {held['cores']} cores"])),
        ("Trained on", ", ".join(dict.fromkeys(run["device"] for run in runs)) or held["run.device"]),
    )


def _differences(results: Results) -> Markup:
    base, rows, judged = results["baseline"], [], shown(JUDGED, results)
    for policy, found in results["differences"].items():
        if found:
            rows.append((_name(results, policy), *(_difference(measure, found.get(measure.key)) for measure in judged)))
    if not rows:
        return section(f"Against {base}", notice("No seed is finished under both."))
    heads = ("policy", *(f"{measure.title}>" for measure in judged))
    key = "Below each: its 95 % interval. Colour: beyond noise; colour with a question mark: perhaps; grey: not."
    words = [tag("p", tag("b", policy), BLANK, said) for policy, said in statements(results).items()]
    said = folded("In words", *words, class_="card words", open="open")
    drawn = table(heads, rows, key if _enough(results) else "")
    return section(f"Against {base}", drawn, said, note="Differences paired by seed.")


def _difference(measure: Measure, found: Mapping[str, Any] | None) -> Markup:
    if found is None:
        return tag("span", "–", class_="verdict unknown")
    kind = verdict(measure, found)
    if kind == "same":
        return tag("span", "same", class_="verdict same")
    return tag(
        "span", change(measure, found), tag("span", spanned(measure, found), class_="span"), class_=f"verdict {kind}"
    )


def _enough(results: Results) -> bool:
    return most_seeds(results) >= LEAST_SEEDS


def _name(results: Results, policy: str) -> Markup:
    return join([tag("i", class_="swatch", style=f"background:var(--{color(results, policy)})"), BLANK, policy])


# Plots -----------------------------------------------------------------------------------------------------------------


def _plots(results: Results) -> Markup:
    rows = [dots(results, measure, _note(measure, results)) for measure in shown(JUDGED, results)]
    drawn = charts(over_time(results), over_samples(results), in_time(results), trade(results), *rows)
    span = ", the bar its 95 % interval" if _enough(results) else ""
    note = f"Diamond: mean over the seeds{span}; small dots: the seeds; dashed line: the baseline."
    return section("Time and quality", drawn, note=note)


def _stages(results: Results) -> Markup:
    note = "Means over the seeds. Work on other threads overlaps with these and is not shown."
    return section("Stages", stages(results), note=note)


def _note(measure: Measure, results: Results) -> str:
    if measure not in TARGETS:
        return ""
    never = [policy for policy in results["policies"] if _missed(results["over_seeds"][policy])]
    return f"Not reached in every seed: {', '.join(f'{p} ({to_target(results, p)})' for p in never)}." if never else ""


def _missed(over: Mapping[str, Any]) -> bool:
    return bool(over["targets"]) and over["reached"] < over["targets"]


# Tables ----------------------------------------------------------------------------------------------------------------


def _tables(results: Results) -> Markup:
    quality = (*shown(JUDGED, results), *(measure for measure in OTHERS if measure.key == "calibration"))
    return section("Figures", _table(results, quality), _table(results, shown(WORK, results)),
                   note="Means over the seeds" + (" with 95 % intervals." if _enough(results) else "."))  # fmt: skip


def _table(results: Results, measures: Sequence[Measure]) -> Markup:
    rows = []
    for policy in results["policies"]:
        over = results["over_seeds"][policy]
        if over["runs"]:
            rows.append((_name(results, policy), *(_figure(results, policy, measure) for measure in measures)))
    return table(("policy", *(f"{measure.title}>" for measure in measures)), rows)


def _figure(results: Results, policy: str, measure: Measure) -> Any:
    each = results["over_seeds"][policy][measure.key]
    if measure in TARGETS and each is None:
        return to_target(results, policy, measure)
    if each is None:
        return "–"
    mean = measure.text(each["mean"])
    if each["low"] is None or measure.text(each["low"]) == measure.text(each["high"]):
        return mean
    low, high = (measure.text(max(0.0, bound)) for bound in (each["low"], each["high"]))
    return tag("span", mean, tag("span", f"{low} – {high}", class_="span"), class_="verdict")


def _runs(results: Results) -> Markup:
    heads = ("run", "policy", "seed>", "to baseline's AUC>", "wall clock>", "processor>", "start>", "AUC>", "log loss>",
             "calibration>", "directory")  # fmt: skip
    rows = []
    for run in results["runs"]:
        quality = ["–" if run[key] is None else four(run[key]) for key in ("auc", "logloss", "calibration")]
        clocks = ("seconds_to_target", "seconds", "processor_seconds", "start_seconds")
        times = ["–" if run[key] is None else duration(run[key]) for key in clocks]
        rows.append((run["order"], run["policy"], run["seed"], *times, *quality, tag("code", run["directory"])))
    note = f"Numbered in the order in which they were planned: a seed after the other.{_waiting(results)}"
    return section("Runs", table(heads, rows), note=note)


def _waiting(results: Results) -> str:
    seeds = sorted({str(run["seed"]) for run in results["runs"] if not run["counted"]})
    return f" Not counted yet, as other policies have still to run: seed {', '.join(seeds)}." if seeds else ""


def _failed(results: Results) -> Markup:
    parts = []
    for run in results["failed"]:
        name, why = tag("b", f"{run['policy']}, seed {run['seed']}"), f": {run['why']} after {duration(run['seconds'])}"
        log = tag("pre", "\n".join(run["last_lines"]))
        parts.append(tag("div", tag("p", name, why), log, class_="card failed-run"))
    return section("Failed runs", *parts, note="Left out of all figures. The same command makes them again.")


def _conditions(results: Results) -> Markup:
    rows = []
    for key, value in results["conditions"].items():
        is_size = key.endswith("_bytes") and isinstance(value, int)
        rows.append((key, size(value) if key == "size of the data" else exact_size(value) if is_size else str(value)))
    every = folded("Settings and versions, the same for all runs", table(("name", "value"), rows))
    said = [tag("p", note) for note in notes(results)]
    return section("How to read this", tag("div", *said, every, class_="card words"))
