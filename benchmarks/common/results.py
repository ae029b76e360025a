"""Results as files, and the bars they are held against."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def say(line: str) -> None:
    print(line, flush=True)


def explain(error: BaseException) -> str:
    """Return the error in a line, then where it came from."""
    return f"{type(error).__name__}: {error}".strip() + "\n" + "".join(traceback.format_exception(error))[-3000:]


def write(path: Path, values: dict[str, Any]) -> None:
    """JSON, whole or not at all; null for what is no number."""
    from adaptive_rec.live.telemetry import to_json

    draft = path.with_suffix(".tmp")
    draft.write_text(to_json(values, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def earlier(path: Path, expected: dict[str, Any], about: dict[str, Any]) -> dict[str, Any] | None:
    """Return the complete result in a file if it has these values, and these facts of the machine and the sources."""
    try:
        old: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = all(old.get(key) == json.loads(json.dumps(value)) for key, value in expected.items())
    same = same and all(old.get("about", {}).get(key) == value for key, value in about.items())
    return old if same and "result" in old and "partial" not in old else None


def bar(what: str, figure: float, bound: float, at_least: bool, interval: list[float] | None = None) -> dict[str, Any]:
    """A figure held against its bound; `interval` is where it lies at 95 %."""
    met = bool(figure >= bound if at_least else figure <= bound)
    held = {"what": what, "figure": figure, "bound": bound, "at_least": at_least, "met": met}
    return held if interval is None else {**held, "interval": interval}


def table(lines: Sequence[dict[str, str]]) -> Iterator[str]:
    """Yield a Markdown table of lines, whose cells stand under their names."""
    for names in lines[:1]:
        yield f"| {' | '.join(names)} |\n" + "|---" * len(names) + "|"
    for line in lines:
        yield f"| {' | '.join(line.values())} |"


def interval_of(bar: dict[str, Any]) -> str:
    return "-".join(f"{value:.4g}" for value in bar.get("interval", []))


def bar_rows(found: list[dict[str, Any]]) -> Iterator[str]:
    """A Markdown table, with a column of intervals where there are any."""
    intervals = any("interval" in bar for bar in found)
    yield from table([
        {
            "bar": bar["what"], "figure": f"{bar['figure']:.4g}", **({"95 %": interval_of(bar)} if intervals else {}),
            "bound": f"{'≥' if bar['at_least'] else '≤'} {bar['bound']:g}", "met": "yes" if bar["met"] else "**no**",
        } for bar in found
    ])  # fmt: skip
