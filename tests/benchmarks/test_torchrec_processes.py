"""The benchmark of several processes beside TorchRec's, rehearsed on tiny shapes: it counts bytes and runs agree."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent

MAKES_NETWORKS = os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(not MAKES_NETWORKS, reason="network namespaces need root, ip and tc")
@pytest.mark.parametrize("kind", ["loopback", "1gbit", "sgd"])
def test_contestants_take_turns_on_a_network_whose_bytes_are_counted(kind: str, tmp_path: Path) -> None:
    rival = ["row_wise, our dense part"] if importlib.util.find_spec("torchrec") else []
    words = ["--rehearse", "--only", kind, "--out", str(tmp_path), "--contestants", "ours", *rival]
    command = [sys.executable, "-m", "benchmarks.torchrec_processes", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "results.json").read_text())["cells"][kind]["result"]
    assert list(result["runs"]) == ["dense gradients alone", "ours", *rival]
    facts = result["runs"]["ours"]["facts"]
    counted = sum(value for name, value in facts.items() if name.startswith("counted") and name != "counted dense bytes")
    assert counted < facts["embedding bytes"] < 20 * counted  # headers weigh much in tiny batches
    assert all(check["passed"] for check in result["checks"])
    assert ("ours: rows" in {check["check"] for check in result["checks"]}) == (kind == "sgd")
    if kind == "1gbit":
        assert 0.5 < result["raw_gigabits_per_second"] < 1
    assert "ranks-" not in namespaces()


def test_a_run_that_begins_with_our_weights_must_have_our_loss() -> None:
    from benchmarks.torchrec_processes.cells import checks

    losses = {"ours": 0.5, "mixed": 0.6, "mixed, our dense part": 0.50001, "row_wise, our dense part": 0.51}
    found = {one["check"]: one["passed"] for one in checks(losses, {"ours": 1e-6, "mixed, our dense part": 0.5})}
    assert found == {
        "mixed, our dense part: loss": True, "row_wise, our dense part: loss": False, "ours: rows": True,
        "mixed, our dense part: rows": False,
    }  # fmt: skip


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    words = ["--only", "loopback", "--contestants", "ours", "--data", "nowhere.tsv", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.torchrec_processes", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert "nowhere.tsv is no file (--data names one of Criteo's)" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_networks_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.torchrec_processes.network import network

    made: list[Any] = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("benchmarks.torchrec_processes.network._run", lambda *words: made.append(words))
    with pytest.raises(SystemExit, match="must be made by root"), network("loopback"):
        pass
    assert not made


def test_bytes_are_those_of_a_known_interface() -> None:
    from benchmarks.torchrec_processes.network import sent_bytes

    assert sent_bytes("lo") >= 0
    with pytest.raises(ValueError, match="interface must be one of this network namespace, got 'none'"):
        sent_bytes("none")


@pytest.mark.skipif(not importlib.util.find_spec("torchrec"), reason="torchrec is not installed")
def test_a_mixed_plan_repeats_small_tables_on_every_rank() -> None:
    from benchmarks.torchrec_processes.rivals import ways_of

    assert ways_of("mixed", [10, 4000, 2047], 2048) == ["data_parallel", "table_wise", "data_parallel"]
    assert ways_of("row_wise", [10, 4000], 2048) == ["row_wise", "row_wise"]
