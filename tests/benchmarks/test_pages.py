"""What docs/benchmarks.md says is what docs/measurements.md says."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_figure_of_the_benchmarks_is_in_the_measurements() -> None:
    chosen, whole = ((DOCS / name).read_text(encoding="utf-8") for name in ("benchmarks.md", "measurements.md"))
    figures = {figure for line in chosen.splitlines() for figure in re.findall(r"\d+(?:[.,]\d+)*", line)}
    assert len(figures) > 200
    assert sorted(figure for figure in figures if figure not in whole) == []
