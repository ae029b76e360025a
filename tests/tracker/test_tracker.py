"""Trackers: their figures and how they are found; a run neither waits for a tracker nor fails with it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import ConfigError, UsageError
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.tracker import load_tracker
from adaptive_rec.tracker.feed import WAITING_LIMIT, Trackers
from tests.stopwatch import Stopwatch

OWN = '''
from adaptive_rec.tracker import Tracker

class Kept(Tracker):
    """Keeps what it is given."""

    def __init__(self, folder, step):
        self.folder, self.step, self.logged, self.events, self.closed = folder, step, [], [], 0
        made.append(self)

    def log(self, step, values):
        self.logged.append((step, values))

    def event(self, step, kind, text):
        self.events.append((step, kind, text))

    def close(self):
        self.closed += 1

class Fails(Kept):
    def log(self, step, values):
        super().log(step, values)
        if len(self.logged) == 2:
            raise OSError("No space left on device\\nat all")

class Unmakeable(Tracker):
    def __init__(self, folder, step):
        raise RuntimeError("no such server")

    def log(self, step, values):
        pass

class Silent:
    def log(self, step, values):
        pass

    def close(self):
        pass

made = []
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's module with trackers, and a package of his that names one as an entry point."""
    code = tmp_path / "code"
    info = code / "own_trackers-1.0.dist-info"
    info.mkdir(parents=True)
    (code / "own_trackers.py").write_text(OWN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-trackers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[adaptive_rec.trackers]\nkept = own_trackers:Kept\n")
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.delitem(sys.modules, "own_trackers", raising=False)
    import own_trackers  # type: ignore[import-not-found]

    return own_trackers


def trained(
    out: Path, *trackers: str, steps: int = 20, resume: bool = False, policy: str = "hotline"
) -> TrainingRun:
    settings = [
        f"knobs.policy={policy}",
        f"run.steps={steps}",
        "knobs.report_every=5",
        f"run.track={json.dumps(trackers)}",
        "eval.every_steps=10",
    ]
    run = TrainingRun(load_config("tiny", {}, settings), out, resume)
    for _ in run.events():
        pass
    run.finish()
    return run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tensorboard(out: Path) -> Any:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'adaptive-rec[track]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(out / "tensorboard")).Reload()


def scalars(found: Any, name: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in found.Scalars(name)]


def test_tensorboard_has_the_runs_figures_and_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'adaptive-rec[track]'")
    trained(tmp_path / "run", "tensorboard", policy="slipstream")
    found, written = tensorboard(tmp_path / "run"), lines(tmp_path / "run" / "metrics.jsonl")
    snapshots = [each for each in written if each["event"] == "snapshot"]
    evaluations = [each for each in written if each["event"] == "evaluation"]
    assert [each["step"] for each in snapshots] == [5, 10, 15, 20]
    for name, key in (("train/loss", "loss"), ("hot/lookup_ratio", "hot_lookup_ratio"), ("rows/hot", "hot_rows")):
        assert scalars(found, name) == [(each["step"], np.float32(each[key])) for each in snapshots]
    for key in ("auc", "logloss", "calibration"):
        assert scalars(found, f"eval/{key}") == [(each["step"], np.float32(each[key])) for each in evaluations]
    first, second = (each["tables"] for each in snapshots[1:3])
    gain = {key: second[key][0] - first[key][0] for key in ("lookups", "lookups_hot")}
    assert scalars(found, "hot_lookup_ratio/C1")[2] == (15, np.float32(gain["lookups_hot"] / gain["lookups"]))
    started = found.Tensors("events/started")
    assert [(each.step, each.tensor_proto.string_val[0].decode()) for each in started] == [
        (0, "slipstream on cpu, 20 steps to go")
    ]


def test_figures_after_the_checkpoint_are_void_in_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'adaptive-rec[track]'")
    out = tmp_path / "run"
    trained(out, "tensorboard", steps=10)
    lost = Trackers(["tensorboard"], out, 10)
    lost.log(15, {"train/loss": 99.0})  # by a process that was killed before it saved
    lost.close()
    assert scalars(tensorboard(out), "train/loss")[-1] == (15, 99.0)
    trained(out, "tensorboard", steps=20, resume=True)
    found = scalars(tensorboard(out), "train/loss")
    assert [step for step, _ in found] == [5, 10, 15, 20]
    assert max(loss for _, loss in found) < 1
    trained(out, "tensorboard", steps=20, resume=True)  # nothing is left to do
    assert scalars(tensorboard(out), "train/loss") == found
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("tracker")] == []


def test_a_user_s_tracker_is_found_by_module_and_by_entry_point(tmp_path: Path, own: Any) -> None:
    run = trained(tmp_path / "run", "own_trackers:Kept", "kept", "kept")
    one, other = own.made  # a name given twice is one tracker
    assert one.logged == other.logged
    assert one.events == other.events
    assert (one.folder, one.step, one.closed) == (run.out, 0, 1)
    assert [step for step, _ in one.logged] == [5, 10, 10, 15, 20, 20]
    assert all(np.isfinite(value) for _, values in one.logged for value in values.values())
    assert {"started", "reclassified", "evaluation"} <= {kind for _, kind, _ in one.events}


