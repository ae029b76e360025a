"""A store and its checkpoints equal plain arrays to the last bit after any sequence of operations."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from adaptive_rec.checkpoint.history import Verified
from adaptive_rec.embedding.direct import DirectStore
from adaptive_rec.embedding.snapshot import RowSnapshot
from adaptive_rec.embedding.staged.in_place_store import InPlaceStore
from adaptive_rec.embedding.staged.moves import SlotMoves
from adaptive_rec.embedding.staged.staged_store import StagedStore
from adaptive_rec.embedding.staged.write_back import WriteBack
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError
from tests.embedding.world import KINDS, WEIGHTS, Kind, World, small_shards

CHOSEN = os.environ.get("ADAPTIVE_REC_STATEFUL_SEED")
"""The one seed to run, to repeat a failure."""

SHORTENING_SECONDS = 60

Operations = list[tuple[str, int]]
"""Names with the seeds of their dice."""


def run(kind: Kind, seed: int, operations: Operations) -> tuple[Exception | None, int, Counter[str]]:
    """Return the error, the number of operations before it, and counts of events."""
    done = 0
    with small_shards():
        world = World(kind, seed)
        try:
            for operation, dice in operations:
                done += 1
                world.do(operation, dice)
            world.finish_all()
        except Exception as error:
            return error, done, world.counts
        finally:
            world.end_life()
    return None, done, world.counts


def drawn(seed: int, steps: int) -> Operations:
    dice = random.Random(seed)
    names = dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps)
    return [(name, dice.getrandbits(32)) for name in names]


def shortened(kind: Kind, seed: int, operations: Operations) -> Operations:
    """Operations that fail still when as many as can be found in a while are left out."""
    end = time.monotonic() + SHORTENING_SECONDS
    size = len(operations)
    while size := size // 2:
        start = 0
        while start < len(operations) and time.monotonic() < end:
            fewer = operations[:start] + operations[start + size :]
            error, done, _ = run(kind, seed, fewer)
            if error is None:
                start += size
            else:
                operations = fewer[:done]
    return operations


def drive(seed: int, steps: int) -> Counter[str]:
    kind, operations = KINDS[seed % len(KINDS)], drawn(seed, steps)
    error, done, counts = run(kind, seed, operations)
    if error is not None:
        few = shortened(kind, seed, operations[:done])
        text = f"ADAPTIVE_REC_STATEFUL_SEED={seed}, {kind}, operation {done}: {type(error).__name__}: {error}"
        raise AssertionError(f"{text}\n{len(few)} operations are enough: {few}") from error
    print(f"seed {seed}, {kind}: {dict(counts)}")
    return counts


def seeds_of(some: list[int]) -> list[int]:
    return [int(CHOSEN)] if CHOSEN else some


@pytest.mark.parametrize("steps", [150, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", seeds_of([0, 8, 16, 18, 20]))
def test_a_store_and_its_checkpoints_equal_plain_arrays(seed: int, steps: int) -> None:
    drive(seed, steps)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds_of(list(range(22))))
def test_over_many_operations_too(seed: int) -> None:
    counts = drive(seed, 10_000)
    for what in ("full", "changes", "given up", "kill", "power loss", "while writing", "between", "waited for"):
        assert counts[what], f"{what} never happened"


# Mistakes ------------------------------------------------------------------------------------------------------------


def keep_no_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowSnapshot, "keep", lambda snapshot, pool, rows: None)


def bring_rows_home_unsaved(patch: pytest.MonkeyPatch) -> None:
    land = WriteBack._land

    def landed(homing: WriteBack, *arguments: object) -> None:
        host = homing._rows._host  # type: ignore[attr-defined]
        snapshot = host._snapshot
        host.save_into(None)
        land(homing, *arguments)  # type: ignore[arg-type]
        host.save_into(snapshot)

    patch.setattr(WriteBack, "_land", landed)


def leave_a_row_unmarked(patch: pytest.MonkeyPatch) -> None:
    apply = DirectStore.apply

    def applied(store: DirectStore, work: object, update: object) -> None:
        apply(store, work, update)  # type: ignore[arg-type]
        store.changed_R[store.changed_R.argmax()] = False

    patch.setattr(DirectStore, "apply", applied)


def forget_what_was_not_saved(patch: pytest.MonkeyPatch) -> None:
    end = EmbeddingStore.end_snapshot

    def ended(store: EmbeddingStore, saved: bool) -> None:
        if store.snapshot is not None:
            store.snapshot.forget()
        end(store, True)

    patch.setattr(EmbeddingStore, "end_snapshot", ended)


def save_stale_copies_of_hot_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StagedStore, "_make_readable", lambda store, pending_R: None)


def leave_flags_on_the_device(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StagedStore, "_collect_changed", lambda store: None)


def leave_flags_in_slots_that_become_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotMoves, "take_flags", lambda moves, flags_H, slots: np.zeros(len(slots), np.bool_))


def flag_no_row_that_comes_home(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StagedStore, "_flagging", lambda store, pool, host_rows, changed: lambda first, end: None)


def flag_no_row_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InPlaceStore, "_flag", lambda store, changed: None)


def remove_what_is_built_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Verified, "needed", lambda verified, names: set(names))


DIRECT, LATE, IN_PLACE = ("direct", "float64", "sgd"), ("late", "float64", "sgd"), ("in_place", "float64", "adagrad")


@pytest.mark.parametrize(
    ("mistake", "kind"),
    [
        (keep_no_row, DIRECT),
        (bring_rows_home_unsaved, LATE),
        (leave_a_row_unmarked, DIRECT),
        (forget_what_was_not_saved, DIRECT),
        (save_stale_copies_of_hot_rows, LATE),
        (leave_flags_on_the_device, LATE),
        (leave_flags_in_slots_that_become_free, LATE),
        (flag_no_row_that_comes_home, LATE),
        pytest.param(keep_no_row, IN_PLACE, marks=pytest.mark.slow),
        pytest.param(leave_flags_on_the_device, IN_PLACE, marks=pytest.mark.slow),
        (flag_no_row_in_place, IN_PLACE),
        (remove_what_is_built_on, DIRECT),
    ],
)
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite finds the mistake by saved or restored rows, without a look at the store's own marks."""
    mistake(monkeypatch)
    monkeypatch.setattr(World, "check_marks", lambda world: None)
    monkeypatch.setattr(World, "check_flags", lambda world, found_R, expected_R: None)
    errors: list[Exception | None] = []
    for seed in (4, 3, 1):  # with the first one each of them is found within about 100 operations
        errors.append(run(kind, seed, drawn(seed, 400))[0])
        if isinstance(errors[-1], AssertionError | CheckpointError):
            break
    assert isinstance(errors[-1], AssertionError | CheckpointError), errors
