"""Names, kinds, units and help of the figures of a run do not change: golden_figures.json has them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_type_hints

from prometheus_client.parser import text_string_to_metric_families

from adaptive_rec.live.rank_report import RankReport, Straggler
from adaptive_rec.live.telemetry import Evaluation, Quality, Ranking, Snapshot
from adaptive_rec.service import lines
from adaptive_rec.service.metric_history import COLUMNS
from adaptive_rec.service.openapi import openapi_text
from adaptive_rec.tracker.values import SnapshotFigures, of_evaluation

from .conftest import on_a_disk, ranks

GOLDEN = Path(__file__).parent / "golden_figures.json"
MODELS = (
    "Status", "Stats", "Ratios", "TableStats", "DiskStats", "KeyStats", "SkippingStats", "RankStatus", "Straggler", "Quality",
)  # fmt: skip
COUNTERS = (
    "samples_seen", "samples_trained", "samples_popular", "lookups", "lookups_hot", "row_updates", "row_updates_skipped",
    "hot_row_updates", "migrated_rows", "host_to_device_bytes", "device_to_host_bytes",
    *(f"disk_rows_{name}" for name in ("ahead", "again", "read", "found", "drawn", "written", "moved")),
)  # fmt: skip


def metrics(client: Any, run: Any) -> dict[str, list[str]]:
    stale = {"stale_threshold": 0.25, "stale_agreement": 0.9}
    run.report(60, ranks=ranks(0.1, 0.2), dense_lr=0.1, embedding_lr=0.1, **stale, **on_a_disk(60))
    found = text_string_to_metric_families(client.get("/metrics").text)
    return {family.name: [family.type, family.documentation] for family in found}


def tags() -> list[str]:
    every: dict[str, Any] = dict.fromkeys(get_type_hints(Snapshot), 0.5)
    every |= {"totals": dict.fromkeys(COUNTERS, 1), "tables": {"lookups": [2], "lookups_hot": [1]}}
    ranking = Ranking(3, 2, 1, {"recall@20": 0.5})
    quality = Quality(**{**dict.fromkeys(get_type_hints(Quality), 1), "ranking": ranking})
    return sorted([*SnapshotFigures(["C1"]).of_snapshot(Snapshot(**every)), *of_evaluation(Evaluation(1, quality))])


def models() -> dict[str, Any]:
    found = json.loads(openapi_text())["components"]["schemas"]
    return {name: {**found[name]["properties"], "required": found[name].get("required", [])} for name in MODELS}


def line_shapes() -> dict[str, Any]:
    shapes = (
        lines.SnapshotLine, lines.SnapshotDisk, lines.SnapshotKeys, lines.SnapshotSkipping, lines.SnapshotRank,
        lines.EvaluationLine,
    )  # fmt: skip
    return {
        shape.__name__: {
            name: [json.loads(json.dumps(about)), name in shape.model_json_schema().get("required", [])]
            for name, about in shape.model_json_schema()["properties"].items()
        }
        for shape in shapes
    }


def written() -> dict[str, list[str]]:
    return {each.__name__: sorted(get_type_hints(each)) for each in (Snapshot, RankReport, Straggler)}


def test_names_kinds_and_help_are_those_of_before(client: Any, run: Any) -> None:
    """A new figure adds to the file; what is there stays."""
    now = {
        "metrics": metrics(client, run), "tags": tags(), "models": models(), "lines": line_shapes(), "written": written(),
        "columns": list(COLUMNS),
    }  # fmt: skip
    before = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for part, found in now.items():
        assert json.loads(json.dumps(found)) == before[part], part


def test_a_snapshot_without_a_part_has_no_such_field() -> None:
    every: dict[str, Any] = dict.fromkeys(get_type_hints(Snapshot), math.nan)
    without = {"straggler": None, "disk": None, "keys": None, "skipping": None, "interim": False}
    line = Snapshot(**{**every, "ranks": (), **without}).as_dict()
    assert not line.keys() & {"ranks", "straggler", "disk", "keys", "skipping", "interim"}
