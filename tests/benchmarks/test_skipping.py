"""The report of the study of skipping, on made-up runs: equal share, equal time, seeds that never reach the AUC."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.config.tree import load_config
from benchmarks.skipping.plan import BASELINE, POLICIES, STREAMS, settings, variants
from benchmarks.skipping.report import figures, report


def run(policy: str, seed: int, auc: float, took: float, trained: int, reached: float | None) -> dict[str, Any]:
    line = [{"processor_seconds": took * part, "auc": auc - 0.02 * (1 - part)} for part in (0.5, 1.0)]
    return {
        "policy": policy, "seed": seed, "auc": auc, "logloss": 1 - auc, "seconds": took, "processor_seconds": took,
        "samples_trained": trained, "processor_seconds_to_target": reached, "evaluations": line,
    }  # fmt: skip


@pytest.fixture
def results() -> dict[str, Any]:
    runs = []
    for seed in (1, 2):
        auc = 0.8 + seed / 100
        runs += [
            run(BASELINE, seed, auc, 10.0, 1000, 9.0),
            run("random_skip", seed, auc - 0.004, 6.0, 600, None),
            run("slipstream", seed, auc - 0.001, 7.0, 700, 6.3 if seed == 1 else None),
        ]
    return {"policies": [BASELINE, "slipstream", "random_skip"], "runs": runs}


def test_a_rule_is_compared_at_equal_share_and_at_equal_time(results: dict[str, Any]) -> None:
    found = figures(results, "slipstream")
    assert found is not None
    assert found.over_random == pytest.approx([0.002, 0.002])  # at random, 300 samples fewer cost 0.003
    assert found.over_fewer == pytest.approx([0.005, 0.005])  # after 7 s, the plain run has lost 0.006
    assert found.to_target[0] == pytest.approx(0.7)
    assert found.to_target_of_whole[0] == pytest.approx(0.63)


def test_the_table_says_in_how_many_seeds_the_auc_was_reached(tmp_path: Path, results: dict[str, Any]) -> None:
    (tmp_path / "settled").mkdir()
    (tmp_path / "settled" / "compare.json").write_text(json.dumps(results))
    table = report(tmp_path)
    row = {line.split(" | ")[1]: line for line in table.splitlines()[2:]}
    assert "| 1 of 2 seeds | 1 of 2 seeds |" in row["slipstream"]
    assert "| never | never |" in row["random_skip"]
    drawn = ElementTree.fromstring((tmp_path / "skipping.svg").read_text())
    circles = drawn.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 1 + 2 * (2 + 1) + 2  # the plain run; each seed and the mean of two others; the legend


@pytest.mark.parametrize("name", STREAMS)
def test_settings_of_every_stream_are_valid(name: str) -> None:
    stream = STREAMS[name]
    for own in ((), *variants(stream).values()):
        config = load_config(stream.preset, {}, [*settings(stream), *own])
        assert config.model.bottom_mlp == (512, 256, 64)
    assert not set(variants(stream)) & set(POLICIES)
