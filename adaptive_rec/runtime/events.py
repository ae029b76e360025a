"""Events of the journal that several parts of the runtime write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from pydantic import ByteSize

from adaptive_rec.live.telemetry import Event
from adaptive_rec.placement import Migration
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.runtime.splitting import TrialTimes
from adaptive_rec.state.run_state import RunState
from adaptive_rec.units import counted


def knob_text(name: str, value: Any) -> str:
    """Return a knob's value as people read it."""
    return ByteSize(value).human_readable() if name.endswith("_bytes") else str(value)


def reclassified(
    state: RunState, reclassifier: Reclassifier, *moved: Migration, asked_for: bool = False, **details: Any
) -> Event:
    """Return the event that rows changed tier, in one or several migrations. `asked_for` means by a command. Several processes
    must call it together: the counts are those of all their rows."""
    store = state.store
    hot_rows = int(store.index.hot_rows_T.sum())
    own = sum(len(one.promote) for one in moved), sum(len(one.demote) for one in moved), store.hot.tier.stale_rows, hot_rows
    promoted, demoted, stale_rows, hot_rows = store.group.total(np.array(own)).tolist()
    text = f"{promoted:,} rows became hot, {demoted:,} cold; {stale_rows:,} of {hot_rows:,} hot rows are stale"
    values = {
        "asked_for": asked_for,
        "promoted": promoted,
        "demoted": demoted,
        "stale_rows": stale_rows,
        "hot_rows": hot_rows,
        "version": state.placement_version,
        "stale_threshold": reclassifier.stale_threshold,
        **details,
    }
    return Event(state.step, "reclassified", text, values)


def split_chosen(step: int, times: TrialTimes) -> Event:
    """Return the event that batches run whole or split from now on, with the times that decided it."""
    whole, split = (f"{seconds * 1e3:.2f} ms" for seconds in (times.whole_seconds, times.split_seconds))
    chosen = "popular samples run first" if times.split else "batches run whole"
    text = f"{chosen}: a step took {whole} whole and {split} split"
    return Event(step, "split", text, {"split": times.split, **asdict(times)})


def left_out(state: RunState, begin: Mapping[str, int], end: Mapping[str, int], samples: int) -> Event:
    """Return the event that a part of the stream is not trained on, between two positions of its reader."""
    text = f"{samples:,} samples of the stream are left out, from sample {begin['offset']:,} of epoch {begin['epoch']} on"
    return Event(state.step, "left_out", text, {"begin": dict(begin), "end": dict(end), "samples": samples})


def stopped_early(state: RunState) -> Event:
    """Return the event that a run stops as its evaluations get no better."""
    best, waited = state.trend.best, state.trend.waited
    details = {"metric": state.trend.metric.name, "waited": waited, "best": None if best is None else asdict(best)}
    return Event(state.step, "stopped_early", why_stopped(details, state.passes), details)


def why_stopped(details: Mapping[str, Any], passes: int | None) -> str:
    """Return why a run has stopped early, in words. `passes`: over the training data, at the most."""
    metric, waited, best = details["metric"], details["waited"], details["best"]
    began = f"stopped early: {counted(waited, 'evaluation')} in a row without a better {metric}"
    if best is None:
        return f"{began}, and none before"
    of = f" of at most {passes}" if passes else ""
    epoch = f" (pass {best['epoch']}{of})" if best["epoch"] else ""
    return f"{began}; the best was {best['value']:.4f} at step {best['step']:,}{epoch}"


def with_note(event: Event, note: Mapping[str, Any]) -> Event:
    """Return an event with what a client said of its command."""
    if not note:
        return event
    undone = f"event {note['undoes']}" if note.get("undoes") else "a change that was not in effect yet"
    reasons = [*([f"undoes {undone}"] if "undoes" in note else []), *([note["why"]] if note.get("why") else [])]
    return replace(event, text=": ".join([event.text, *reasons]), details={**event.details, **note})
