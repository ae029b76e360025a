"""The results of a comparison on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from adaptive_rec.cli.output import columns, show
from adaptive_rec.offline.compare.statements import disturbed, headline, statements, uneven
from adaptive_rec.offline.compare.statistics import LEAST_SEEDS
from adaptive_rec.offline.compare.tables import QUALITY_HEADS, WORK_HEADS, Results, failures, quality_rows, work_rows
from adaptive_rec.units import printable


def show_comparison(results: Results, files: Sequence[Path]) -> None:
    """Print the tables, the statements about them, and the files that hold all results."""
    parts: list[Any] = [""]
    if results["runs"]:
        parts += [columns(QUALITY_HEADS, quality_rows(results)), "", columns(WORK_HEADS, work_rows(results)), ""]
        parts += [*(Text(said, style="dim") for said in (_key(results), *uneven(results), *disturbed(results))), ""]
    parts += [Text(printable(said), style="bold") for said in headline(results)]
    for policy, said in statements(results, spans=False).items():
        parts += [Text(printable(policy)), Padding(Text(printable(said), style="dim"), (0, 0, 0, 2))]
    failed = list(failures(results, files[0].parent))
    if failed:
        parts += ["", Text("failed", style="bold red"), *(Text(printable(each)) for each in failed)]
    parts += ["", *(Text(str(file)) for file in files)]
    show(Group(*parts))


def _key(results: Results) -> str:
    parts = [f"against {results['baseline']}"]
    if any(each["seconds"]["low"] is not None for each in results["over_seeds"].values() if each["runs"]):
        parts.append("± half a 95 % interval over the seeds, * differs beyond noise, ? perhaps")
    else:
        parts.append(f"fewer than {LEAST_SEEDS} seeds, so no intervals")
    parts.append(f"AUC reached: when a run first had {results['baseline']}'s final AUC")
    return "; ".join(parts) + "."
