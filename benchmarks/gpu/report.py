"""Results as rows for `docs/benchmarks.md`, the bars they are held against, and how far a step is from the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.common.report import heading
from benchmarks.common.results import bar, bar_rows, table
from benchmarks.gpu.plan import RARELY

MIB = 1 << 20
GROWTH_BOUND_BYTES = MIB
"""What "no growth" leaves to the allocator's rounding."""


class NoFigure(Exception):
    """These results are no figures of a GPU."""


def rows(results: dict[str, Any]) -> str:
    """Markdown of everything measured. Refused for a rehearsal, without a GPU, and where the tests have not passed."""
    about, cells = results["about"], results["cells"]
    if about["rehearsal"]:
        raise NoFigure(f"a rehearsal ({about['rehearsal']}) gives no rows: its figures are of no GPU")
    if not about.get("gpu"):
        raise NoFigure("results without a GPU give no rows")
    tests = cells.get("tests", {}).get("result")
    if tests is None or not tests["ended"]:
        raise NoFigure("no rows: the tests that need a GPU were not run, or not to their end")
    if not tests["passed"]:
        raise NoFigure(f"no rows: tests failed: {'; '.join(list(tests['failed'])[:5]) or 'pytest could not run'}")
    parts = [*heading(about), *bar_rows(bars(cells)), ""]
    kinds: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
        "tests": tests_rows, "steps": steps_rows, "ceilings": ceiling_rows, "timeline": timeline_rows, "memory": memory_rows,
        "comparison": lambda result: comparison_rows(cell["cell"], result, cells),
    }  # fmt: skip
    for name, cell in cells.items():
        kind = cell["cell"]["kind"]
        if "result" not in cell:
            parts += [f"### {name}\n", f"Not measured: {cell.get('absent') or cell['error'].splitlines()[0]}\n"]
        elif kind in kinds:
            heads = {"tests": "Tests", "ceilings": "Ceilings of the machine"}
            parts += [f"### {heads.get(kind, name)}\n", *kinds[kind](cell["result"]), ""]
        if "cut_short" in cell:
            parts.append(f"Cut short, these are the turns before: {cell['cut_short']}.\n")
    return "\n".join(parts)


