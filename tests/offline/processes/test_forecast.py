"""What `plan` and `simulate` say of several processes: memory, seconds, a sentence, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.offline.forecast.hardware import DenseCosts, Hardware, RowCosts, to_text
from adaptive_rec.offline.forecast.lane import StepCounts
from adaptive_rec.offline.forecast.ranks import Forecast, limit, of_rank
from adaptive_rec.offline.forecast.traffic import NetworkSeconds, Nodes, Sent, network_seconds

pytestmark = pytest.mark.usefixtures("small_process")

SENT = Sent(samples=64, lines=500, requests=3e3, rows=2e6, gradients=2e6, dense=1e6, outside=1e6)
GBIT = 1e9 / 8


@pytest.fixture
def machine(tmp_path: Path) -> str:
    costs = Hardware(name="made up", cores=4, rows=(RowCosts(dim=8, sum_ns=20),), dense=DenseCosts(sample_us=50))
    (tmp_path / "here.toml").write_text(to_text(costs), encoding="utf-8")
    return str(tmp_path / "here.toml")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# The network ---------------------------------------------------------------------------------------------------------


def test_the_ranks_of_a_machine_share_its_network() -> None:
    slow = network_seconds(SENT, Nodes(8, 4), 1, GBIT)
    assert slow.exchanged == pytest.approx(4 * 1e6 / GBIT)
    assert slow.dense == pytest.approx(1e6 / GBIT)  # of a ring, one rank of a machine sends to the next machine
    fast = network_seconds(SENT, Nodes(8, 4), 1, 100 * GBIT)
    assert fast.exchanged < slow.exchanged / 5
    assert fast.messages == slow.messages
    assert network_seconds(replace(SENT, outside=0), Nodes(8, 8), 1, 0.0).all > fast.messages
    assert network_seconds(SENT, Nodes(1, 1), 1, 0.0).all == 0


def test_more_ranks_pass_more_messages() -> None:
    times = [network_seconds(SENT, Nodes(ranks, 8), 1, GBIT).messages for ranks in (2, 4, 16, 1024)]
    assert times == sorted(times)
    assert times[-1] > 100 * times[0]


# What it says --------------------------------------------------------------------------------------------------------


def line(ranks: int, work: float | None, network: NetworkSeconds) -> Forecast:
    return Forecast(Nodes(ranks, 1), SENT, 1 << 20, network, work, batch_size=1000)


def test_a_sentence_says_what_limits_the_ranks() -> None:
    nothing, bytes_, messages = NetworkSeconds(0, 0, 0), NetworkSeconds(0, 0.3, 0), NetworkSeconds(0.9, 0, 0)
    one, two, four = line(1, 1.0, nothing), line(2, 0.5, bytes_), line(4, 0.25, messages)
    assert limit([one]) == "messages and bytes between ranks take 0% of a step, the rest is each rank's own work"
    assert limit([one, two]).startswith("2 would train 1.2 times as many samples a second as 1 rank; messages and bytes")
    assert limit([one, two, four]) == (
        "2 ranks would train the most samples a second; with 4 messages and bytes between ranks take 78% of a step, most of it "
        "passing messages, however small"
    )
    assert "4 ranks take 900.0 ms of a step" in limit([line(4, None, messages)])
    assert "so they train no more than 1,111 samples a second" in limit([line(4, None, messages)])


def test_a_rank_reads_all_and_trains_its_part() -> None:
    counts = StepCounts(steps=10, samples=100, lookups=1000, hot_lookups=500, rows=400, hot_rows=100, read_lookups=1000)
    assert of_rank(counts, 1, 40) == counts
    found = of_rank(counts, 4, 10)
    assert (found.steps, found.samples, found.read_lookups) == (10, 25, 1000)
    assert (found.lookups, found.hot_lookups, found.rows) == (250 + 100, 250 + 50, 100 + 100)


# The commands --------------------------------------------------------------------------------------------------------


def test_plan_shows_a_rank_and_a_line_for_each_number(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "tiny", "--no-rehearsal", "--processes", "6", "--nodes", "2", "--network", "10Gbit/s"]
    found = told(capsys, *words, "--hardware", machine)
    lines = found["processes"]["numbers"]
    assert [(one["processes"], one["nodes"]) for one in lines] == [(1, 1), (2, 1), (4, 2), (6, 2)]
    assert [table["rows"] for table in found["tables"]] == [84, 50, 34, 2]
    assert lines[0]["rank_bytes"] > lines[2]["rank_bytes"]
    assert all(one["step_seconds"] > sum(one["network_seconds"].values()) for one in lines)
    assert main([*words, "--hardware", machine]) == 0
    printed = capsys.readouterr().out
    for text in ("bytes that a rank sends for each sample", "samples/s", "limit  ", "of one of 6 ranks, 3 on a machine"):
        assert text in printed
    assert main([*words, "--host-memory", "64MiB"]) == 1


def test_plan_counts_what_baselines_do(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A request for each table sends as many rows in more messages; to look ahead is work of each rank."""
    words = ["plan", "tiny", "--no-rehearsal", "--processes", "3", "--nodes", "1", "--hardware", machine]
    policies = ("hybrid", "xdl", "cdlrm", "oracle")
    found = {name: told(capsys, *words, "--set", f"knobs.policy={name}")["processes"]["numbers"][-1] for name in policies}
    sent = [one["sent_bytes_per_sample"]["rows"] for one in found.values()]
    assert sent == [sent[0]] * 4
    assert found["xdl"]["network_seconds"]["messages"] > 1.3 * found["hybrid"]["network_seconds"]["messages"]
    assert all(one["work_seconds"] > 0 for one in found.values())


