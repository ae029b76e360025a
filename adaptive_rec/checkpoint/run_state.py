"""The parts of a run that a checkpoint keeps besides its tables, and how much of them another run can take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from adaptive_rec.checkpoint.flatten import Copies
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.finite import StepCheck
from adaptive_rec.embedding.placement_state import placement_state, read_hot_rows, set_placement, set_slots, set_traffic
from adaptive_rec.errors import CheckpointError
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.state.run_state import RunState
from adaptive_rec.state.saved_run import read_knobs
from adaptive_rec.tracking.count_min import of_older_version, saved_sketch
from adaptive_rec.tracking.popularity import saved_candidates

if TYPE_CHECKING:
    from adaptive_rec.data.raw.raw_ids import RawIds


class SavedPart(Protocol):
    """A part of a run with a state of its own."""

    def state(self) -> dict[str, Any]: ...

    def set_state(self, found: Saved) -> None: ...


class SavedPhases(Protocol):
    """The phases of the stream, which a run resumes in the middle of."""

    reordered: bool

    def state(self) -> dict[str, Any]: ...

    def set_state(self, found: Saved, placed: bool) -> None: ...

    def set_order(self, found: Saved) -> None: ...


@dataclass(frozen=True)
class Last:
    """The newest checkpoint that a run has written or resumed from; the next one saves what has changed since."""

    folder: Path
    name: str
    of: tuple[Any, ...]
    """The state it was made of (`state_key`); a run in the same state needs no other checkpoint."""


class SavedBase:
    """What the next checkpoint of a run builds on."""

    def __init__(self) -> None:
        self.last: Last | None = None
        self.copies = Copies()
        """Memory for copies of small arrays, used again by each checkpoint."""

    def build_on(self, last: Last | None) -> None:
        """Let the next checkpoint build on another one, or on none."""
        self.last = last


@dataclass(frozen=True)
class RunParts:
    """The parts of a run that a checkpoint saves and restores."""

    state: RunState
    dense: DensePart
    observer: Observer
    reclassifier: Reclassifier
    phases: SavedPhases
    splitting: SavedPart
    finite: StepCheck
    watchdog: SavedPart
    progressive: SavedPart | None = None
    """Scores of samples before they were trained on, where data is followed."""
    guard: SavedPart | None = None
    """Trials of what skipping costs, where they can be made."""
    base: SavedBase = field(default_factory=SavedBase)


def collect_run_state(parts: RunParts) -> dict[str, Any]:
    """Return the state of a run between two steps. Several processes must call it together: each has the placement of its rows
    and what it has observed of them, and all have the same counts."""
    store = parts.state.store
    placement = placement_state(store)
    return {
        **parts.state.state(),
        "store": {**placement, "traffic": store.group.totals(placement["traffic"]), "disk": store.cold.total_counts()},
        "observer": parts.observer.state(),
        "reclassifier": parts.reclassifier.state(),
        "phases": parts.phases.state(),
        "splitting": parts.splitting.state(),
        "keys": parts.state.input.keys_state(parts.state.step),
        "followed": parts.state.input.followed_state(),
        "columns": parts.state.input.columns_state(),
        **({"homes": np.array(store.peers.home_T)} if store.peers.home_T else {}),
        "loss_sum": float(store.hot.fetch(parts.dense.loss_sum)),
        "left_out_in_a_row": parts.finite.in_a_row,
        "watchdog": parts.watchdog.state(),
        "progressive": None if parts.progressive is None else parts.progressive.state(),
        "guard": None if parts.guard is None else parts.guard.state(),
    }


def restore_run_state(parts: RunParts, ranks: int, saved_by: Callable[[int], Saved]) -> None:
    """Restore a saved state, after tables and dense part. `saved_by` returns what a rank has saved, `ranks` is their number.

    Under the same policy with the same budget, pools, ranks and owners everything is as it was; otherwise rows start cold and
    are placed by what was counted of them so far. A run that goes on has the pools of its checkpoint; one that only scores may
    have others. Raises CheckpointError.
    """
    state = parts.state
    group = state.store.group
    found = saved_by(group.rank if ranks == group.ranks else 0)
    home_T = saved_homes(found)
    same_ranks = ranks == group.ranks and home_T == state.store.peers.home_T
    state.set_progress(found)
    set_traffic(state.store, found.part("store").part("traffic"))
    if found.part("store").has("disk"):  # older versions kept none
        disk = found.part("store").part("disk")
        state.store.cold.set_total_counts({name: disk.integer(name) for name in disk.all_numbers()})
    _set_keys(state.input.raw_ids, found, saved_by)
    for text in counted_anew(found.part("observer"), found.maybe("keys") if found.has("keys") else None):
        state.warn(text)
    if state.input.followed is not None:
        place = found.maybe("followed") if found.has("followed") else None  # older versions had none
        if place is None:
            raise CheckpointError("data.follow must be false as in the checkpoint, got true")
        state.input.followed.set_state(place)
    for name in ("followed", "columns"):  # a run that scores other data has no use for them
        if found.has(name):
            found.ignore(name)
    if found.has("watchdog"):  # older versions had none
        parts.watchdog.set_state(found.part("watchdog"))
    if found.has("progressive"):  # older versions saved none
        found.ignore("progressive")
        every_rank = range(ranks) if group.rank == 0 else ()
        for saved in [found] if same_ranks else map(saved_by, every_rank):
            if parts.progressive is not None and (scores := saved.maybe("progressive")) is not None:
                parts.progressive.set_state(scores)
    loss_sum = found.number("loss_sum")
    state.store.hot.launch(lambda: parts.dense.loss_sum.fill_(loss_sum))
    policy, how = found.text("policy"), (found.integer("budget_bytes"), found.flag("monitored"))
    read_knobs(found.part("knobs"))
    pools = not found.flag("begun") or len(found.part("store").parts("pools")) == len(state.store.space.pools)
    same = pools and policy == state.policy.name and how == (state.budget_bytes, state.store.hot.monitored)
    if found.flag("begun") and same_ranks and same:
        _set_all(parts, found)
        return
    if found.flag("begun") and same_ranks:
        parts.observer.remember(found.part("observer"), read_hot_rows(found.part("store"), state.store.space.rows))
    elif found.flag("begun") and state.policy.counts_lookups(state.knobs):
        for rank in range(ranks):
            _remember_rows_of(parts, saved_by(rank), rank, ranks, home_T)
    if policy == state.policy.name:
        parts.phases.set_state(found.part("phases"), placed=False)
    else:
        parts.phases.set_order(found.part("phases"))


def counted_anew(observer: Saved | None, keys: Saved | None) -> Iterator[str]:
    """Yield what a resumed run must say of counts that an older version saved. `keys`: what was saved of raw ids."""
    counter = None if observer is None else observer.part("tracker").part("counter")
    if counter is not None and counter.has("counters") and of_older_version(counter):
        yield (
            "the checkpoint is of a version that counted lookups in another kind of sketch: rows that are placed and "
            "candidates keep their estimates, all others are counted anew"
        )
    sketch = None if keys is None else keys.maybe("sketch")
    if sketch is not None and of_older_version(sketch):
        yield (
            "the checkpoint is of a version that counted ids without a row in another kind of sketch: they are counted anew "
            "(knobs.admit_after)"
        )


def saved_homes(found: Saved) -> tuple[int, ...]:
    """Return the rank that owned each table whole, -1 for one whose rows were dealt out; nothing where all were."""
    return tuple(found.array("homes", np.int64, ANY).tolist()) if found.has("homes") else ()


def _set_keys(keys: RawIds | None, found: Saved, saved_by: Callable[[int], Saved]) -> None:
    """Restore the keys, which rank 0 has saved for all. `found` is what this rank has saved."""
    saved = found.maybe("keys") if found.has("keys") else None  # older versions had none
    if saved is None and keys is not None:
        of_all = saved_by(0)
        saved = of_all.maybe("keys") if of_all.has("keys") else None
    if (saved is None) != (keys is None):
        was, now = ("raw" if there else "no raw" for there in (saved is not None, keys is not None))
        raise CheckpointError(f"data.ids must be as in the checkpoint, which has {was} ids; the run has {now} ids")
    if keys is not None and saved is not None:
        keys.set_state(saved)


def _remember_rows_of(parts: RunParts, found: Saved, rank: int, ranks: int, home_T: tuple[int, ...]) -> None:
    """Restore what one of several ranks had counted of its rows, as far as they are this rank's now."""
    from adaptive_rec.embedding.peers.ownership import Ownership

    store, saved = parts.state.store, Ownership(parts.state.store.peers.batch_space, ranks, rank, home_T=home_T)
    space, tracker = store.peers.batch_space if ranks == 1 else saved.own, found.part("observer").part("tracker")
    rows = np.union1d(saved_candidates(tracker, space.rows), read_hot_rows(found.part("store"), space.rows))
    counts = saved_sketch(tracker.part("counter"), parts.state.config.run.seed).estimate(rows)
    here, own_rows = store.peers.owned(rows if ranks == 1 else saved.joint_rows(rows))
    parts.observer.remember_counts(own_rows, counts[here])