def joined(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Results of several calls as one: they must come from the same kind of machine, versions and sources."""
    first = several[0]
    for other in several[1:]:
        for key in ("gpu", "versions", "fingerprint", "rehearsal"):
            one, another = (results["about"].get(key) for results in (first, other))
            if one != another:
                raise NoFigure(f"results of different runs cannot be joined: {key} is {one!r} and {another!r}")
    cells = {name: cell for results in several for name, cell in results["cells"].items()}
    about = {
        **first["about"],
        "command": "; ".join(results["about"]["command"] for results in several),
        "seconds": sum(results["about"]["seconds"] for results in several),
    }
    return {"about": about, "cells": cells}


# Bars ----------------------------------------------------------------------------------------------------------------


def bars(cells: dict[str, Any]) -> list[dict[str, Any]]:
    """Every bar that the results say something about: what, figure, bound, met."""
    found: list[dict[str, Any]] = []
    kinds = {"comparison": _comparison_bars, "tests": _tests_bars}
    for name, cell in cells.items():
        if "result" in cell:
            found += kinds.get(cell["cell"]["kind"], _other_bars)(name, cell)
    return found


def _tests_bars(name: str, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    result = cell["result"]
    yield bar(f"failures of {result['tests']} tests that need a GPU", len(result["failed"]), 0, False)


def _comparison_bars(name: str, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    about, ratios = cell["cell"], cell["result"]["ratios"]
    if about["rows_ratio"] == 0.1 and about["preloaded"] and about["rule"] == "rowwise_adagrad" and not about["budget_rule"]:
        for run in ("hotline/never", RARELY):
            for rival, bound in (("plain", 3.0), ("device_only", 0.9), ("fbgemm", 1.2)):
                if rival in ratios.get(run, {}):
                    yield bar(f"{run} / {rival}, {name}", ratios[run][rival], bound, True)
    if about["budget_rule"] and "hotline+lazy_adam" in ratios.get("hotline+sgd", {}):
        figure = ratios["hotline+sgd"]["hotline+lazy_adam"]
        yield bar(f"step of Adam / step of SGD, budget of the same bytes, {name}", figure, 1.3, False)


def _other_bars(name: str, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for run, result in cell["result"].get("runs", {}).items():
        if "overlap_ratio" in result and run != "device_only":  # which has no cold rows
            yield bar(f"overlap of cold work and computation, {run}, {name}", result["overlap_ratio"], 0.8, True)
        if "grown_used_bytes" in result:
            what = f"growth of device memory over {result['seconds']:.0f} s, bytes, {run}, {name}"
            yield bar(what, max(result["grown_used_bytes"], result["grown_tensor_bytes"]), GROWTH_BOUND_BYTES, False)


# Tables --------------------------------------------------------------------------------------------------------------


def comparison_rows(about: dict[str, Any], result: dict[str, Any], cells: dict[str, Any]) -> Iterator[str]:
    loading = result["shape"]["loading"]
    if result["preloaded_batches"]:
        loading = f"{result['preloaded_batches']} of them in memory, round and round"
    bytes_of = f" as {about['budget_rule']} keeps them, the same bytes for all" if about["budget_rule"] else ""
    yield (
        f"{result['shape']['about']}; batch {about['batch_size']}, {about['rule']} unless named, budget "
        f"{about['rows_ratio']:.0%} of the rows{bytes_of}; batches: {loading}; {result['rounds']} rounds.\n"
    )
    yield from table([comparison_row(run, line, result, cells) for run, line in result["runs"].items()])
    yield from without_figures(result)


def without_figures(result: dict[str, Any]) -> Iterator[str]:
    """Contestants that failed or were left out, and why."""
    for why, which in (("failed", "Failed"), ("left_out", "Left out")):
        if result[why]:
            reasons = [f"{run}: {reason.splitlines()[0]}" for run, reason in result[why].items()]
            yield f"\n{which}: {'; '.join(reasons)}."


def comparison_row(run: str, line: dict[str, Any], result: dict[str, Any], cells: dict[str, Any]) -> dict[str, str]:
    """The row's cells by the names of their columns; a rival's have fewer figures."""
    low, high = line["samples_per_second_quartiles"]
    ratios = result["ratios"].get(run, {})
    floor = floor_seconds(line, result["shape"], cells)
    return {
        "run": run,
        "samples/s, median (quartiles)": f"{line['samples_per_second']:,.0f} ({low:,.0f}-{high:,.0f})",
        "ms a step, median, mean": f"{1e3 * line['seconds_per_step']:.3f}, {1e3 * line['seconds_per_step_mean']:.3f}",
        "of device_only": "1" if run == "device_only" else _or_nothing(ratios.get("device_only"), "{:.3f}"),
        "of plain": "1" if run == "plain" else _or_nothing(ratios.get("plain"), "{:.2f}"),
        "waited for the loader": f"{line['wait_ratio']:.0%}",
        **what_it_did(line),
        "floor ms": _or_nothing(floor and 1e3 * floor, "{:.3f}"),
        "of the floor": _or_nothing(floor and line["seconds_per_step"] / floor, "{:.1f}x"),
    }


def what_it_did(line: dict[str, Any]) -> dict[str, str]:
    names = (
        "steps", "hot lookups", "popular samples", "samples trained", "row updates skipped", "tier MiB (of all rows)",
        "up, down MiB a step",
    )  # fmt: skip
    step, facts, gained = line["per_step"], line["facts"], line["gained"]
    if "lookups" not in step:
        return dict.fromkeys(names, "")
    shares = (
        (gained["lookups_hot"], gained["lookups"]),
        (gained["samples_popular"], gained["samples_seen"]),
        (gained["samples_trained"], gained["samples_seen"]),
        (gained["row_updates_skipped"], gained["row_updates"] + gained["row_updates_skipped"]),
    )
    figures = [
        facts["split"],
        *(f"{part / max(1, whole):.3f}" for part, whole in shares),
        f"{facts['device_tier_bytes'] / MIB:,.0f} ({facts['hot_rows'] / facts['rows']:.1%})",
        f"{step['host_to_device_bytes'] / MIB:.2f}, {step['device_to_host_bytes'] / MIB:.2f}",
    ]
    return dict(zip(names, figures, strict=True))


def floor_seconds(line: dict[str, Any], shape: dict[str, Any], cells: dict[str, Any]) -> float | None:
    """What a step would take were its slowest part as fast as the machine can: copies, rows on the device, products."""
    ceilings = next((c["result"] for c in cells.values() if c["cell"]["kind"] == "ceilings" and "result" in c), None)
    step = line["per_step"]
    if ceilings is None or "row_updates" not in step:
        return None
    row_bytes = 4 * shape["dim"]
    on_device = row_bytes * (step["lookups"] + 2 * step["row_updates"])  # read for each lookup; read and written
    return max(
        step["host_to_device_bytes"] / ceilings["up_bytes_per_second"],
        step["device_to_host_bytes"] / ceilings["down_bytes_per_second"],
        on_device / ceilings["device_copy_bytes_per_second"],
        shape["flops_per_sample"] * step["samples_trained"] / ceilings["gemm_float32_flops_per_second"],
    )


def tests_rows(result: dict[str, Any]) -> Iterator[str]:
    yield f"{result['tests']} tests that need a GPU in {result['seconds']:.0f} s, none failed."
    yield "Skipped: " + ("; ".join(f"{name}: {why}" for name, why in result["skipped"].items()) or "none") + "."


def steps_rows(result: dict[str, Any]) -> Iterator[str]:
    for run, losses in result["losses"].items():
        yield f"{run}: {len(losses)} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}."
    yield f"Greatest relative difference {result['difference']:.2g}, bound {result['bound']:g}."


UNITS = {"bytes per second": (1e9, "GB/s"), "flops per second": (1e12, "TFLOP/s"), "seconds": (1e-6, "µs")}


def ceiling_rows(result: dict[str, Any]) -> Iterator[str]:
    lines = []
    for name, value in result.items():
        words, figure = name.replace("_", " "), str(value)
        if unit := next((unit for unit in UNITS if unit in words), ""):
            scale, sign = UNITS[unit]
            words, figure = words.replace(f" {unit}", ""), f"{value / scale:.{2 if unit == 'seconds' else 1}f} {sign}"
        lines.append({"what": words, "figure": figure})
    return table(lines)


def timeline_rows(result: dict[str, Any]) -> Iterator[str]:
    yield from table([
        {
            "run": run,
            "steps, micro-batches a step": f"{line['split']}, {line['micro_batches_per_step']:.1f}",
            "steps before": str(line["steps_before"]),
            "ms a step (under the profiler)":
                f"{1e3 * line['seconds_per_step']:.3f} ({1e3 * line['seconds_per_step_profiled']:.3f})",
            "cold work, ms": f"{1e3 * line['cold_seconds'] / line['steps']:.3f}",
            "computation, ms": f"{1e3 * line['compute_seconds'] / line['steps']:.3f}",
            "both at once, ms": f"{1e3 * line['both_seconds'] / line['steps']:.3f}",
            "overlap": f"{line['overlap_ratio']:.2f}",
        } for run, line in result["runs"].items()
    ])  # fmt: skip
    yield from without_figures(result)


def memory_rows(result: dict[str, Any]) -> Iterator[str]:
    grown = {"tensors": "tensor_bytes", "device": "used_bytes", "host": "host_bytes"}
    yield from table([
        {
            "run": run, "seconds": f"{line['seconds']:.0f}", "steps": str(line["samples"][-1]["steps"]),
            **{f"growth, {what}": f"{line[f'grown_{key}'] / MIB:.1f} MiB" for what, key in grown.items()},
        } for run, line in result["runs"].items()
    ])  # fmt: skip
    yield from without_figures(result)


def _or_nothing(value: float | None, form: str) -> str:
    return form.format(value) if value else ""