def test_plan_counts_the_whole_map_of_raw_ids_for_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    raw = load_config("tiny", {}, ["data.ids=raw"])
    source = open_source(raw)
    assert isinstance(source, RawIds)
    words = ["plan", "tiny", "--no-rehearsal", "--processes", "2,3"]
    plain, of_raw = (told(capsys, *words, *more) for more in ([], ["--set", "data.ids=raw"]))
    parts = {part["name"]: part["bytes"] for part in of_raw["parts"]}
    assert parts["raw ids and their rows"] == source.keys.most_bytes
    for mine, theirs in zip(of_raw["processes"]["numbers"], plain["processes"]["numbers"], strict=True):
        assert mine["rank_bytes"] - theirs["rank_bytes"] == pytest.approx(source.keys.most_bytes, rel=0.01)


def test_simulate_shows_the_numbers_of_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "tiny", "--steps", "5", "--policies", "hotline", "--budgets", "2KiB", "--processes", "3,2"]
    lines = told(capsys, *words)["processes"]["numbers"]
    assert [(one["processes"], one["step_seconds"]) for one in lines] == [(2, None), (3, None)]
    assert lines[0]["sent_bytes_per_sample"]["rows"] > 0
    assert main(words) == 0
    assert "of a step, most of it" in capsys.readouterr().out


def test_options_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    two = ["--processes", "4", "--nodes", "2"]
    for words, rule in {
        ("--processes", "0"): "--processes must be a whole number from 1 to 1024, got 0",
        ("--processes", "2,two"): "--processes must be a whole number from 1 to 1024, got two",
        ("--nodes", "2"): "--nodes needs --processes N, which is not given",
        ("--network", "1Gbit/s"): "--network needs --processes N, which is not given",
        ("--processes", "4", "--nodes", "3"): "--nodes must divide the 4 processes evenly, got 3",
        (*two,): "--network must be given where --nodes is 2 or more, and only there, got --nodes 2 and no --network",
        ("--processes", "4", "--network", "1Gbit/s"): "got --nodes 1 and --network 1Gbit/s",
        (*two, "--network", "25"): "--network must be a rate above 0 such as 25Gbit/s, got 25",
        (*two, "--network", "0Gbit/s"): "--network must be a rate above 0 such as 25Gbit/s, got 0Gbit/s",
        (*two, "--network", "3GB/s"): "--network must be a rate above 0 such as 25Gbit/s, got 3GB/s",
    }.items():
        assert main(["simulate", "tiny", "--policies", "hotline", *words]) == 2
        assert rule in capsys.readouterr().err
    for words, rule in {
        ("--hardware", "here.toml"): "--hardware needs --processes N or run.host_memory, which are not given",
        ("--processes", "2", "--samples", "9"): "so --samples must not be given with it, got 9",
        ("--processes", "2", "--gpu-memory", "1GiB"): "so --gpu-memory must not be given with it, got 1GiB",
    }.items():
        assert main(["plan", "tiny", *words]) == 2
        assert rule in capsys.readouterr().err
