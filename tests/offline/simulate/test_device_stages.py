"""A step on a device by its stages: added up by hand, from stated figures, and as the command shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from adaptive_rec.errors import ConfigError
from adaptive_rec.offline.forecast.hardware import DeviceCosts, read_hardware, shipped
from adaptive_rec.offline.forecast.lane import StepCounts
from adaptive_rec.offline.forecast.predict import stages

COSTS = DeviceCosts(
    launch_us=5, triton_launch_us=20, copy_us=10, event_us=2, python_us=100, kernel_us=2, up_gbs=10, down_gbs=5, hbm_gbs=1000,
    hbm_efficiency=0.5, dram_gbs=20, tflops=10, classify_ns=20, classify_threads=4,
)  # fmt: skip
TALLY = StepCounts(steps=2, samples=2000, lookups=200_000, rows=20_000, cold_row_bytes=2_000_000)


def test_the_stages_of_a_step_are_their_parts() -> None:
    """For one of two steps: 1000 samples, 100,000 lookups, 10,000 rows of dim 16, 1 MB of cold rows."""
    found = stages(TALLY, 16, 1e6, COSTS)
    assert found.training_thread == pytest.approx(1e-6 * (8 * 5 + 3 * 20 + 2.5 * 10 + 4.5 * 2 + 100))
    assert found.classify == pytest.approx(100_000 * 20e-9 / 4)
    assert found.staging == pytest.approx(6e6 / 20e9)
    assert found.up == pytest.approx(20e-6 + (1e6 + 16 * 100_000 + 20 * 10_000) / 10e9)
    assert found.down == pytest.approx(10e-6 + 1e6 / 5e9)
    rows = 64 * (2 * 100_000 + 4 * 10_000)
    assert found.device == pytest.approx(100 * 2e-6 + 6e6 * 1000 / 10e12 + rows / 0.5e12)
    assert found.step(prefetches=True) == found.device
    assert found.step(prefetches=False) == pytest.approx(sum(vars(found).values()))
    sorts = stages(TALLY, 16, 1e6, COSTS.model_copy(update={"classify_ns": 0.0}))
    assert sorts.classify == 0
    assert sorts.device == pytest.approx(found.device + 4 * 2 * 8 * 100_000 / 0.5e12)
    assert sorts.up == pytest.approx(20e-6 + (1e6 + 4 * 100_000) / 10e9)


def test_shipped_profiles_give_the_source_of_every_figure() -> None:
    for name, path in shipped().items():
        with pytest.raises(ConfigError, match=r"at least one \[\[rows\]\] section"):
            read_hardware(Path(name))  # for several processes, which need costs that were measured
        profile = read_hardware(Path(name), stated=True)
        section = path.read_text(encoding="utf-8").partition("[device]")[2]
        sources = dict(re.findall(r"^(\w+) = [\d.]+ +# (.+)$", section, re.MULTILINE))
        assert set(sources) == set(DeviceCosts.model_fields)
        assert profile.device.up_gbs > 0


def test_the_command_shows_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "tiny", "--policies", "hotline", "--budgets", "10%", "--steps", "20", "--hardware", "h200"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "NVIDIA H200, stated figures" in shown
    assert "training thread" in shown
    assert main([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["predicted_step_seconds"] == max(found["predicted_stage_seconds"].values())


def test_a_policy_whose_stages_come_in_turn_is_bound_by_all(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "tiny", "--policies", "hotline,xdl", "--budgets", "10%", "--steps", "20", "--hardware", "h200"]
    assert main(words) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.endswith(("training thread", "all, in turn"))]
    assert [(line.split()[0], line.split("  ")[-1]) for line in shown] == [
        ("hotline", "training thread"), ("xdl", "all, in turn")
    ]  # fmt: skip
