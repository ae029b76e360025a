"""The script of the guide, in real processes that torchrun starts: two ranks compute what one computes."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "processes.md"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def script_of_the_page() -> str:
    found = re.search(r"^cat > mine.py <<'END'\n(.*?)^END$", PAGE.read_text(), flags=re.M | re.S)
    assert found is not None
    return found[1]


def run(folder: Path, ranks: int, script: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "mine.py").write_text(f"import torch\ntorch.set_default_dtype(torch.float64)\n{script}")
    command = [*TORCHRUN, f"--nproc-per-node={ranks}", "mine.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)


def test_the_script_trains_as_without_adaptive_rec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which is the only rank."""
    begin = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda kind: begin(kind, store=dist.HashStore(), rank=0, world_size=1))
    monkeypatch.chdir(tmp_path)
    script, wrap = script_of_the_page(), 'adaptive_rec.wrap(model, optimizer=rows, budget="64KiB")\n'
    assert script.count(wrap) == 1
    states: list[dict[str, Any]] = []
    for text in (script, script.replace(wrap, "")):
        Path("mine.py").write_text(text)
        runpy.run_path("mine.py")
        states.append(torch.load("mine.pt", weights_only=True))

    ours, theirs = states
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.slow
@pytest.mark.alone
def test_two_ranks_beside_data_parallel_equal_one(tmp_path: Path) -> None:
    states: list[dict[str, Any]] = []
    for ranks in (1, 2):
        done = run(tmp_path / str(ranks), ranks, script_of_the_page())
        assert done.returncode == 0, done.stderr
        states.append(torch.load(tmp_path / str(ranks) / "mine.pt", weights_only=True))

    alone, shared = states
    assert alone.keys() == shared.keys()
    for name, value in alone.items():
        torch.testing.assert_close(shared[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.slow
@pytest.mark.alone
def test_a_state_dict_on_one_rank_alone_names_the_rule(tmp_path: Path) -> None:
    script = script_of_the_page().replace("state = ", "state = dist.get_rank() == 0 and ")
    script = script.replace("dist.destroy_process_group()", "model(user, history)")

    done = run(tmp_path / "one", 2, script)

    assert done.returncode == 1
    assert "ranks must make the same calls in the same order" in done.stderr
    assert "rank 0 reads the whole of table users in step 41 and rank 1 looks up table users in step 41" in done.stderr
