"""Results as bars and as rows for `docs/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.common.results import bar, bar_rows
from benchmarks.common.statistics import ratio_of_medians

Found = dict[str, Any]
"""Cells by name: what each left."""

FLOOR_BARS = (
    ("kaggle-fp32", "hybrid", "floor", 1.08), ("kaggle-fp32", "hotline", "floor", 1.05),
    ("kaggle-fp32", "hotline split", "floor split", 1.05), ("kaggle-bf16", "hybrid", "floor", 1.15),
)  # fmt: skip
RIVAL_BARS = (
    ("kaggle-fp32", "hybrid", 1.08), ("kaggle-bf16", "hybrid", 1.2), ("mlperf-fp32", "hybrid", 1.08),
    ("mlperf-bf16", "hybrid", 1.2), ("criteo", "hybrid", 1.08),
    ("embedding-kaggle", "ours", 5.0), ("embedding-mlperf", "ours", 1.15),
)  # fmt: skip
RIVALS = ("FBGEMM", "TorchRec")
DLRM_BARS = (
    ("dlrm-fp32", "", 1.08),
    ("dlrm-fp32", " compiled", 1.08),
    ("dlrm-bf16", "", 1.2),
    ("dlrm-bf16", " compiled", 1.2),
)
"""TorchRec's DLRM and ours, both eager or both compiled."""
SKETCH_BOUND, ROWS_BOUND, DROP_BOUND, FREEZE_BOUND, PREFETCH_BOUND = 80e6, 1.5, 0.9, 0.8, 0.98


def runs_of(found: Found, cell: str) -> dict[str, Any]:
    """A cell's contestants; none where it was not measured."""
    runs: dict[str, Any] = found.get(cell, {}).get("result", {}).get("runs", {})
    return runs


# Bars ----------------------------------------------------------------------------------------------------------------


def bars(found: Found) -> list[dict[str, Any]]:
    """Every bar that the results say something about."""
    return [
        *_floor_bars(found), *_rival_bars(found), *_dlrm_bars(found), *_sketch_bar(found), *_rows_bar(found),
        *_skipping_bars(found), *_prefetch_bar(found),
    ]  # fmt: skip


def _of(what: str, over: Any, under: Any, bound: float, at_least: bool, paired: bool = True) -> dict[str, Any]:
    """The bar of a ratio of medians."""
    ratio = ratio_of_medians(over["seconds"], under["seconds"], paired)
    return bar(what, ratio["ratio"], bound, at_least, [ratio["low"], ratio["high"]])


def _floor_bars(found: Found) -> Iterator[dict[str, Any]]:
    for cell, mine, floor, bound in FLOOR_BARS:
        runs = runs_of(found, cell)
        if mine in runs and floor in runs:
            yield _of(f"{mine} / {floor}, {cell}", runs[mine], runs[floor], bound, at_least=False)


def _rival_bars(found: Found) -> Iterator[dict[str, Any]]:
    """Each rival as it is quickest: in any of its forms, its threads asleep or busy while they wait."""
    for cell, mine, bound in RIVAL_BARS:
        runs, waiting = runs_of(found, cell), runs_of(found, f"{cell}-waiting")
        for rival in RIVALS:
            forms = [(name, run, True) for name, run in runs.items() if name.startswith(rival)]
            forms += [(f"{name} waiting busily", run, False) for name, run in waiting.items() if name.startswith(rival)]
            if forms and mine in runs:
                name, run, paired = min(forms, key=lambda form: form[1]["median"])
                yield _of(f"{name} / {mine}, {cell}", run, runs[mine], bound, True, paired)


def _dlrm_bars(found: Found) -> Iterator[dict[str, Any]]:
    for cell, how, bound in DLRM_BARS:
        runs, mine, theirs = runs_of(found, cell), f"hybrid{how}", f"TorchRec's DLRM{how}"
        if mine in runs and theirs in runs:
            yield _of(f"{theirs} / {mine}, {cell}", runs[theirs], runs[mine], bound, at_least=True)


