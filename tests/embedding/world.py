"""A run's store, its checkpoints and its ends, driven by operations that a seed draws, against tables in plain arrays.

Everything is real but the disk, the model's gradients and the order of things.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.generation import generations, names_in, set_aside
from adaptive_rec.checkpoint.history import Found, verify_all
from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.checkpoint.writing import Writing
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError
from adaptive_rec.kernels.update_rules import NAMED_RULES
from tests.checkpoint.sim_files import SimFiles
from tests.embedding.driven_store import SETTINGS, DrivenStore
from tests.embedding.lives import Life, SnapshotClock, Writer, after_power_loss
from tests.embedding.plain_rows import Rows, differences, rows_of

Kind = tuple[str, str, str]
"""Store (any: another one in each life), type of rows, update rule."""

KINDS: list[Kind] = [
    (device, rows, rule)
    for device in ("direct", "late")
    for rows in ("float64", "float32")
    for rule in NAMED_RULES
] + [("direct", "bf16", "sgd")] * 2 + [("any", "float64", "sgd")] * 2 + [
    ("in_place", "float64", "adagrad"), ("in_place", "float32", "lazy_adam"),
]  # fmt: skip

WEIGHTS: dict[str, float] = {
    "step": 40, "stage": 12, "skip": 3, "migrate": 15, "resize": 2, "settle": 1, "free_memory": 0.2, "begin": 5, "advance": 15,
    "finish": 4, "crash": 0.8,
}  # fmt: skip
"""All operations, and how often each is drawn."""

FOLDER = Path("/checkpoints")
CHECK_EVERY = 25
"""Operations between two looks at every row."""


@contextmanager
def small_shards() -> Iterator[None]:
    """Shards of a few rows, in slices of fewer, so that rare orders of events occur."""
    with mock.patch.multiple("adaptive_rec.embedding.snapshot", SHARD_BYTES=600, _SLICE_BYTES=150, time=SnapshotClock):
        yield


@dataclass
class Moment:
    """The state that a checkpoint must hold."""

    step: int
    rows: Rows


class World(DrivenStore):
    def __init__(self, kind: Kind, seed: int) -> None:
        device, rows, rule = kind
        precision = "run.row_precision=bf16" if rows == "bf16" else f"run.precision={rows}"
        self.counts: Counter[str] = Counter()
        """Counts of events."""
        self.operations = 0
        self._moments: dict[str, list[Moment]] = {}
        """Moments by names of generations; a name may have two, where the first was abandoned."""
        self._durable: str | None = None
        """The newest generation that cannot be lost."""
        self._since: list[str] = []
        """Generations started after it, which may be found or not."""
        self._kept: list[str] = []
        """The two newest generations, which can be read."""
        self._saving_R = np.zeros(0, np.bool_)
        self._writer: Writer | None = None
        self._files = SimFiles()
        super().__init__(load_config(None, {}, [*SETTINGS, precision, f"optimizer.embedding={rule}"]), device, seed)
        self._first = self.plain.copy()

    def begin_life(self) -> None:
        super().begin_life()
        self._life = Life(self._files)

    def do(self, operation: str, seed: int) -> None:
        """Do one operation and a cheap check, and now and then a full one."""
        self.dice, self.random = random.Random(seed), np.random.default_rng(seed)
        getattr(self, operation)()
        self.operations += 1
        self.check_marks()
        if self.operations % CHECK_EVERY == 0:
            self.check()
            self.check_flags(self.store.changed_R, self.changed_R)

    def finish_all(self) -> None:
        """End a sequence: finish the checkpoint that is being written, and resume from it."""
        for operation in ("finish", "crash"):
            self.do(operation, 0)
        self.check()

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a checkpoint, which a thread writes in the background, freely or step by step."""
        if self._writer is not None:
            return
        life = self._life
        life.failures = 0
        life.failing_in = self.dice.randint(1, self.dice.choice((10, 90))) if self.dice.random() < 0.3 else -1
        if not self.plain.is_exact:
            self.check()
        try:
            writing = Writing(self.runtime.parts, FOLDER, life)
        except CheckpointError:
            if not life.failures:
                raise
            self.counts["not started"] += 1
            return
        self._saving_R, self.changed_R = self.changed_R, np.zeros_like(self.changed_R)
        if not writing._chain:
            self._saving_R[:] = True
        self.check_flags(writing._rows.mark_R != 0, self._saving_R)
        self._moments.setdefault(writing.name, []).append(Moment(self.runtime.step_number, self.plain.copy()))
        self._since.append(writing.name)
        self._writer = Writer(writing, free=self.dice.random() < 0.3)

    def advance(self) -> None:
        if self._writer is not None:
            self._writer.step(int(self.random.integers(1, 30)))

    def finish(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        writer.finish()
        self.counts["waited for"] += writer.waits > 0
        written, expected = writer.writing.end(), np.count_nonzero(self._saving_R)
        assert written.rows == expected, f"{written.name} must be of {expected} rows, got {written.rows}"
        if written.error is not None:
            assert self._life.failures, f"nothing failed, but {written.error}"
            self.changed_R |= self._saving_R
            self.counts["given up"] += 1
            return
        self.counts[written.kind] += 1
        self.counts["longest chain"] = max(self.counts["longest chain"], len(writer.writing._chain) + 1)
        self._moments[written.name] = self._moments[written.name][-1:]
        self._durable, self._since = written.name, []
        self._kept = [*self._kept, written.name][-2:]
        self._life.failing_in = -1
        for name in self._kept:
            verify_all(self._life, FOLDER / name)
            assert not (wrong := self._wrong(name, self._saved_rows(name))), f"{name} is not as rows were: {wrong[:9]}"

    def _saved_rows(self, name: str) -> Rows:
        saved = SavedRows(self._life, FOLDER / name)
        found: Rows = [(np.empty_like(weights), np.empty_like(state)) for weights, state in self.plain.rows]
        for index, table in enumerate(saved.tables):
            pool, low, high = self.store.space.table_range(index)
            for target, part in zip(found[pool], saved.read(table, 0, table.rows), strict=True):
                target[low:high] = part.view(target.dtype)
        return found

    def _wrong(self, name: str, found: Rows) -> list[tuple[int, int]]:
        """Where rows are not those of a generation: none where they are those of one of its name."""
        return min((differences(found, moment.rows) for moment in self._moments[name]), key=len)

    # Ends ------------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Kill the process or cut the power; another process resumes from the files that are left."""
        power = self.dice.random() < 0.5
        self.counts["power loss" if power else "kill"] += 1
        self.counts["while writing" if self._writer is not None else "between"] += 1
        self.end_life()
        if power:
            self._files = after_power_loss(self._files, self.dice)
        self.begin_life()
        self._resume()
        if power:  # what was found will be there again
            visible = generations(names_in(self._life, FOLDER))
            self._moments = {name: made for name, made in self._moments.items() if name in visible}
            self._durable, self._since = (self._kept or [None])[-1], []
        self.resize()

    def end_life(self) -> None:
        self._life.has_ended = True
        if self._writer is not None:
            self._writer.finish()
            self._writer = None
        super().end_life()

    def _resume(self) -> None:
        try:
            found = checkpoint.find(FOLDER, self._life)
        except CheckpointError:
            if self._durable is not None:
                raise
            found, self._files = Found(None), SimFiles()
            self._life = Life(self._files)
            self.counts["nothing whole"] += 1
        generation, allowed = found.generation, {self._durable, *self._since}
        name = generation.name if generation else None
        assert name in allowed, f"found {name}, where only {allowed} may be"
        set_aside(self._life, FOLDER, [each for each, _ in found.skipped])
        self.counts["set aside"] += bool(found.skipped)
        self._kept = [name] if name else []
        if generation is None or name is None:
            self.counts["from nothing"] += 1
            self.plain.rows = [(weights.copy(), state.copy()) for weights, state in self._first]
            return
        checkpoint.load(self.runtime.parts, generation, verified=True, files=self._life)
        self.plain.rows = rows_of(self.store)
        assert not (wrong := self._wrong(name, self.plain.rows)), f"{name} is not as rows were: {wrong[:9]}"
        assert self.runtime.step_number in {moment.step for moment in self._moments[name]}, "another step"
