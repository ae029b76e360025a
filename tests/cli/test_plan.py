"""The command `plan`: what it prints, what it predicts, what it would change; and the rehearsal beneath it."""

from __future__ import annotations

import ast
import json
from collections import Counter
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Position
from adaptive_rec.cli import main
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.memory.parts import WHILE_TRAINING
from adaptive_rec.memory.plan import MemoryPart, MemoryPlan
from adaptive_rec.offline.forecast import rehearsal, survey
from adaptive_rec.offline.forecast.fitting import Fitting, rounded_down, with_settings
from adaptive_rec.offline.forecast.hardware import DenseCosts, DiskCosts, Hardware, RowCosts, to_text
from adaptive_rec.offline.forecast.homes import HotLookups
from adaptive_rec.offline.forecast.profile import Learned, measure
from adaptive_rec.offline.forecast.ranking import RowRanking, Seen, largest
from adaptive_rec.offline.forecast.sources import Folded
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.assemble import assemble, plan_run
from adaptive_rec.runtime.run_options import RunOptions
from tests.doubles.late_streams import LateStreams

TINY = ["run.device=cpu", "run.threads=1", "data.synthetic.samples=4000", "run.steps=12"]
GIB = 1 << 30


def tiny(*settings: str) -> Config:
    return load_config("tiny", {}, [*TINY, *settings])


def plan(*arguments: str) -> int:
    return main(["plan", "tiny", *(word for setting in TINY for word in ("--set", setting)), *arguments])


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, code: int = 0) -> Any:
        assert plan(*arguments, "--json") == code
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of rows on a disk count the bytes of the working directory, of which a checkout has a million."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


# The command ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_printed_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan("--no-rehearsal") == 0
    printed = capsys.readouterr().out
    for word in (
        "all 4",
        "hot rows of",
        "a step of the dense part",
        "configured",
        "most that fits",
        "suggested",
        "predicted",
    ):
        assert word in printed
    assert not list(tmp_path.iterdir())


def test_what_the_process_that_rehearses_imports_is_there() -> None:
    imports = [each for each in ast.walk(ast.parse(rehearsal.START)) if isinstance(each, ast.ImportFrom)]
    for each in imports:
        module = import_module(str(each.module))
        assert all(hasattr(module, name.name) for name in each.names)
    assert len(imports) == 2



def test_it_plans_for_a_machine_that_is_not_here(told: Any) -> None:
    here = told("--no-rehearsal", "--samples", "0", "--host-memory", "8GiB")
    assert here["available_bytes"] == {"host": 8 * GIB}
    there = told(
        "--no-rehearsal", "--samples", "0", "--gpu-memory", "16GiB", "--host-memory", "8GiB", "--set", "run.device=auto"
    )
    assert there["available_bytes"] == {"host": 8 * GIB, "device": 16 * GIB}
    assert there["device"] == "cuda"
    places = {part["name"]: part["place"] for part in there["parts"] if part["name"] != "staging"}
    assert {name for name, place in places.items() if place == "device"} >= {"hot rows", "dense parameters"}
    assert places["tables"] == "host"
    assert not any(part["held"] for part in there["parts"])
    assert there["needed_bytes"]["host"] < here["needed_bytes"]["host"] + GIB


