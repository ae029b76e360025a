"""The recorded session in short: a spike in the data spoils a run, and a rule of the watchdog keeps it from that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.config.tree import load_config
from adaptive_rec.run.training_run import TrainingRun
from benchmarks.spike import CONDITION, SETTINGS, made_up_lines, spoilt, write_data

BATCH, FIRST_STEP, STEPS = 64, 100, 10
SMALL = [
    "run.device=cpu", "run.threads=1", f"run.batch_size={BATCH}", "model.embedding_dim=4", "model.bottom_mlp=[16]",
    "model.top_mlp=[16]", "knobs.hot_budget_bytes=64KiB", "watch.max_rollbacks=20",
]  # fmt: skip
RULE = f"{CONDITION}: rollback skipping data with lr_factor*=0.98"


def train(folder: Path, name: str, data: str, *rules: str, **how: Any) -> TrainingRun:
    preset = [setting.removeprefix("--set=") for setting in SETTINGS]
    settings = [*preset, *SMALL, f"data.source={folder / data}", f"watch.rules={list(rules)}"]
    run = TrainingRun(load_config("criteo_sample", {}, settings), folder / name, **how)
    for _ in run.events():
        pass
    run.finish()
    return run


def auc(run: TrainingRun) -> float:
    return float(json.loads((run.out / "summary.json").read_text())["eval"]["auc"])


def rows_of(run: TrainingRun) -> list[Any]:
    store = run.runtime.store
    return [part for table in range(len(store.space.tables)) for part in store.export_table(table)]


def test_only_the_lines_of_the_spike_are_spoilt() -> None:
    lines = made_up_lines(30)
    found = list(spoilt(lines, 10, 5))
    assert [number for number, (a, b) in enumerate(zip(lines, found, strict=True)) if a != b] == [10, 11, 12, 13, 14]
    assert {a[:1] + b[:1] for a, b in zip(lines[10:15], found[10:15], strict=True)} <= {b"01", b"10"}
    assert all(a.split(b"\t")[14:] == b.split(b"\t")[14:] for a, b in zip(lines, found, strict=True))


def test_a_rule_keeps_a_run_from_what_a_spike_does_to_it(tmp_path: Path) -> None:
    write_data(tmp_path, made_up_lines(16_000), FIRST_STEP * BATCH, STEPS * BATCH)
    clean, hit = train(tmp_path, "clean", "clean.tsv"), train(tmp_path, "hit", "spike.tsv")
    watched = train(tmp_path, "watched", "spike.tsv", RULE)
    assert auc(watched) > auc(clean) - 0.005
    assert auc(hit) < auc(watched) - 0.005
    events = [json.loads(line) for line in (watched.out / "events.jsonl").read_text().splitlines()]
    left_out = sum(event["details"]["samples"] for event in events if event["kind"] == "left_out")
    assert STEPS * BATCH <= left_out <= 2 * STEPS * BATCH
    again = train(tmp_path, "again", "spike.tsv", RULE, replay=watched.out)
    assert all(np.array_equal(a, b) for a, b in zip(rows_of(watched), rows_of(again), strict=True))