def _sketch_bar(found: Found) -> Iterator[dict[str, Any]]:
    run = runs_of(found, "sketch").get("ours 2^16")
    if run:
        lookups = {"seconds": [run["facts"]["lookups"]] * len(run["seconds"])}
        yield _of("lookups counted a second on one core, 2^16, sketch", lookups, run, SKETCH_BOUND, True)


def _rows_bar(found: Found) -> Iterator[dict[str, Any]]:
    """Measured in processes of their own, so each over its own floor: the machine may have been slower for one of them."""
    most, least = (runs_of(found, f"rows-{millions}m") for millions in (200, 1))
    if most and least:
        over, under = (ratio_of_medians(runs["hybrid"]["seconds"], runs["floor"]["seconds"]) for runs in (most, least))
        interval = [over["low"] / under["high"], over["high"] / under["low"]]
        what = "step with 200 M rows / with 1 M, each over its dense floor, rows"
        yield bar(what, over["ratio"] / under["ratio"], ROWS_BOUND, False, interval)


def _skipping_bars(found: Found) -> Iterator[dict[str, Any]]:
    dropping, freezing = runs_of(found, "skipping"), runs_of(found, "freezing")
    if dropping:
        gained = dropping["dropping"]["gained"]
        share = 1 - sum(gained["samples_trained"]) / sum(gained["samples_seen"])
        what = f"time saved / share of samples dropped ({share:.0%}), skipping"
        yield from _cut(what, dropping["dropping"], dropping["no skipping"], share, DROP_BOUND)
    if freezing:
        share = freezing["half frozen"]["facts"]["frozen"]
        what = f"update time saved / share of rows frozen ({share:.0%}), freezing"
        yield from _cut(what, freezing["half frozen"], freezing["all rows"], share, FREEZE_BOUND)


def _cut(what: str, less: Any, whole: Any, share: float, bound: float) -> Iterator[dict[str, Any]]:
    ratio = ratio_of_medians(less["seconds"], whole["seconds"])
    figure, *interval = ((1 - ratio[key]) / share if share else 0.0 for key in ("ratio", "high", "low"))
    yield bar(what, figure, bound, True, interval)


def _prefetch_bar(found: Found) -> Iterator[dict[str, Any]]:
    runs = runs_of(found, "prefetching")
    if runs:
        what = "speed with prefetching / without, prefetching"
        yield _of(what, runs["without prefetching"], runs["hybrid"], PREFETCH_BOUND, at_least=True)


def bar_line(one: dict[str, Any]) -> str:
    sign, (low, high) = "≥" if one["at_least"] else "≤", one["interval"]
    verdict = "pass" if one["met"] else "FAIL"
    return f"{verdict}    {one['what']}: {one['figure']:.4g} ({low:.4g}-{high:.4g}), bar {sign} {one['bound']:g}"


# What went wrong -----------------------------------------------------------------------------------------------------


def absences(cell: dict[str, Any]) -> dict[str, str]:
    """Who took no part and why; the empty name is the whole cell."""
    whole = {"": cell["absent"]} if "absent" in cell else {}
    return {**whole, **cell.get("result", {}).get("absent", {})}


def failures(found: Found) -> list[str]:
    wrong = [name for name, cell in found.items() if "error" in cell]
    disagree = [
        f"{name} disagrees ({check['check']})"
        for name, cell in found.items() for check in cell.get("result", {}).get("checks", []) if not check["passed"]
    ]  # fmt: skip
    return wrong + disagree


def line(name: str, cell: dict[str, Any]) -> str:
    """A cell in a line, as it ends."""
    if "result" not in cell:
        return f"{name}: {cell.get('absent') or cell['error'].splitlines()[0]}"
    medians = ", ".join(f"{run} {1e3 * found['median']:.2f}" for run, found in cell["result"]["runs"].items())
    wrong = sum(not check["passed"] for check in cell["result"]["checks"])
    agree = (
        f"{len(cell['result']['checks'])} checks, {wrong} failed" if cell["result"]["checks"] else "nothing to compare"
    )
    return f"{name}: ms: {medians}; {agree}; {cell['took']:.0f} s, {cell['peak_bytes'] / 2**30:.1f} GiB"


