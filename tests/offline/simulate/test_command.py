"""`simulate` and `calibrate` as a user meets them: tables, files, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import UsageError
from adaptive_rec.offline.forecast.hardware import DiskCosts, Hardware, RowCosts, to_text
from adaptive_rec.offline.forecast.pages import simulate_page
from adaptive_rec.offline.forecast.simulation import parse_budgets, replay_policies

WORDS = ["simulate", "tiny", "--steps", "24", "--policies", "hybrid,hotline,random_skip,slipstream,fae_released"]


def made(
    *settings: str, hardware: Hardware | None = None, budgets: tuple[str, ...] = ("2KiB", "40%")
) -> dict[str, Any]:
    config = load_config("tiny", {}, ["run.steps=12", *settings])
    names = ("hybrid", "hotline", "slipstream", "random_skip")
    return replay_policies(config, None, names, budgets, hardware, None, lambda *_: None)


def test_the_command_prints_figures_and_leaves_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine, out = tmp_path / "here.toml", tmp_path / "a" / "out"
    machine.write_text(to_text(Hardware(name="made up", rows=(RowCosts(dim=8),))), encoding="utf-8")
    words = [*WORDS, "--budgets", "2KiB,16KiB", "--hardware", str(machine), "--seed", "3"]
    assert main([*words, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    written = json.loads((out / "simulate.json").read_text())
    assert written["data"]["seed"] == 3
    assert written["data"]["steps"] == 24
    assert "predicted for made up" in text
    lines = [line.split() for line in text.splitlines()]
    for one in written["results"]:
        share = f"{one['hot_lookup_ratio']:.1%}"
        assert any(line[:2] == [one["policy"], share] for line in lines)
    assert max(map(len, text.partition("suggested  ")[0].splitlines()[6:])) <= 100
    assert (out / "simulate.html").read_text().startswith("<!doctype html>")
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["counts"] for one in printed["results"]] == [one["counts"] for one in written["results"]]


def test_cold_rows_of_a_step_are_counted_where_they_lie_on_a_disk(capsys: pytest.CaptureFixture[str]) -> None:
    on_disk = ["--set", "run.host_memory=1MiB"]
    assert main([*WORDS, "--budgets", "2KiB", *on_disk]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert ["cold rows"] in [line[-1:] for line in lines if line[0] == "policy"]
    found = made(*on_disk[1:], budgets=("2KiB",), hardware=Hardware(rows=(RowCosts(dim=8),)))
    for one in found["results"]:
        counts = one["counts"]
        assert one["cold_rows_per_step"] == (counts["rows"] - counts["hot_rows"]) / counts["steps"] > 0
        assert one["predicted_disk_seconds"] is None
    assert "its disk was not measured" in found["hardware"]["note"]
    disk = DiskCosts(read_us=100, write_gbs=1.0)
    slow = made(*on_disk[1:], budgets=("2KiB",), hardware=Hardware(rows=(RowCosts(dim=8),), disk=disk))
    for one in slow["results"]:
        assert one["predicted_step_seconds"] >= one["predicted_disk_seconds"] > 100e-6 * one["cold_rows_per_step"]
    assert main([*WORDS, "--budgets", "2KiB"]) == 0
    assert "cold rows" not in capsys.readouterr().out


def test_tables_fit_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "tiny", "--steps", "12", "--budgets", "2KiB"]) == 0
    table = capsys.readouterr().out.partition("budget 2.0 KiB")[2].partition("suggested")[0].splitlines()
    assert len(table) > 12
    assert max(map(len, table)) <= 80


def test_a_trace_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(3)
    keys = np.concatenate([random.integers(0, 40, 4000), random.integers(1000, 9000, 1000)])
    np.save(tmp_path / "keys.npy", random.permutation(keys))
    words = ["simulate", str(tmp_path / "keys.npy"), "tiny", "--steps", "0", "--set", "run.batch_size=64"]
    assert main([*words, "--policies", "hotline,oracle", "--budgets", "10%", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    hotline, oracle = (one["hot_lookup_ratio"] for one in found["results"])
    assert found["data"]["lookups"] == 5000
    assert oracle == pytest.approx(found["ceiling"][0])
    assert 0.6 < hotline < oracle < 1


def test_shares_of_the_rows_and_bytes_are_budgets() -> None:
    assert parse_budgets(("10%", "1KiB", "1024", " 5.5%"), 10_000) == [550, 1000, 1024]
    for wrong in ("", "10x", "0%", "101%", "-5", "nan%", "1.5", "1.5B"):
        with pytest.raises(UsageError, match="--budgets takes bytes"):
            parse_budgets((wrong,), 10_000)


def test_equal_policies_share_a_curve_and_those_that_ignore_the_budget_have_none() -> None:
    text = simulate_page(made())
    assert "Equal throughout, so drawn as one: hotline, slipstream, random_skip." in text
    assert "Whatever the budget: hybrid (0.0% hot)." in text
    assert text.count('<th scope="row">hybrid</th>') == 1
    assert {f'id="{name}"' in text for name in ("hot", "popular", "link", "course")} == {True}
    assert 'id="step"' not in text


def test_policies_that_ignore_the_budget_are_recognised_at_a_single_budget() -> None:
    config = load_config("tiny", {}, ["run.steps=4"])
    found = replay_policies(config, None, ("device_only", "hybrid", "hotline"), ("2KiB",), None, None, lambda *_: None)
    assert [one["follows_budget"] for one in found["results"]] == [False, False, True]
    assert "hotline at 2.0 KiB" in simulate_page(found)  # most hot lookups: not those of a copy of all rows


def test_the_page_is_one_file_and_escapes_names() -> None:
    hostile = "</script><img src=x>"
    found = made(hardware=Hardware(name=hostile, rows=(RowCosts(dim=8),)), budgets=("1KiB",))
    found["data"]["source"] = found["results"][1]["policy"] = hostile
    text = simulate_page(found)
    assert "<img" not in text
    assert 'id="step"' in text
    assert "default-src 'none'" in text
    assert text.count("&lt;/script&gt;") >= 4
    assert len(text) < 1 << 20


def test_scaling_of_a_dense_part_that_was_not_measured_is_noted() -> None:
    machine = Hardware(rows=(RowCosts(dim=8),))
    other = machine.model_copy(
        update={"dense": machine.dense.model_copy(update={"config": "x", "multiplications": 1.0})}
    )
    assert "measured for x and is scaled" in made(hardware=other)["hardware"]["note"]
    assert made(hardware=machine)["hardware"]["note"] == ""


def test_an_impossible_folder_is_refused_before_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive_rec.offline.forecast.simulation.replay_policies", lambda *_: pytest.fail("was replayed"))
    assert main([*WORDS, "--out", "/dev/null/x"]) == 2


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["simulate", "nowhere.txt"], 2, "data.source must be"),
        (["simulate", "tiny", "base"], 2, "give a configuration once, got tiny and base"),
        (["simulate", "tiny", "--policies", "hotlime"], 2, "did you mean hotline"),
        (["simulate", "tiny", "--policies", ","], 2, "--policies takes a comma-separated list"),
        (["simulate", "tiny", "--budgets", "much"], 2, "--budgets takes bytes"),
        (["simulate", "tiny", "--hardware", "nowhere.toml"], 2, "nowhere.toml cannot be read"),
        (["simulate", "tiny", "--steps", "many"], 2, "run.steps"),
        (["simulate", "tiny", "--steps", "2", "--policies", "hybrid", "--out", "/dev/null/x"], 2, "cannot be written"),
        (["calibrate", "tinny"], 2, "did you mean tiny"),
        (["calibrate", "tiny", "--out", "/nowhere/here.toml"], 2, "--out must be a file in a folder that exists"),
    ],
)
def test_impossible_commands_are_refused(
    words: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert expected in capsys.readouterr().err
