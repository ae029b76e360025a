"""``train --processes`` on raw ids: real processes, which are steered over HTTP and killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptive_rec.cli.client import connect
from tests.cli.test_follow import lines
from tests.cli.test_processes import COMMAND, LONG, SAVED, ranks_of, start, summary_of, tables_that_differ

pytestmark = [pytest.mark.alone, pytest.mark.slow]

RAW = ["--set=data.ids=raw", "--set=knobs.admit_after=2", "--set=data.shared_rows=4"]
NEW_IDS = ["--set=data.table_rows=[200000, 300, 200, 12]", "--set=data.max_table_rows=200000"]
ON_DISK = ["--set=run.host_memory=1MiB", "--set=knobs.hot_budget_bytes=6KiB"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing has broken."""
    out = tmp_path_factory.mktemp("whole") / "run"
    _, complaints = start(out, *SAVED, *RAW).communicate(timeout=600)
    assert not complaints
    return out


@pytest.mark.parametrize(
    ("killed", "words"),
    [([1], ON_DISK), ([0], []), ([0, 1], [])],
)
def test_a_killed_run_ends_as_if_unbroken(
    wait_for: Callable[..., None], tmp_path: Path, whole: Path, killed: list[int], words: list[str]
) -> None:
    """Where one rank is killed, all start again by themselves. Where all are, the run is resumed."""
    out = tmp_path / "run"
    broken = start(out, *SAVED, *RAW, *words, *([] if len(killed) > 1 else ["--restarts=2"]))
    wait_for(lambda: (out / "checkpoints" / "step-000000040").exists())
    processes = ranks_of(out)
    for rank in killed:
        os.kill(processes[rank], signal.SIGKILL)
    broken.communicate(timeout=600)
    if len(killed) > 1:
        assert broken.returncode != 0
        broken = start(out, *SAVED, *RAW, *words, "--resume")
        broken.communicate(timeout=600)

    assert broken.returncode == 0
    assert summary_of(out)["resumed_at_step"] > 0
    assert summary_of(out)["keys"] == summary_of(whole)["keys"]
    assert tables_that_differ(whole, out) == []


def test_one_process_repeats_what_two_admitted_while_a_knob_changed(
    wait_for: Callable[..., None], lines_of: Callable[[Path], int], tmp_path: Path
) -> None:
    out, again = tmp_path / "run", tmp_path / "again"
    process = start(out, *LONG, *RAW, *NEW_IDS, "--port=0")
    wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2)
    for words in (["knobs", "set", "admit_after=5"], ["pause"]):
        done = subprocess.run([*COMMAND, *words, "--run", str(out)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    with connect(str(out), None) as client:
        stats = client.get("/stats").body
    subprocess.run([*COMMAND, "stop", "--run", str(out)], capture_output=True, check=True)
    _, complaints = process.communicate(timeout=600)
    assert process.returncode == 0, complaints
    steps, keys = summary_of(out)["steps"], summary_of(out)["keys"]
    replay = ["train", "--replay", str(out), f"--steps={steps}", "--no-serve", "--out", str(again)]
    subprocess.run([*COMMAND, *replay], capture_output=True, check=True, timeout=600)

    assert summary_of(again)["keys"] == keys
    assert keys["lookups"] == steps * 128 * 4
    assert 0 < stats["keys"]["keys"] <= keys["keys"]


def test_two_processes_of_a_baseline_have_the_same_ids_leave(tmp_path: Path) -> None:
    data = tmp_path / "clicks.csv"
    data.write_text("label,item,price\n" + lines(8000, 1))
    words = ["train", "--data", str(data), "--label", "label", "--processes=2", "--no-serve", "--set=run.precision=float64"]
    sizes = ["data.ids=raw", "data.max_table_rows=100", "run.batch_size=32", "knobs.reclassify_every=20", "knobs.admit_after=2"]
    kept = ["--policy=hybrid"], ["--policy=hotline"], ["--policy=device_only"]
    for number, policy in enumerate(kept):
        out = [f"--out={tmp_path / str(number)}", "--set=knobs.evict_ratio=0.3", *(f"--set={each}" for each in sizes)]
        subprocess.run([*COMMAND, *words, *policy, *out], check=True, timeout=600)
    found = [summary_of(tmp_path / str(number)) for number in range(3)]
    assert found[0]["keys"]["evicted"] > 10
    for other in found[1:]:
        assert (other["keys"], other["train_logloss"]) == (found[0]["keys"], found[0]["train_logloss"])
        assert other["samples_seen"] == found[0]["samples_seen"]
    assert found[2]["hot_rows"] > 100
