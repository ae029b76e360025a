"""Runs that are trained once and copied for each test that needs a finished one: ``finished_run(kind)`` gives a folder of its
own.

All parts of `make test` share them. The files of checkpoints are hard links, which commands replace and do not write to; a test
that damages one must ask for a copy (``links=False``). A shared run that a test changed all the same fails that test.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

COMMON_FOLDER = "ADAPTIVE_REC_TEST_RUNS"
"""Variable with the folder of the runs that all parts of `make test` share."""

SMALL = [
    "run.device=cpu", "run.threads=1", "run.steps=40", "run.batch_size=64", "data.synthetic.samples=6000",
    "data.synthetic.test_samples=256", "knobs.report_every=5", "knobs.reclassify_every=5", "knobs.sample_ratio=1.0",
    "checkpoint.every_steps=20", "model.bottom_mlp=[8]", "model.top_mlp=[8]",
]  # fmt: skip
"""Settings of all kinds, on top of the preset tiny."""

KINDS: dict[str, list[str]] = {
    "plain": ["knobs.policy=hotline"],
    "skipping": ["knobs.policy=slipstream", "knobs.min_probe_touches=1", "knobs.stale_threshold=0.05", "knobs.alpha=0.3"],
    "raw": ["knobs.policy=hotline", "data.ids=raw"],
    "disk": ["knobs.policy=hotline", "run.host_memory=1MiB"],
    "ranks": ["knobs.policy=hotline"],
    "arranged": ["knobs.policy=fae", "run.steps=0", "data.epochs=2", "data.synthetic.samples=1300"],
    "followed": ["data.follow_idle_seconds=0.2", "data.max_table_rows=300", "eval.every_steps=5"],
    "bf16": ["knobs.policy=hotline", "run.row_precision=bf16"],
}
"""Settings of each kind, for whoever goes on with it."""

FOLLOWED = "clicks.csv"
"""The file that the run "followed" has read; it lies beside the run's directory."""


def settings(kind: str) -> list[str]:
    return [*SMALL, *KINDS[kind]]


def train(kind: str, out: Path) -> None:
    """Train a run of a kind as the command line does. Two ranks are two threads."""
    from adaptive_rec.cli import main
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.run.follower import Follower
    from adaptive_rec.run.training_run import TrainingRun
    from adaptive_rec.system.group import Alone, Group
    from tests.doubles.late_threads import LateThreads

    if kind == "followed":
        rows = "".join(f"{n % 3 % 2},item {n * n % 97},{n % 50}\n" for n in range(1300))
        (out.parent / FOLLOWED).write_text(f"label,item,price\n{rows}")
        sets = [word for one in settings(kind) if "synthetic" not in one for word in ("--set", one)]
        file = str(out.parent / FOLLOWED)
        assert main(["train", "--data", file, "--label", "label", "--follow", "--no-serve", "--out", str(out), *sets]) == 0
        return

    def of_rank(group: Group) -> None:
        config = load_config("tiny", {}, settings(kind))
        if group.rank:
            Follower(config, out, False, (), group).train()
            return
        run = TrainingRun(config, out, group=group)
        run.runtime.state.pause_as_saved(reachable=group.tell(False))
        list(run.events())
        run.finish()

    if kind == "ranks":
        LateThreads.train(2, of_rank)
    else:
        of_rank(Alone())


class FinishedRuns:
    """The shared runs of one run of the tests, in a folder that its parts have in common."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[Path, tuple[int, int]] = {}

    def original(self, kind: str) -> Path:
        """Return the shared run itself, trained by who asks first. Nothing may write to it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        home = self._folder / kind
        with (self._folder / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (home / "done").exists():
                shutil.rmtree(home, ignore_errors=True)
                home.mkdir()
                train(kind, home / "run")
                (home / "done").touch()
        return home / "run"

    def copy(self, kind: str, to: Path, links: bool = True) -> Path:
        """Copy a shared run to a folder that is not there yet."""
        original = self.original(kind)
        checkpoints = original / "checkpoints"

        def one(source: str, target: str) -> None:
            path = Path(source)
            if links and path.suffix == ".safetensors" and checkpoints in path.parents:
                self._sizes.setdefault(path, (path.stat().st_size, path.stat().st_mtime_ns))
                os.link(path, target)
            else:
                shutil.copy2(path, target)

        with (self._folder / f"{kind}.lock").open("w") as lock:  # nobody removes it meanwhile
            fcntl.flock(lock, fcntl.LOCK_SH)
            shutil.copytree(original, to, symlinks=True, copy_function=one)
        if kind == "followed" and not (to.parent / FOLLOWED).exists():
            shutil.copy2(original.parent / FOLLOWED, to.parent / FOLLOWED)
        return to

    def check(self) -> None:
        """Raise where a file that copies have in common was written to."""
        for path, before in self._sizes.items():
            now = (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None
            if now != before:
                self._sizes.clear()
                home = path.parents[3]
                with (self._folder / f"{home.name}.lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    shutil.rmtree(home, ignore_errors=True)  # the next test that needs one trains it anew
                raise AssertionError(f"the test must not write to {path}, which other tests share: ask for links=False")


def main() -> int:
    """Train all kinds."""
    for kind in KINDS:
        FinishedRuns(Path(os.environ[COMMON_FOLDER])).original(kind)
    return 0


FinishedRun = Callable[..., Path]
"""The fixture ``finished_run``: a kind, and ``links=False`` where the test writes to tables; returns a copy of the run."""
