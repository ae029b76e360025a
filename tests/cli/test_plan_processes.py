"""`plan --processes` beside `train --processes`: real processes send the bytes that were counted ahead."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from tests.settings import COMMAND


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_real_processes_send_the_bytes_that_are_planned(
    processes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "tiny", f"--processes={processes}", "--steps=40", "--no-serve", f"--out={tmp_path / 'run'}"]
    subprocess.run([*COMMAND, *train], capture_output=True, text=True, check=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    words = ["plan", "tiny", "--set=run.steps=40", "--no-rehearsal", "--json", f"--processes={processes},8"]
    assert main(words) == 0
    planned = json.loads(capsys.readouterr().out)["processes"]["numbers"][0]["sent_bytes_per_sample"]
    samples = summary["samples_seen"] / processes
    for kind in ("requests", "rows", "gradients", "dense"):
        sent = [rank["sent_bytes"][kind] / samples for rank in summary["ranks"]]
        assert sum(sent) / processes == pytest.approx(planned[kind], rel=0.02), kind