def test_what_is_given_twice_must_agree(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, words in {
        ("--gpu-memory", "16GiB"): "run.device must be auto or cuda where --gpu-memory gives a GPU, got cpu",
        (
            "--gpu-memory",
            "0",
            "--set",
            "run.device=cuda",
        ): "run.device must be auto or cpu where --gpu-memory is 0, got cuda",
        ("--gpu-memory", "1GiB", "--set", "run.device=auto", "--set", "run.compile=true"): "run.compile must be false",
        ("--set", "run.classify=device"): "run.classify must be host or auto on a CPU, got device",
        ("--host-memory", "much"): "--host-memory must be a number of bytes such as 16GiB, got much",
        ("--gpu-memory", "1.5"): "--gpu-memory must be a number of bytes such as 16GiB, got 1.5",
        ("--samples", "few"): "--samples must be a whole number of at least 0, got few",
        ("--profile", "nowhere.json"): "--profile FILE must be readable, nowhere.json",
    }.items():
        assert plan(*wrong) == 2
        assert words in capsys.readouterr().err


def test_what_does_not_fit_comes_with_what_would(told: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wide = (
        "--no-rehearsal",
        "--samples",
        "0",
        "--set",
        "model.embedding_dim=512",
        "--set",
        "optimizer.embedding=lazy_adam",
    )
    rows = ("--set", "data.table_rows=[500000,300,200,12]", "--set", "data.max_table_rows=500000")
    needs = told(*wide, *rows, "--host-memory", "64GiB")["needed_bytes"]["host"]
    short = needs - (1 << 28)
    found = told(*wide, *rows, "--host-memory", str(short), code=1)
    assert found["fits"] is False
    settings = {key: value for remedy in found["remedies"] for key, value in remedy["set"].items()}
    assert {"data.max_table_rows", "run.row_precision", "optimizer.embedding"} <= settings.keys()
    for remedy in found["remedies"]:
        assert remedy["needed_bytes"]["host"] <= short
        chosen = [word for key, value in remedy["set"].items() for word in ("--set", f"{key}={value}")]
        again = told(*wide, *rows, *chosen, "--host-memory", "64GiB")
        assert again["needed_bytes"]["host"] == pytest.approx(remedy["needed_bytes"]["host"], rel=0.05)
    assert plan(*wide, *rows, "--host-memory", str(short)) == 1
    assert "--set data.max_table_rows=" in capsys.readouterr().out


def test_where_no_budget_fits_none_is_suggested(told: Any) -> None:
    found = told("--no-rehearsal", "--samples", "2000", "--host-memory", "64MiB", code=1)
    assert found["suggested_budget_bytes"] is None
    assert not any("most that fits" in each["why"] or each["fits"] for each in found["budgets"])
    assert [each["why"] for each in found["budgets"]] == [["configured"]]
    assert not found["everything_fits"]


def test_several_settings_are_suggested_where_one_is_not_enough() -> None:
    config = tiny(
        "model.embedding_dim=64", "data.table_rows=[400000,300,200,12]", "data.max_table_rows=400000",
        "knobs.hot_budget_bytes=64MiB", "optimizer.embedding=lazy_adam",
    )  # fmt: skip
    fitting = fitting_of(config)
    needed = fitting.plan.needed("host")
    singles = [fitting.with_settings([setting]).needed("host") for setting in fitting._settings(())]
    fitting = fitting_of(config, min(singles) - (2 << 20))
    assert needed > min(singles)
    found = fitting.remedies()
    assert not found or all(fitting.fits(remedy.settings) for remedy in found)
    nothing = fitting_of(config, 1 << 20)
    assert nothing.remedies() == []


# Budgets -------------------------------------------------------------------------------------------------------------


def fitting_of(config: Config, host: int = 64 * GIB) -> Fitting:
    source = open_source(config)
    return Fitting(config, source, plan_run(config, source, {"host": host}))


def test_the_largest_budget_fits_and_a_larger_one_does_not() -> None:
    config = tiny("model.embedding_dim=64", "data.table_rows=[300000,300,200,12]", "data.max_table_rows=300000")
    whole = fitting_of(config)
    assert whole.largest_budget() == whole.everything_bytes()
    tight = fitting_of(config, whole.plan.needed("host") + (40 << 20))
    most = tight.largest_budget()
    assert 10 << 20 < most < 40 << 20
    assert tight.fits([("knobs.hot_budget_bytes", most)])
    assert not tight.fits([("knobs.hot_budget_bytes", most * 102 // 100)])


def test_a_policy_that_heeds_no_budget_is_offered_none(told: Any) -> None:
    found = told("--no-rehearsal", "--policy", "hybrid")
    assert found["budgets"] == []
    assert found["suggested_budget_bytes"] is None


def test_numbers_found_are_the_largest() -> None:
    for most in (1, 2, 77, 1000):
        for bar in (0, 1, 5, 76, 77, 999, 1000):
            assert largest(most, lambda n, bar=bar: n <= bar) == min(most, bar)  # type: ignore[misc]
    assert rounded_down(1_234_567) == 1_228_800
    assert rounded_down(100) == 100


def test_settings_change_their_keys_only() -> None:
    config = with_settings(tiny(), [("knobs.hot_budget_bytes", 5000), ("run.row_precision", "bf16")])
    assert (config.knobs.hot_budget_bytes, config.run.row_precision) == (5000, "bf16")
    assert config.model == tiny().model


# Predictions ---------------------------------------------------------------------------------------------------------


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def test_what_is_predicted_is_what_earlier_counts_catch() -> None:
    config, windows = tiny("data.synthetic.drift_ranks=5"), 4
    made = measure(config, 2000, windows, quiet, budgets=[5000])
    source = open_source(config)
    space = RowSpace.of(source.tables, source.features)
    batch = next(source.train_batches(Position(seed=config.run.seed), 2000))
    rows = (batch.ids_N.reshape(2000, -1) + space.feature_first_row).tolist()
    for point in made["budgets"]:
        caught, cold = [], []
        for before, end in pairwise(2000 * n // windows for n in range(1, windows + 1)):
            counts = Counter(row for sample in rows[:before] for row in sample)
            slots = point["bytes"] // made["data"]["row_bytes"][0]
            hot = set(sorted(counts, key=lambda row: (-counts[row], row))[:slots])
            lookups = [row in hot for sample in rows[before:end] for row in sample]
            caught.append(sum(lookups) / len(lookups))
            others = Counter(row for sample in rows[before:end] for row in sample if row not in hot)
            share = config.run.batch_size / (end - before)  # of the window's samples, each taken by chance
            cold.append(sum(1 - (1 - share) ** number for number in others.values()))
        assert point["learned_ratio"] == pytest.approx(np.mean(caught))
        assert point["cold_rows"] == pytest.approx(np.mean(cold))
    assert 5000 in [point["bytes"] for point in made["budgets"]]


def test_a_window_without_lookups_catches_nothing() -> None:
    space = RowSpace.of(open_source(tiny()).tables, open_source(tiny()).features)
    nothing = np.zeros(space.rows, np.uint32)
    learned = Learned(RowRanking.of(space, [100], Seen.of(nothing)), [1000], 0.1)
    for _ in range(3):
        learned.add(nothing)
    assert learned.ratios() == learned.cold_rows() == [0.0]


def test_a_run_catches_what_was_predicted(told: Any) -> None:
    settings = ("--set", "run.steps=120", "--set", "data.synthetic.samples=16000", "--set", "knobs.reclassify_every=20")
    found = told("--no-rehearsal", *settings)
    predicted = {why: one["learned_ratio"] for one in found["budgets"] for why in one["why"]}
    runtime = assemble(tiny("run.steps=120", "data.synthetic.samples=16000", "knobs.reclassify_every=20"))
    counts = [(0.0, 0.0)]
    for _ in runtime.run():
        if runtime.step_number >= 60 and len(counts) == 1:
            counts.append((runtime.state.counts()["lookups_hot"], runtime.state.counts()["lookups"]))
    hot, lookups = (
        runtime.state.counts()[name] - before for name, before in zip(("lookups_hot", "lookups"), counts[1], strict=True)
    )
    assert hot / lookups == pytest.approx(predicted["configured"], abs=0.04)


@pytest.mark.slow
def test_a_run_reads_no_more_cold_rows_than_was_predicted(told: Any, tmp_path: Path) -> None:
    data = ("data.synthetic.samples=16000", "run.host_memory=1MiB", "knobs.hot_budget_bytes=8KiB")
    homes = told("--no-rehearsal", *(word for setting in data for word in ("--set", setting)))["homes"]
    options = RunOptions(rows=tmp_path / "rows")
    runtime = assemble(tiny("run.steps=120", "knobs.reclassify_every=20", "knobs.report_every=60", *data), options=options)
    last = [report for report in runtime.run() if isinstance(report, Snapshot)][-1]
    assert last.disk is not None
    assert last.disk["rows_ahead_per_step"] == pytest.approx(homes["cold_rows_per_step"], rel=0.2)
    assert (homes["memory_rows"], homes["keeps_up"]) == (sum(runtime.store.hot.tier.capacities), None)
    assert homes["memory_rows"] + homes["disk_rows"] == runtime.store.space.rows


def test_a_device_run_reads_as_many_rows_from_the_disk_as_was_predicted(told: Any, tmp_path: Path) -> None:
    data = ("data.synthetic.samples=16000", "run.host_memory=12KiB", "knobs.hot_budget_bytes=8KiB")
    words = ("--gpu-memory", "2GiB", *(word for each in ("run.device=auto", *data) for word in ("--set", each)))
    homes = told("--no-rehearsal", *words)["homes"]
    own = ("run.steps=120", "knobs.reclassify_every=20", "knobs.report_every=60", "knobs.prefetch_depth=0")
    runtime = assemble(tiny(*own, *data), streams=LateStreams(3), options=RunOptions(rows=tmp_path / "rows"))
    last = [report for report in runtime.run() if isinstance(report, Snapshot)][-1]
    assert last.disk is not None
    assert runtime.store.cold.memory is not None
    assert last.disk["rows_ahead_per_step"] == pytest.approx(homes["cold_rows_per_step"], rel=0.2)
    assert (homes["device_rows"], homes["memory_rows"]) == (runtime.store.hot.tier.hot_rows, runtime.store.cold.memory.rows)
    assert sum(homes[f"{home}_rows"] for home in ("device", "memory", "disk")) == runtime.store.space.rows


def test_whether_the_disk_keeps_up_follows_from_its_costs(told: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "here.toml"
    on_disk = ("--no-rehearsal", "--set", "run.host_memory=1MiB", "--set", "knobs.hot_budget_bytes=8KiB")

    def homes(**costs: float) -> Any:
        machine = Hardware(rows=(RowCosts(dim=8),), dense=DenseCosts(call_ms=2), disk=DiskCosts(**costs))
        file.write_text(to_text(machine), encoding="utf-8")
        return told(*on_disk, "--hardware", str(file))["homes"]

    found = homes(read_us=20, read_cpu_us=5, write_gbs=0.1)
    bytes_of_a_row = found["disk_bytes"] / found["disk_rows"]
    each = 20e-6 + bytes_of_a_row / 0.1e9
    assert found["disk_seconds"] == pytest.approx(found["cold_rows_per_step"] * each, rel=0.02)
    assert found["step_seconds"] == pytest.approx(2e-3 + found["cold_rows_per_step"] * 5e-6, rel=0.02)
    assert found["keeps_up"]
    assert not homes(read_us=2000, write_gbs=0.1)["keeps_up"]
    assert plan(*on_disk, "--hardware", str(file)) == 0
    remedy = "does not keep up once all of these come from files: give more run.host_memory, or a faster disk"
    assert remedy in capsys.readouterr().out
    assert homes()["keeps_up"] is None
    assert plan(*on_disk) == 0
    assert "not measured: adaptive-rec calibrate --out FILE does" in capsys.readouterr().out
    assert told("--no-rehearsal")["homes"] is None


def test_a_profile_serves_for_counting(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = told("--no-rehearsal", "--samples", "2000")
    settings = [word for setting in TINY for word in ("--set", setting)]
    assert main(["profile", "synthetic", "tiny", *settings, "--samples", "2000", "--out", str(tmp_path)]) == 0
    monkeypatch.setattr(survey, "measure", lambda *_: pytest.fail("lookups were counted"))
    file = str(tmp_path / "profile.json")

    def read() -> Any:
        assert plan("--no-rehearsal", "--profile", file, "--json") == 0

    read()
    (tmp_path / "profile.json").write_text("{}")
    assert plan("--no-rehearsal", "--profile", file) == 2
    assert counted["suggested_budget_bytes"] > 0


def test_a_profile_of_rows_of_another_size_is_scaled() -> None:
    made = measure(tiny(), 2000, 4, quiet)
    same, twice = (HotLookups(made, [factor * size for size in made["data"]["row_bytes"]]) for factor in (1, 2))
    point = made["budgets"][3]
    assert same.at(point["bytes"]).learned_ratio == pytest.approx(point["learned_ratio"])
    assert twice.at(2 * point["bytes"]) == same.at(point["bytes"])
    assert twice.suggested_bytes == 2 * same.suggested_bytes == 2 * made["suggested"]["bytes"]
    assert same.at(0).learned_ratio == 0


def test_no_lookups_are_counted_where_there_is_no_memory(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "available_bytes", lambda: 1000)
    found = told("--host-memory", "8GiB")
    assert found["suggested_budget_bytes"] is None
    assert "takes more memory than is free here" in found["predicted_from"]
    assert any("not rehearsed" in note for note in found["notes"])


# The rehearsal -------------------------------------------------------------------------------------------------------


def test_a_rehearsal_has_the_tables_cut_and_nothing_else() -> None:
    config = tiny("data.table_rows=[900000,300,200,12]", "data.max_table_rows=900000", "model.embedding_dim=64")
    source = open_source(config)
    small = rehearsal.fold(config, source)
    assert isinstance(small, Folded)
    rows = [table.rows for table in small.tables]
    assert rows[1:] == [300, 200, 12]
    assert 0.9 * rehearsal.TABLES_BYTES < rows[0] * 65 * 4 <= rehearsal.TABLES_BYTES
    given, folded = (next(one.train_batches(Position(seed=config.run.seed), 200)) for one in (source, small))
    np.testing.assert_array_equal(folded.ids_N.reshape(200, 4), given.ids_N.reshape(200, 4) % rows)
    np.testing.assert_array_equal(folded.dense_BX, given.dense_BX)
    held_out = next(small.test_batches(50))
    assert held_out.size == 50
    assert rehearsal.fold(tiny(), open_source(tiny())).tables == open_source(tiny()).tables


def test_a_rehearsal_measures_this_process(tmp_path: Path) -> None:
    told = rehearsal.run(tiny(), tmp_path / "checkpoints", [1 << 20])
    assert told.steps == 12
    assert (1 << 27) < told.bytes < 64 * GIB
    assert list((tmp_path / "checkpoints").iterdir())


def test_a_rehearsal_with_rows_on_a_disk_keeps_out_of_the_folder_of_a_run(tmp_path: Path) -> None:
    own, other = tmp_path / "other" / "rows", tmp_path / "here"
    own.mkdir(parents=True)
    other.mkdir()
    on_disk = tiny("run.host_memory=1MiB", "knobs.hot_budget_bytes=8KiB", f"run.disk={own}")
    told = rehearsal.run(on_disk, other / "checkpoints", [])
    assert told.steps == 12
    assert (1 << 27) < told.bytes < 64 * GIB
    assert list((other / "rows").glob("pool-*/*.rows"))
    assert not list(own.iterdir())


def test_no_budget_above_the_memory_for_rows_is_suggested(told: Any) -> None:
    on_disk = [word for setting in ("run.host_memory=9000", "knobs.hot_budget_bytes=8KiB") for word in ("--set", setting)]
    found = told("--no-rehearsal", *on_disk)
    assert max(one["bytes"] for one in found["budgets"]) <= 9000 < found["all_rows_bytes"]
    assert found["suggested_budget_bytes"] <= 9000
    assert not found["everything_fits"]


def test_measured_figures_take_the_place_of_estimates() -> None:
    config = tiny()
    plan = plan_run(config)
    made = rehearsal.measured(plan, rehearsal.Rehearsed(bytes=700 << 20, steps=6, seconds=1.0))
    beside = [part for part in plan.parts if part.name in WHILE_TRAINING]
    rows = sum(part.bytes for part in plan.parts if part.of_rows and not part.moment) + sum(
        part.bytes for part in beside
    )
    moment = max(part.bytes for part in made.parts if part.moment)
    assert made.needed("host") == rows + (700 << 20) + moment
    assert made.tables == plan.tables
    assert "6 steps" in made.notes[-1]


def test_where_none_can_be_held_the_estimate_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_run(tiny())
    monkeypatch.setattr("sys.executable", "/bin/false")
    made = rehearsal.rehearse(tiny(), plan)
    assert made.parts == plan.parts
    assert "not rehearsed" in made.notes[-1]


def test_what_a_compiler_took_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [rehearsal.Rehearsed(900 << 20, 6, 1.0, compiled=True), rehearsal.Rehearsed(700 << 20, 6, 1.0)]
    monkeypatch.setattr(rehearsal, "_rehearse", lambda order: (told.pop(0), ""))
    plan = plan_run(tiny())
    made = rehearsal.rehearse(tiny(), plan)
    assert not told
    assert made.parts == rehearsal.measured(plan, rehearsal.Rehearsed(700 << 20, 6, 1.0)).parts


@pytest.mark.alone
@pytest.mark.slow
def test_a_rehearsed_plan_is_near_the_peak_of_a_run(told: Any) -> None:
    """As near as a busy machine lets it be; the real bar is held by `test_plan_peaks`."""
    found = told("--samples", "0")
    assert 200 << 20 < found["needed_bytes"]["host"] < 1200 << 20
    assert "rehearsed on this machine" in found["notes"][0]


def test_the_dry_run_is_the_plan_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for setting in TINY for word in ("--set", setting)]
    assert main(["train", "--dry-run", "tiny", *settings, "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert plan("--no-rehearsal", "--samples", "0", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    process = "the process itself"
    assert [p for p in dry["parts"] if p["name"] != process] == [p for p in planned["parts"] if p["name"] != process]
    assert dry["tables"] == planned["tables"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.precision=tf32", "run.precision must not be tf32 on a CPU"),
        ("run.classify=device", "run.classify must be host or auto on a CPU"),
        ("run.cold_rows=direct", "run.cold_rows must be auto or staged on a CPU"),
        ("run.cold_rows=in_place", "run.cold_rows must be auto or staged on a CPU, got in_place"),
    ],
)
def test_the_dry_run_refuses_what_training_on_a_cpu_refuses(setting: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--dry-run"], []):
        assert main(["train", "tiny", "--set", "run.device=cpu", "--set", setting, *more]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.usefixtures("small_process")
def test_the_dry_run_of_several_processes_is_the_plan_of_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dry-run", "tiny", "--processes=3", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert main(["plan", "tiny", "--processes=3,3", "--no-rehearsal", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [table["rows"] for table in dry["tables"]] == [167, 100, 67, 4]
    assert dry["tables"] == planned["tables"]
    parts = [{p["name"]: p["bytes"] for p in found["parts"] if p["name"] != "the process itself"} for found in (dry, planned)]
    assert parts[0] == parts[1]
    assert dry["notes"][0].startswith("of one of 3 ranks, 3 on a machine")


@pytest.mark.usefixtures("small_process")
def test_the_dry_run_of_several_processes_plans_a_ranks_rows_on_the_disk(capsys: pytest.CaptureFixture[str]) -> None:
    needed = []
    for processes in ("1", "2"):
        words = ["train", "--dry-run", "tiny", f"--processes={processes}", "--set=run.host_memory=1MiB", "--json"]
        assert main(words) == 0
        parts = {part["name"]: part["bytes"] for part in json.loads(capsys.readouterr().out)["parts"]}
        spare = 2 << 22  # segments, which are made whole
        needed.append(
            [parts["rows on the disk"] - spare, *(parts[name] for name in ("places of rows", "cold rows on their way"))]
        )
    assert np.array(needed[1]) == pytest.approx(np.array(needed[0]) / 2, rel=0.3)


@pytest.mark.parametrize(("ranks", "fits"), [(1, False), (2, True)])
def test_a_ranks_own_hot_rows_must_fit_in_its_host_memory(ranks: int, fits: bool, tmp_path: Path) -> None:
    """All rows of tiny take 36 kB; of two ranks each keeps half of them."""
    line = ["train", "tiny", "--steps=2", "--no-serve", "--policy=device_only", "--set=run.host_memory=30000"]
    line += [f"--set=run.disk={tmp_path / 'rows'}", f"--out={tmp_path / 'run'}", f"--processes={ranks}"]
    assert (main([*line, "--dry-run"]) == 0) is fits


def test_the_dry_run_of_several_processes_refuses_what_they_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dry-run", "tiny", "--processes=2", "--set=run.classify=device"]) == 2
    assert "run.classify must be host where several processes" in capsys.readouterr().err


def test_a_plan_as_a_value() -> None:
    parts = [MemoryPart("tables", "host", 100, "a", of_rows=True), MemoryPart("hot", "device", 50, "b", of_rows=True)]
    plan = MemoryPlan("cuda", "hotline", [], [], parts, {"host": 100, "device": 40})
    assert (plan.free("host"), plan.free("device")) == (0, -10)
    assert len(plan.problems) == 1
    assert plan.scaled(["b"], 0.5).problems == []
    assert plan.on_another_machine().needed("device") == 50 + (512 << 20)
