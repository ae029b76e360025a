"""A run and its directory: configuration in, ``config.toml``, ``metrics.jsonl``, ``summary.json`` and checkpoints out."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.history import set_aside
from adaptive_rec.config.tree import Config, load_config, to_toml
from adaptive_rec.dense.evaluate import Evaluation
from adaptive_rec.errors import UsageError, first_line
from adaptive_rec.live.telemetry import Event, Snapshot, ratio, to_json
from adaptive_rec.memory.parts import peak_bytes
from adaptive_rec.offline.report.run_report import write_report
from adaptive_rec.policy.find import load_policy, why_not_live
from adaptive_rec.run import journal
from adaptive_rec.run.description import description
from adaptive_rec.run.directory import check_is_new, replace_text, sole_writer
from adaptive_rec.run.line_file import LineFile
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Report, Runtime
from adaptive_rec.tracker import load_tracker
from adaptive_rec.tracker.feed import CLOSE_SECONDS, Trackers
from adaptive_rec.tracker.values import SnapshotFigures, of_evaluation

HURRIED_REPORT_BYTES = 16 << 20
"""Metrics of which a report is made, in well under a second, though a signal came."""

HURRIED_TRACKING_SECONDS = 0.5
"""What trackers have left after a signal."""


class TrainingRun:
    """Train under a configuration and leave everything worth keeping in `out`.

    With `replay`, the changes that another run's journal tells of are made again at the same steps. `command`: the words of
    the command line, for the record. A run that is gone on with keeps the knobs it was saved with, but for those that
    `config` has otherwise than the run's own ``config.toml``, and those that `told` names.
    """

    def __init__(
        self,
        config: Config,
        out: Path,
        resume: bool = False,
        replay: Path | None = None,
        command: Sequence[str] = (),
        told: Collection[str] = (),
    ) -> None:
        if not resume:
            check_is_new(out)
        for name in config.run.track:
            load_tracker(name)  # a run that cannot be tracked begins nothing
        self.out = out
        self._lock = sole_writer(out) if resume else None
        self._journal, self._metrics = LineFile(out / journal.NAME), LineFile(out / "metrics.jsonl")
        self._command = ["adaptive-rec", *command] if command else []
        found = checkpoint.find(out / "checkpoints") if resume else None
        self._went_on_from = generation = found.generation if found else None
        self._knobs_event: dict[str, Any] = {}
        """Knobs changed before the run could begin to go on, old and new values."""
        self.last_words: list[Event] = []
        """Warnings that came after the last report."""
        if found is not None and generation is not None:
            self.runtime = self._go_on(config, generation, told)
            set_aside(DISK, out / "checkpoints", [name for name, _ in found.skipped])
            self.runtime.notices += [
                f"checkpoint {name} was passed over and set aside: {why}" for name, why in found.skipped
            ]
        else:
            self.runtime = assemble(config)
            self.config = self.runtime.config  # its hot budget is smaller where the device is
        self.started_at_step = self.runtime.step_number
        self.runtime.control.scheduled = journal.commands(replay) if replay else {}
        self.runtime.splitting.told = replay is not None
        self.runtime.checkpoints = out / "checkpoints"
        self._make_directory()  # late: a run that cannot go on leaves its directory as it was
        self._figures = SnapshotFigures([table.name for table in self.runtime.store.space.tables])
        try:
            self._trackers = Trackers(self.config.run.track, out, self.started_at_step)
        except UsageError:
            if not resume:
                shutil.rmtree(out, ignore_errors=True)  # new a moment ago, and in the way of the next try
            raise

    def _go_on(self, config: Config, generation: Path, told: Collection[str]) -> Runtime:
        """The run as it was saved. Knobs that are to be others are changed before its next step; where a run cannot go over to
        them while it trains, it begins with them."""
        kept = self.out / "config.toml"
        before = load_config(str(kept), {}) if kept.is_file() else config
        first = before.knobs
        saved, wanted = checkpoint.saved_knobs(generation), config.knobs.model_dump()
        changes = {
            name: value
            for name, value in wanted.items()
            if (name in told or value != getattr(first, name)) and value != getattr(saved, name)
        }
        policy = load_policy(saved.policy)
        live = "policy" not in changes or not why_not_live(load_policy(changes["policy"]), policy)
        knobs = saved if live else saved.changed(changes)
        runtime = assemble(config.model_copy(update={"knobs": knobs}))
        checkpoint.load(runtime, generation, verified=True)
        runtime.phases.check_resumable()
        if config.run.steps != before.run.steps and 0 < config.run.steps < runtime.step_number:
            raise UsageError(
                f"run.steps must be at least the {runtime.step_number} steps that {self.out} has made, got {config.run.steps}"
            )
        if live:
            runtime.told = changes
        was, now = saved.model_dump(), runtime.knobs.model_dump()
        self._knobs_event = {name: {"old": was[name], "new": now[name]} for name in now if now[name] != was[name]}
        self.config = runtime.config.model_copy(update={"knobs": first})
        return runtime

    def _make_directory(self) -> None:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self._lock = self._lock or sole_writer(self.out)
            replace_text(self.out / "config.toml", to_toml(self.config))
            facts = description(self.runtime, self.out.resolve().name, shlex.join(self._command))
            replace_text(self.out / "run.json", to_json(facts, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"--out {self.out} cannot be written: {error.strerror}") from None

    def events(self) -> Iterator[Report]:
        """Train; yield reports after they are written: figures to ``metrics.jsonl``, the journal to ``events.jsonl``."""
        runtime = self.runtime
        left = runtime.steps_total - runtime.step_number
        details = {"checkpoint": self._went_on_from.name} if self._went_on_from else {}
        yield self.note("started", f"{runtime.knobs.policy} on {runtime.device}, {left:,} steps to go", **details)
        if self._knobs_event:
            text = ", ".join(f"{name} {each['old']} -> {each['new']}" for name, each in self._knobs_event.items())
            yield self.note("knobs", text, changed=self._knobs_event, at_start=True)
        try:
            for report in runtime.run():
                if isinstance(report, Event):
                    self._append(report)
                else:
                    self._record(report, runtime.recorder.seconds)
                yield report
                files = filter(None, (self._journal.complaint(), self._metrics.complaint()))
                for text in (*files, *self._trackers.complaints()):
                    yield self.note("warning", text)
        except Exception as error:
            self._fail(error)
            raise
        if runtime.hurried:
            self.note("stopping", "a signal came: a checkpoint follows")

    def _fail(self, error: Exception) -> None:
        """Leave word of how the run ended."""
        self.runtime.enter("failed")
        self.note("failed", f"{type(error).__name__}: {error}")
        self._end_tracking()
        self._report()

    def _record(self, report: Snapshot | Evaluation, seconds: float) -> None:
        self._metrics.append(to_json(_line(report, seconds, self.runtime.tally.counters.samples_seen)))
        values = of_evaluation(report) if isinstance(report, Evaluation) else self._figures.of_snapshot(report)
        self._trackers.log(report.step, values)
        if isinstance(report, Evaluation):
            self.note("evaluation", f"AUC {report.quality.auc:.4f}, logloss {report.quality.logloss:.4f}")

    def note(self, kind: str, text: str, **details: Any) -> Event:
        """Write an event of this moment to the journal."""
        event = Event(self.runtime.step_number, kind, text, details)
        self._append(event)
        return event

    def _append(self, event: Event) -> None:
        self._journal.append(journal.line_of(event))
        self._trackers.event(event.step, event.kind, event.text)

    def finish(self) -> dict[str, Any]:
        """Write the final checkpoint, evaluate unless the run was hurried, write and return the summary. Then the directory is
        free for another process."""
        try:
            return self._finish()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            if self._lock is not None:
                self._lock.close()

    def _finish(self) -> dict[str, Any]:
        written = self.out / "summary.json"
        if self.runtime.step_number == self.started_at_step and (done := self._summary_of_this_step(written)):
            self.last_words = self._end_tracking()
            self.runtime.enter("finished")
            return done  # nothing was left to do
        seconds = self.runtime.recorder.seconds
        for event in self.runtime.saving.at_the_end():
            self._append(event)
        self.last_words = [self.note("warning", text) for text in self.runtime.complaints()]
        made = self.runtime.last_evaluation
        evaluation = made if made and made.step == self.runtime.step_number else self.runtime.evaluate()
        if evaluation is not made and evaluation:
            self._record(evaluation, seconds)
        summary = self.summary(seconds, evaluation)
        written.write_text(to_json(summary, indent=1) + "\n", encoding="utf-8")
        self.last_words += self._end_tracking()
        self.note("finished", "the run has ended")
        self._report()
        self.runtime.enter("finished")
        return summary

    def _summary_of_this_step(self, written: Path) -> dict[str, Any]:
        """The summary of a run that came as far as this one, empty where there is none."""
        try:
            summary = json.loads(written.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        whole = isinstance(summary, dict) and summary.get("steps") == self.runtime.step_number
        return dict(summary) if whole else {}

    def _end_tracking(self) -> list[Event]:
        """What trackers still had to log is logged, or told to be lost."""
        self._trackers.close(HURRIED_TRACKING_SECONDS if self.runtime.hurried else CLOSE_SECONDS)
        return [self.note("warning", text) for text in self._trackers.complaints()]

    def _report(self) -> None:
        """Write ``report.html``. No run fails for its sake, and after a signal it must not take long."""
        metrics = self.out / "metrics.jsonl"
        if self.runtime.hurried and metrics.exists() and metrics.stat().st_size > HURRIED_REPORT_BYTES:
            return
        try:
            write_report(self.out)
        except Exception as error:
            self.note("warning", f"no report could be made ({type(error).__name__}: {first_line(error)})")

    def summary(self, seconds: float, evaluation: Evaluation | None) -> dict[str, Any]:
        """What the run came to, from its very first step on."""
        runtime, totals = self.runtime, self.runtime.totals()
        return {
            "policy": runtime.knobs.policy,
            "action": runtime.knobs.action if not runtime.policy.exact else None,
            "seed": self.config.run.seed,
            "device": str(runtime.device),
            "precision": self.config.run.precision,
            "steps": runtime.step_number,
            "steps_total": runtime.steps_total,
            "resumed_at_step": self.started_at_step,
            "samples_seen": totals["samples_seen"],
            "samples_trained": totals["samples_trained"],
            "samples_skipped": totals["samples_seen"] - totals["samples_trained"],
            "malformed_rows": totals["malformed_rows"],
            "row_updates": totals["row_updates"],
            "row_updates_skipped": totals["row_updates_skipped"],
            "seconds": seconds,
            "samples_per_second": ratio(totals["samples_seen"], seconds),
            "train_logloss": ratio(totals["loss_sum"], totals["samples_trained"]),
            "eval": asdict(evaluation.quality) if evaluation else None,
            "hot_lookup_ratio": ratio(totals["lookups_hot"], totals["lookups"]),
            "popular_sample_ratio": ratio(totals["samples_popular"], totals["samples_seen"]),
            "hot_rows": runtime.store.device.hot_rows,
            "stale_rows": runtime.store.device.stale_rows,
            "total_rows": runtime.store.space.rows,
            "host_to_device_bytes": totals["host_to_device_bytes"],
            "device_to_host_bytes": totals["device_to_host_bytes"],
            "migrated_rows": totals["migrated_rows"],
            "device_tier_bytes": runtime.store.device_bytes,
            "device_staging_bytes": runtime.store.staging_bytes,
            "device_peak_bytes": runtime.store.peak_bytes,
            "peak_rss_bytes": peak_bytes(),
            "seconds_by_stage": {name: round(value, 4) for name, value in runtime.times.seconds.items()},
        }


def evaluate_run(run: Path, told: Callable[[str], None] = lambda text: None) -> Evaluation:
    """Evaluate a run's newest whole checkpoint on its held-out range; `told` hears of those that were passed over."""
    looked = checkpoint.find(run / "checkpoints")
    for name, why in looked.skipped:
        told(f"checkpoint {name} was passed over: {why}")
    found = looked.generation
    if found is None:
        raise UsageError(f"RUN must be a run directory with a checkpoint, {run} has none")
    config = load_config(str(run / "config.toml"), {}, ["run.device=auto", "run.compile=false"])
    if config.run.row_precision != "float32":  # no device carries such rows
        config = config.model_copy(update={"run": config.run.model_copy(update={"device": "cpu"})})
    runtime = assemble(config, policy=load_policy("hybrid"))  # every row in host memory, wherever it was trained
    checkpoint.load(runtime, found, verified=True)
    evaluation = runtime.evaluate()
    assert evaluation is not None
    return evaluation


def _line(event: Snapshot | Evaluation, seconds: float, samples_seen: int) -> dict[str, Any]:
    """A report as a line; evaluations are told by the clock and the samples at which they were made, which is not theirs."""
    if isinstance(event, Evaluation):
        at = {"step": event.step, "seconds": seconds, "samples_seen": samples_seen}
        return {"event": "evaluation", **at, **asdict(event.quality)}
    return {"event": "snapshot", **event.as_dict()}
