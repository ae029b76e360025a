"""The results of a benchmark as lines, bars and rows for `docs/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.common.results import bar, bar_rows, interval_of, table
from benchmarks.common.statistics import ratio_of_medians

Found = dict[str, Any]
"""The results of cells by their names."""


def runs_of(found: Found, cell: str) -> dict[str, Any]:
    """A cell's contestants; none where it was not measured."""
    runs: dict[str, Any] = found.get(cell, {}).get("result", {}).get("runs", {})
    return runs


def ratio_bar(what: str, over: Any, under: Any, bound: float, at_least: bool) -> dict[str, Any]:
    """The bar of a ratio of medians."""
    ratio = ratio_of_medians(over["seconds"], under["seconds"])
    return bar(what, ratio["ratio"], bound, at_least, [ratio["low"], ratio["high"]])


def bar_line(one: dict[str, Any]) -> str:
    sign, verdict = "≥" if one["at_least"] else "≤", "pass" if one["met"] else "FAIL"
    interval = f" ({interval_of(one)})" if "interval" in one else ""
    return f"{verdict}    {one['what']}: {one['figure']:.4g}{interval}, bar {sign} {one['bound']:g}"


# What went wrong -----------------------------------------------------------------------------------------------------


def absences(cell: dict[str, Any]) -> dict[str, str]:
    """Who took no part and why; the empty name is the whole cell."""
    whole = {"": cell["absent"]} if "absent" in cell else {}
    return {**whole, **cell.get("result", {}).get("absent", {})}


def failures(found: Found) -> list[str]:
    """Cells that fell or were cut short, contestants that fell, and results that disagree."""
    wrong = [name for name, cell in found.items() if "error" in cell or cell.get("result", {}).get("passed") is False]
    wrong += [f"{name}: cut short" for name, cell in found.items() if "cut_short" in cell]
    wrong += [f"{name}: {run}" for name, cell in found.items() for run in cell.get("result", {}).get("failed", {})]
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
    parts = [*heading(about), *(bar_rows(results["bars"]) if results["bars"] else []), ""]
    for name, cell in found.items():
        parts += [*_cell_rows(name, cell), ""]
    return "\n".join(parts)


def heading(about: dict[str, Any]) -> Iterator[str]:
    """What was run, when, and on which machine."""
    if "versions" not in about:  # no cell has ended yet that looked at the machine
        return
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    if about["rehearsal"]:
        yield "**A rehearsal on tiny shapes: no figure of anything.**\n"
    gpu = f"{about['gpu']} ({about['gpu_bytes'] / 2**30:.0f} GiB, driver {about['driver']}), " if "gpu" in about else ""
    yield (
        f"`{about['command']}`, {about['date']}, commit {about['commit']}, {about['seconds']:.0f} s. {gpu}{about['processor']}, "
        f"{about['cores']} cores, {about['host_bytes'] / 2**30:.0f} GiB. {versions}.\n"
    )


def _cell_rows(name: str, cell: dict[str, Any]) -> Iterator[str]:
    about = cell["cell"]
    yield f"### {name}\n"
    if "result" not in cell:
        yield f"Not measured: {cell.get('absent') or cell['error'].splitlines()[0]}."
        return
    result, waiting = cell["result"], "GOMP_SPINCOUNT=1000" if about["briefly"] else "OpenMP as by default"
    clock = f", {result['clock']}" if "clock" in result else ""
    yield f"{about['about']}. {waiting}; {result['rounds']} rounds, {result['steps']} steps a turn{clock}.\n"
    if result["runs"]:
        yield from _table(result)
    if result["checks"]:
        worst = max(result["checks"], key=lambda check: check["difference"] / check["bound"])
        wrong = [check["check"] for check in result["checks"] if not check["passed"]]
        told = f"**disagree: {'; '.join(wrong)}**" if wrong else "agree"
        nearest = f"{worst['check']}, {worst['difference']:.2g} of {worst['bound']:g}"
        yield f"\nResults {told} ({len(result['checks'])} checks; nearest to its bound: {nearest})."
    for who, why in result["absent"].items():
        yield f"\nAbsent: {who}: {why}."


def _table(result: dict[str, Any]) -> Iterator[str]:
    runs = result["runs"]
    base = next((run for run in BASES if run in runs), next(iter(runs), ""))
    stages = [stage for stage in STAGE_NAMES if any(stage in run["stages"] for run in runs.values())]
    yield from table([_line(run, line, base, runs[base], stages) for run, line in runs.items()])


def _line(run: str, line: dict[str, Any], base: str, of: dict[str, Any], stages: list[str]) -> dict[str, str]:
    ratio = ratio_of_medians(line["seconds"], of["seconds"])
    return {
        "run": run,
        "ms, median (mean)": f"{1e3 * line['median']:.3f} ({1e3 * line['mean']:.3f})",
        f"of {base} (95 %)": "1" if run == base else f"{ratio['ratio']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f})",
        **{f"{stage}, ms": f"{1e3 * line['stages'][stage]:.3f}" if stage in line["stages"] else "" for stage in stages},
        "what": what(line["facts"]),
    }


BASES = ("floor", "all in memory", "ours")
"""Whose time those of the others are divided by: the first of these that took part, or else the first contestant."""

STAGE_NAMES = (
    "distinct rows", "rows read", "dense", "dense step", "rows updated", "waiting", "planning", "tracking", "the rest",
)  # fmt: skip


def what(facts: dict[str, Any]) -> str:
    def told(value: Any) -> str:
        return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

    return "; ".join(told(value) if name == "about" else f"{name} {told(value)}" for name, value in facts.items())