def test_a_tracker_that_fails_is_switched_off_with_one_line_and_changes_nothing(tmp_path: Path, own: Any) -> None:
    plain = trained(tmp_path / "plain")
    run = trained(tmp_path / "run", "own_trackers:Fails", "own_trackers:Kept")
    failed, kept = own.made
    assert (len(failed.logged), failed.closed) == (2, 1)
    assert len(kept.logged) == 6
    warning = "tracker own_trackers:Fails failed and is switched off: OSError: No space left on device"
    warnings = [each["text"] for each in lines(run.out / "events.jsonl") if each["kind"] == "warning"]
    assert warnings == [warning]
    losses = [[each.get("loss") for each in lines(each.out / "metrics.jsonl")] for each in (plain, run)]
    assert losses[0] == losses[1]
    for one, other in zip(plain.runtime.store.cold.types.weights, run.runtime.store.cold.types.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_failing_run_informs_its_trackers(tmp_path: Path, own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrainingRun(load_config("tiny", {}, ['run.track=["own_trackers:Kept"]', "run.steps=3"]), tmp_path / "run")
    monkeypatch.setattr(run.runtime.steps, "execute", lambda *_: (_ for _ in ()).throw(OSError("no more data")))
    with pytest.raises(OSError, match="no more data"):
        list(run.events())
    [kept] = own.made
    assert [kind for _, kind, _ in kept.events] == ["started", "failed"]
    assert kept.closed == 1


def test_the_command_prints_the_tracker_s_failure_once(
    tmp_path: Path, own: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "tiny", "--no-serve", "--steps=20", "--track=own_trackers:Fails", "--track=own_trackers:Kept"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert (
        capsys.readouterr().out.count("tracker own_trackers:Fails failed and is switched off: OSError: No space") == 1
    )
    assert 'track = [\n    "own_trackers:Fails",\n' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tensorbord", r"run\.track must be one of tensorboard, .* got 'tensorbord'; did you mean tensorboard\?"),
        ("own_trackers:Missing", r"run\.track own_trackers:Missing cannot be loaded: AttributeError"),
        ("own_trackers:Silent", r"run\.track must name a class with the methods log, event, close .* it lacks event"),
        ("own_trackers:made", r"run\.track must name a class"),
        ("no_such_module:Class", r"run\.track no_such_module:Class cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_tracker_that_cannot_be_found_is_an_error_before_anything_is_made(tmp_path: Path, own, name, said) -> None:
    with pytest.raises(ConfigError, match=said):
        TrainingRun(load_config("tiny", {}, [f'run.track=["{name}"]']), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_cannot_be_made_is_an_error_too(tmp_path: Path, own: Any) -> None:
    with pytest.raises(UsageError, match="own_trackers:Unmakeable cannot be made: RuntimeError: no such server"):
        TrainingRun(load_config("tiny", {}, ['run.track=["own_trackers:Unmakeable"]']), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing is in the way of the next try"


def test_a_package_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "adaptive_rec.tracker.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ConfigError, match=r"pip install 'adaptive-rec\[track\]'"):
        load_tracker("tensorboard")


class Held:
    """A tracker that waits until it may go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.steps: list[int] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.go_on.wait(30)
        self.steps.append(step)

    def event(self, step: int, kind: str, text: str) -> None: ...

    def close(self) -> None: ...


def held(monkeypatch: pytest.MonkeyPatch) -> tuple[Trackers, Held]:
    tracker = Held()
    monkeypatch.setattr("adaptive_rec.tracker.feed.make_tracker", lambda *_: tracker)
    return Trackers(["held"], Path()), tracker


def test_training_does_not_wait_for_a_slow_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits waits for it, what does not is counted; training and its end go on."""
    trackers, tracker = held(monkeypatch)
    for step in range(WAITING_LIMIT + 50):
        trackers.log(step, {"loss": 1.0})
    assert trackers.complaints() == ["tracker held is too slow: reports that it has no time for are left out"]
    assert trackers.complaints() == []
    watch = Stopwatch()
    trackers.close(0.05)
    assert watch.seconds < 5
    [said] = trackers.complaints()
    assert said in {f"tracker held got all but {left} of {WAITING_LIMIT + 50} reports" for left in (305, 306)}
    tracker.go_on.set()


def test_waiting_reports_are_logged_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    trackers, tracker = held(monkeypatch)
    for step in range(WAITING_LIMIT // 2):
        trackers.log(step, {"loss": 1.0})
    threading.Timer(0.1, tracker.go_on.set).start()
    trackers.close(20)
    assert tracker.steps == list(range(WAITING_LIMIT // 2))
    trackers.log(1000, {"loss": 1.0})  # too late, and no error
    assert trackers.complaints() == []


def test_values_that_are_not_finite_are_left_out(tmp_path: Path, own: Any) -> None:
    trackers = Trackers(["own_trackers:Kept"], tmp_path)
    trackers.log(1, {"auc": float("nan"), "loss": np.float32(0.5), "rows": 3})
    trackers.log(2, {"threshold": float("inf")})
    trackers.close()
    assert own.made[0].logged == [(1, {"loss": 0.5, "rows": 3.0})]


def test_a_tracker_that_hangs_at_the_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    trackers, tracker = held(monkeypatch)
    trackers.log(0, {"loss": 1.0})
    while trackers._feeds[0]._calls:
        time.sleep(0.001)
    trackers.close(0.05)
    assert trackers.complaints() == ["tracker held was not ready in time: its last report may be missing"]
    tracker.go_on.set()


FULL = """
import resource, sys
from pathlib import Path
from adaptive_rec.tracker.feed import Trackers
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
trackers = Trackers(["tensorboard"], Path(sys.argv[1]))
for step in range(200):
    trackers.log(step, {f"train/{number}": step for number in range(20)})
trackers.close()
print(trackers.complaints())
"""


def test_tensorboard_on_a_full_disk_says_one_line(tmp_path: Path) -> None:
    """Its own writer prints a traceback from a thread of its own."""
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'adaptive-rec[track]'")
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.stdout == "['tracker tensorboard failed and is switched off: OSError: [Errno 27] File too large']\n"
    assert done.stderr == ""
    assert [step for step, _ in scalars(tensorboard(tmp_path), "train/3")][:2] == [0, 1]