def _set_all(parts: RunParts, found: Saved) -> None:
    parts.state.set_placed(found)
    _set_slots(parts.state, found.part("store"))
    parts.observer.set_state(found.part("observer"))
    parts.reclassifier.set_state(found.part("reclassifier"))
    parts.phases.set_state(found.part("phases"), placed=True)
    parts.splitting.set_state(found.part("splitting"))
    parts.finite.set_in_a_row(found.integer("left_out_in_a_row"))
    if found.has("guard"):  # older versions had no trials: the guard begins anew
        if parts.guard is not None and (guard := found.maybe("guard")) is not None:
            parts.guard.set_state(guard)
        found.ignore("guard")
    found.finish()


def _set_slots(state: RunState, found: Saved) -> None:
    store, budget = state.store, state.budget_bytes
    slots = [len(part.array("row_of_slot", np.int64, -1)) for part in found.parts("pools", len(store.space.pools))]
    rows = [pool.rows for pool in store.space.pools]
    used = sum(count * size for count, size in zip(slots, store.hot.row_bytes(), strict=True))
    if used > budget or any(count > most for count, most in zip(slots, rows, strict=True)):
        raise CheckpointError(f"slots must fit the budget of {budget} bytes and the pools' rows, got {slots}")
    set_slots(store, slots)
    set_placement(store, found)
