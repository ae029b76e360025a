"""Results as files, and the bars they are held against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def say(line: str) -> None:
    print(line, flush=True)


def write(path: Path, values: dict[str, Any]) -> None:
    """JSON, whole or not at all; null for what is no number."""
    from adaptive_rec.live.telemetry import to_json

    draft = path.with_suffix(".tmp")
    draft.write_text(to_json(values, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def bar(what: str, figure: float, bound: float, at_least: bool, interval: list[float] | None = None) -> dict[str, Any]:
    """A figure held against its bound; `interval` is where it lies at 95 %."""
    met = bool(figure >= bound if at_least else figure <= bound)
    told = {"what": what, "figure": figure, "bound": bound, "at_least": at_least, "met": met}
    return told if interval is None else {**told, "interval": interval}


def bar_rows(found: list[dict[str, Any]]) -> Iterator[str]:
    """A Markdown table, with a column of intervals where there are any."""
    intervals = any("interval" in bar for bar in found)
    yield (
        "| bar | figure | 95 % | bound | met |\n|---|---|---|---|---|"
        if intervals
        else ("| bar | figure | bound | met |\n|---|---|---|---|")
    )
    for one in found:
        sign = "≥" if one["at_least"] else "≤"
        low_high = "-".join(f"{value:.4g}" for value in one.get("interval", []))
        middle = f"{one['figure']:.4g} | {low_high}" if intervals else f"{one['figure']:.4g}"
        yield f"| {one['what']} | {middle} | {sign} {one['bound']:g} | {'yes' if one['met'] else '**no**'} |"
