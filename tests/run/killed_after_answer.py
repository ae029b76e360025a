"""A run that a kill ends right after the answer to its rollback. A process that ``tests.forked`` starts imports this first."""

import os
from pathlib import Path

from adaptive_rec.live.rollback import rollback_command
from adaptive_rec.live.telemetry import Snapshot
from tests.checkpoint.test_resume_run import begin

RUN = "ADAPTIVE_REC_TEST_KILLED_RUN"
"""Variable with the directory of the run."""


def train(out: Path) -> None:
    run = begin(out, "checkpoint.every_steps=5", "run.steps=24")
    for report in run.events():
        if isinstance(report, Snapshot) and report.step == 13:
            kill = lambda answer: os.kill(os.getpid(), 9)  # noqa: E731
            run.present.mailbox.send(rollback_command(skip_data=True, knobs={"alpha": 0.7}, answer=kill))


if RUN in os.environ:
    train(Path(os.environ[RUN]))
