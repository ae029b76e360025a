"""The page of a comparison, in one file: what differs, plots, tables, every run, and under what conditions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptive_rec.offline.compare.curves import color, over_samples, over_time, trade
from adaptive_rec.offline.compare.dots import DotRow, dots, values_of
from adaptive_rec.offline.compare.figures import JUDGED, MEASURES, OTHERS, TO_TARGET, Measure, duration, four
from adaptive_rec.offline.compare.stages import stages_section
from adaptive_rec.offline.compare.statistics import LEAST_SEEDS
from adaptive_rec.offline.compare.tables import title
from adaptive_rec.offline.compare.words import (
    PERHAPS,
    disturbed,
    headline,
    lines,
    most_seeds,
    notes,
    signed,
    spanned,
    to_target,
    verdict,
)
from adaptive_rec.offline.report.markup import Markup, join, tag
from adaptive_rec.offline.report.page import facts, grid, page, section, table, tile
from adaptive_rec.offline.report.page import lines as warnings
from adaptive_rec.units import count, exact_size, size, whole

STYLE = Path(__file__).with_name("compare.css")
WORK = tuple(measure for measure in OTHERS if measure.key not in {"calibration", "process_seconds"})

Results = Mapping[str, Any]


def compare_page(results: Results) -> str:
    """The page of what `results.gather` put together."""
    parts: list[Any] = [
        warnings(disturbed(results)),
        section("Result", _lead(results), _tiles(results), _facts(results)),
    ]
    if results["runs"]:
        parts += [_differences(results), _plots(results), stages_section(results), _tables(results), _runs(results)]
    else:
        parts.append(tag("p", "No run is finished yet.", class_="card notice"))
    if results["failed"]:
        parts.append(_failed(results))
    parts.append(_conditions(results))
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(results["made"]))
    subtitle = f"{', '.join(results['policies'])} · {made}"
    return page(title(results), subtitle, _state(results), *parts, style=STYLE.read_text(encoding="utf-8"))


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
    base = results["baseline"]
    return tag(
        "div",
        tile("Seeds", str(len(results["seeds"])), f"{len(results['runs'])} of {results['planned_runs']} runs finished"),
        tile("Baseline", base, f"{over['runs']} run{'s' if over['runs'] > 1 else ''}"),
        tile("Its wall clock", duration(mean["seconds"]), f"{count(mean['samples_per_second'])} samples/s"),
        tile("Its AUC", auc, "on held-out samples"),
        class_="summary",
    )


def _facts(results: Results) -> Markup:
    held, runs = results["conditions"], results["runs"]
    steps = f"{whole(runs[0]['steps'])} of {whole(held['run.batch_size'])} samples" if runs else None
    machine = ", ".join([*held["graphics processors"], f"{held['processor']}, {held['cores']} cores"])
    devices = ", ".join(dict.fromkeys(run["device"] for run in runs)) or held["run.device"]
    listed = facts(
        [
            ("Data", str(held["data.source"])),
            ("Hot budget", exact_size(held["knobs.hot_budget_bytes"])),
            ("Steps", steps),
            (
                "Held out",
                f"{whole(runs[0]['held_out_samples'])} samples" if runs and runs[0]["held_out_samples"] else None,
            ),
            ("Machine", machine),
            ("Trained on", devices),
        ]
    )
    return tag("div", listed, class_="card facts-card")


def _differences(results: Results) -> Markup:
    base = results["baseline"]
    rows = []
    for policy, found in results["differences"].items():
        if found:
            rows.append((_name(results, policy), *(_difference(measure, found.get(measure.key)) for measure in JUDGED)))
    if not rows:
        return section(f"Against {base}", tag("p", "No seed is finished under both.", class_="card notice"))
    heads = ("policy", *(f"{measure.title}>" for measure in JUDGED))
    key = (
        "Below each: where it lies at 95 %. Colour: beyond noise; colour with a question mark: perhaps; grey: not."
        if _enough(results)
        else ""
    )
    words = [tag("p", tag("b", policy), " ", said) for policy, said in lines(results).items()]
    said = tag("details", tag("summary", "In words"), *words, class_="card words", open="open")
    return section(f"Against {base}", table(heads, rows, key), said, note="Differences paired by seed.")


def _difference(measure: Measure, found: Mapping[str, Any] | None) -> Markup:
    if found is None:
        return tag("span", "–", class_="verdict unknown")
    kind = verdict(measure, found)
    told = "same" if kind == "same" else signed(measure, found["mean"]) + ("?" if kind in PERHAPS else "")
    span = None if kind == "same" else tag("span", spanned(measure, found), class_="span")
    return tag("span", told, span, class_=f"verdict {kind}")


def _enough(results: Results) -> bool:
    return most_seeds(results) >= LEAST_SEEDS


def _name(results: Results, policy: str) -> Markup:
    return join([tag("i", class_="swatch", style=f"background:var(--{color(results, policy)})"), " ", policy])


# Plots -----------------------------------------------------------------------------------------------------------------


def _plots(results: Results) -> Markup:
    figures = [dots(measure, list(_rows(results, measure)), _baseline_mean(results, measure), _note(measure, results))
               for measure in JUDGED]  # fmt: skip
    drawn = [over_time(results).html(), over_samples(results).html(), trade(results).html(), *figures]
    span = ", the bar where it lies at 95 %" if _enough(results) else ""
    note = f"Diamond: mean over the seeds{span}; small dots: the seeds; dashed line: the baseline."
    return section("Time and quality", grid(*drawn), note=note)


def _note(measure: Measure, results: Results) -> str:
    if measure is not TO_TARGET:
        return ""
    never = [policy for policy in results["policies"] if _missed(results["over_seeds"][policy])]
    return f"Not reached in every seed: {', '.join(f'{p} ({to_target(results, p)})' for p in never)}." if never else ""


def _missed(over: Mapping[str, Any]) -> bool:
    return bool(over["targets"]) and over["reached"] < over["targets"]


def _rows(results: Results, measure: Measure) -> Iterator[DotRow]:
    for policy in results["policies"]:
        over = results["over_seeds"][policy].get(measure.key)
        if over is None:
            continue
        found = results["differences"].get(policy, {}).get(measure.key)
        kind = verdict(measure, found)
        said = signed(measure, found["mean"]) + ("?" if kind in PERHAPS else "") if found and kind != "same" else ""
        values = values_of(results["runs"], policy, measure.key)
        yield DotRow(policy, color(results, policy), over["mean"], over["low"], over["high"], values, kind, said)


def _baseline_mean(results: Results, measure: Measure) -> float | None:
    over = results["over_seeds"][results["baseline"]].get(measure.key)
    return None if over is None else float(over["mean"])


# Tables ----------------------------------------------------------------------------------------------------------------


def _tables(results: Results) -> Markup:
    quality = (*JUDGED, *(measure for measure in OTHERS if measure.key == "calibration"))
    return section("Figures", _table(results, quality), _table(results, WORK),
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
    if measure is TO_TARGET and each is None:
        return to_target(results, policy)
    if each is None:
        return "–"
    told = measure.text(each["mean"])
    if each["low"] is None or measure.text(each["low"]) == measure.text(each["high"]):
        return told
    low, high = (measure.text(max(0.0, bound)) for bound in (each["low"], each["high"]))
    return tag("span", told, tag("span", f"{low} – {high}", class_="span"), class_="verdict")


def _runs(results: Results) -> Markup:
    heads = (
        "run",
        "policy",
        "seed>",
        "wall clock>",
        "start>",
        "to baseline's AUC>",
        "AUC>",
        "log loss>",
        "calibration>",
        "directory",
    )
    rows = []
    for run in results["runs"]:
        quality = ["–" if run[key] is None else four(run[key]) for key in ("auc", "logloss", "calibration")]
        reached = "–" if run["seconds_to_target"] is None else duration(run["seconds_to_target"])
        times = (duration(run["seconds"]), duration(run["start_seconds"]), reached)
        rows.append(
            (str(run["order"]), run["policy"], str(run["seed"]), *times, *quality, tag("code", run["directory"]))
        )
    note = f"Numbered in the order in which they were planned: a seed after the other.{_waiting(results)}"
    return section("Runs", table(heads, rows), note=note)


def _waiting(results: Results) -> str:
    seeds = sorted({str(run["seed"]) for run in results["runs"] if not run["counted"]})
    return f" Not counted yet, as other policies have still to run: seed {', '.join(seeds)}." if seeds else ""


def _failed(results: Results) -> Markup:
    parts = []
    for run in results["failed"]:
        head = tag(
            "p", tag("b", f"{run['policy']}, seed {run['seed']}"), f": {run['why']} after {duration(run['seconds'])}"
        )
        parts.append(tag("div", head, tag("pre", "\n".join(run["last_lines"])), class_="card failed-run"))
    return section("Failed runs", *parts, note="Left out of all figures. The same command makes them again.")


def _conditions(results: Results) -> Markup:
    held = results["conditions"]
    told = [tag("p", note) for note in notes(results)]
    rows = [
        (key, exact_size(value) if key.endswith("_bytes") and isinstance(value, int) else str(value))
        for key, value in held.items()
    ]
    rows = [(key, size(held[key]) if key == "size of the data" else value) for key, value in rows]
    every = tag(
        "details", tag("summary", "Settings and versions, the same for all runs"), table(("name", "value"), rows)
    )
    return section("How to read this", tag("div", *told, every, class_="card words"))