# Rows ----------------------------------------------------------------------------------------------------------------


def rows(results: dict[str, Any]) -> str:
    """Markdown of everything measured."""
    about, found = results["about"], results["cells"]
    parts = [*_heading(about), *(bar_rows(results["bars"]) if results["bars"] else []), ""]
    for name, cell in found.items():
        parts += [*_cell_rows(name, cell), ""]
    return "\n".join(parts)


def _heading(about: dict[str, Any]) -> Iterator[str]:
    if not about:
        return
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    if about["rehearsal"]:
        yield "**A rehearsal on tiny shapes: no figure of anything.**\n"
    yield (
        f"`{about['command']}`, {about['date']}, commit {about['commit']}, {about['seconds']:.0f} s. {about['processor']}, "
        f"{about['cores']} cores, {about['host_bytes'] / 2**30:.0f} GiB. {versions}.\n"
    )


def _cell_rows(name: str, cell: dict[str, Any]) -> Iterator[str]:
    about = cell["cell"]
    yield f"### {name}\n"
    if "result" not in cell:
        yield f"Not measured: {cell.get('absent') or cell['error'].splitlines()[0]}."
        return
    result, waiting = cell["result"], "GOMP_SPINCOUNT=1000" if about["briefly"] else "OpenMP as by default"
    yield f"{about['about']}. {waiting}; {result['rounds']} rounds, {result['steps']} steps a turn.\n"
    yield from _table(name, result)
    if result["checks"]:
        worst = max(result["checks"], key=lambda check: check["difference"] / check["bound"])
        wrong = [check["check"] for check in result["checks"] if not check["passed"]]
        told = f"**disagree: {'; '.join(wrong)}**" if wrong else "agree"
        nearest = f"{worst['check']}, {worst['difference']:.2g} of {worst['bound']:g}"
        yield f"\nResults {told} ({len(result['checks'])} checks; nearest to its bound: {nearest})."
    for who, why in result["absent"].items():
        yield f"\nAbsent: {who}: {why}."


def _table(name: str, result: dict[str, Any]) -> Iterator[str]:
    runs = result["runs"]
    base = next((run for run in ("floor", "ours") if run in runs), next(iter(runs)))
    stages = [stage for stage in STAGE_NAMES if any(stage in run["stages"] for run in runs.values())]
    rates = any(
        "lookups" in run["facts"] or "rows" in run["facts"] and "about" in run["facts"] for run in runs.values()
    )
    heads = [
        "run",
        "ms, median (mean)",
        f"of {base} (95 %)",
        *([] if not rates else ["M/s"]),
        *(f"{stage}, ms" for stage in stages),
    ]
    yield f"| {' | '.join(heads)} | what |\n" + "|---" * (len(heads) + 1) + "|"
    for run, line in runs.items():
        ratio = ratio_of_medians(line["seconds"], runs[base]["seconds"])
        cells = [run, f"{1e3 * line['median']:.3f} ({1e3 * line['mean']:.3f})",
                 "1" if run == base else f"{ratio['ratio']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f})"]  # fmt: skip
        if rates:
            count = line["facts"].get("lookups", line["facts"].get("rows", 0))
            cells.append(f"{count / line['median'] / 1e6:.2f}")
        cells += [f"{1e3 * line['stages'][stage]:.3f}" if stage in line["stages"] else "" for stage in stages]
        yield f"| {' | '.join(cells)} | {what(line['facts'])} |"


STAGE_NAMES = (
    "distinct rows",
    "rows read",
    "dense",
    "dense step",
    "rows updated",
    "waiting",
    "planning",
    "tracking",
    "the rest",
)


def what(facts: dict[str, Any]) -> str:
    def told(value: Any) -> str:
        return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

    return "; ".join(told(value) if name == "about" else f"{name} {told(value)}" for name, value in facts.items())
