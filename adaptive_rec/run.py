"""A run and its directory: configuration in, ``config.toml``, ``metrics.jsonl``, ``summary.json`` and checkpoints out."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaptive_rec import checkpoint
from adaptive_rec.assemble import assemble
from adaptive_rec.config import Config, load_config, to_toml
from adaptive_rec.errors import UsageError
from adaptive_rec.evaluate import Evaluation
from adaptive_rec.policy import load_policy
from adaptive_rec.telemetry import Snapshot, ratio


class TrainingRun:
    """Train under a configuration and leave everything worth keeping in `out`."""

    def __init__(self, config: Config, out: Path, resume: bool = False) -> None:
        if out.exists() and not resume and any(out.iterdir() if out.is_dir() else [out]):
            raise UsageError(f"--out must be a new directory, {out} exists; give another or add --resume")
        self.config = config
        self.out = out
        found = checkpoint.newest(out / "checkpoints") if resume else None
        self.runtime = assemble(config)
        if found:
            checkpoint.load(self.runtime, found)
        self.started_at_step = self.runtime.step_number
        self._make_directory()  # last: a run that cannot go on leaves its directory as it was

    def _make_directory(self) -> None:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "config.toml").write_text(to_toml(self.config), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {self.out} cannot be written: {error.strerror}") from None

    def events(self) -> Iterator[Snapshot | Evaluation]:
        """Train; yield snapshots and evaluations after they are written to ``metrics.jsonl``."""
        with open(self.out / "metrics.jsonl", "a", encoding="utf-8") as metrics:
            for event in self.runtime.run():
                metrics.write(to_json(_line(event)) + "\n")
                metrics.flush()
                yield event

    def finish(self) -> dict[str, Any]:
        """Write the final checkpoint, evaluate, write and return the summary."""
        written = self.out / "summary.json"
        if self.runtime.step_number == self.started_at_step and written.exists():
            return dict(json.loads(written.read_text(encoding="utf-8")))  # nothing was left to do
        seconds = self.runtime.recorder.seconds
        checkpoint.save(self.runtime, self.out / "checkpoints")
        summary = self.summary(seconds, self.runtime.evaluate())
        written.write_text(to_json(summary, indent=1) + "\n", encoding="utf-8")
        return summary

    def summary(self, seconds: float, evaluation: Evaluation) -> dict[str, Any]:
        """What the run came to. Counters and seconds are of this process; `steps` counts from the very first one."""
        runtime, totals = self.runtime, self.runtime.totals()
        return {
            "policy": self.config.policy.name,
            "action": self.config.knobs.action if not runtime.policy.exact else None,
            "seed": self.config.run.seed,
            "device": str(runtime.device),
            "precision": self.config.run.precision,
            "steps": runtime.step_number,
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
            "eval": asdict(evaluation.quality),
            "hot_lookup_ratio": ratio(totals["lookups_hot"], totals["lookups"]),
            "popular_sample_ratio": ratio(totals["samples_popular"], totals["samples_seen"]),
            "hot_rows": runtime.store.device.hot_rows,
            "stale_rows": runtime.store.device.stale_rows,
            "total_rows": runtime.store.space.rows,
            "host_to_device_bytes": totals["host_to_device_bytes"],
            "device_to_host_bytes": totals["device_to_host_bytes"],
            "migrated_rows": totals["migrated_rows"],
            "device_tier_bytes": runtime.store.device_bytes,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "seconds_by_stage": {name: round(value, 4) for name, value in runtime.times.seconds.items()},
        }


def evaluate_run(run: Path) -> Evaluation:
    """Evaluate a run's newest checkpoint on its held-out range."""
    found = checkpoint.newest(run / "checkpoints")
    if found is None:
        raise UsageError(f"RUN must be a run directory with a checkpoint, {run} has none")
    config = load_config(str(run / "config.toml"), {}, ["run.device=auto"])
    runtime = assemble(config, policy=load_policy("hybrid"))  # every row in host memory, wherever it was trained
    checkpoint.load(runtime, found)
    return runtime.evaluate()


def to_json(values: dict[str, Any], indent: int | None = None) -> str:
    """JSON with null for what is no number, such as the AUC where one class occurs."""
    return json.dumps(_nulls(values), indent=indent, allow_nan=False)


def _nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nulls(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(event: Snapshot | Evaluation) -> dict[str, Any]:
    if isinstance(event, Evaluation):
        return {"event": "evaluation", "step": event.step, **asdict(event.quality)}
    return {"event": "snapshot", **event.as_dict()}
