"""The recorded session in short: a spike in the data spoils a run, and a rule of the watchdog keeps it from that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive_rec.run.training_run import TrainingRun
from benchmarks.spike import made_up_lines, outcome, replays_alike, spoilt, train, write_data

BATCH, FIRST_STEP, STEPS = 64, 100, 10
SMALL = [
    "run.threads=1", f"run.batch_size={BATCH}", "model.embedding_dim=4", "model.bottom_mlp=[16]",
    "model.top_mlp=[16]", "knobs.hot_budget_bytes=64KiB",
]  # fmt: skip


def auc(run: TrainingRun) -> float:
    return float(json.loads((run.out / "summary.json").read_text())["eval"]["auc"])


def test_only_the_lines_of_the_spike_are_spoilt() -> None:
    lines = made_up_lines(30)
    found = list(spoilt(lines, 10, 5))
    assert [number for number, (a, b) in enumerate(zip(lines, found, strict=True)) if a != b] == [10, 11, 12, 13, 14]
    assert {a[:1] + b[:1] for a, b in zip(lines[10:15], found[10:15], strict=True)} <= {b"01", b"10"}
    assert all(a.split(b"\t")[14:] == b.split(b"\t")[14:] for a, b in zip(lines, found, strict=True))


@pytest.mark.slow
def test_a_rule_keeps_a_run_from_what_a_spike_does_to_it(tmp_path: Path) -> None:
    write_data(tmp_path, made_up_lines(16_000), FIRST_STEP * BATCH, STEPS * BATCH)
    clean, hit, watched = (train(tmp_path, name, 1, SMALL) for name in ("clean", "spike", "watched"))
    assert auc(watched) > auc(clean) - 0.005
    assert auc(hit) < auc(watched) - 0.005
    found = outcome(watched, "watched", 1)
    assert found.rollbacks > 0
    assert STEPS * BATCH <= found.left_out <= 2 * STEPS * BATCH
    assert replays_alike(tmp_path, watched, "watched", 1, SMALL)
