"""These trials find how long popularity should be remembered: several memories run at once on a sample of the rows.

How fast rows lose popularity depends on the data: news live a day, categories for years. Only the *next* lookups show which
memory is right, so each memory is scored by the share of them that it would have caught.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.system.group import ALONE, Group
from adaptive_rec.tracking.hashes import hash_rows
from adaptive_rec.tracking.popularity import mark_highest, sort_distinct

DECAYS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98)
"""What is left of a count after a tick."""
INTERVALS_TICKS = (1, 2, 4, 8)
SAMPLED_ROWS_LIMIT = 1 << 14
KEPT_RATIO = 0.75
"""Share of the limit that is kept when too many rows are held."""
FORGOTTEN_LOOKUPS = 0.125
"""A count that fades below this is 0. Rows that no memory remembers are dropped first."""
SCORE_DECAY = 0.95
"""What is left of a score after a tick."""
FEWEST_SAMPLED_ROWS = 16
"""Hot rows that the sample must hold on average before memories can be compared."""
PROVEN_WINDOWS = 3
"""Full windows that a memory must be tried for before it can be chosen; in its first ones it places rows more often."""
MARGIN = 0.003
"""A memory counts as about as good as the best one if it misses no more than this share of all lookups in addition."""
LEAVE_MARGIN = 0.01
"""The chosen memory is left when it is further behind than this, so that the answer does not waver between equals."""


@dataclass(frozen=True)
class Memory:
    """How lookups are remembered, and how often rows are placed by that."""

    decay: float
    """What is left of a count after a tick."""
    ticks: int
    """Ticks of a window."""

    @property
    def window_decay(self) -> float:
        """What is left of a count after a window: the runtime decays counts once, at its end."""
        return self.decay**self.ticks


MEMORIES = tuple(Memory(decay, ticks) for ticks in INTERVALS_TICKS for decay in DECAYS)
FIRST_MEMORY = Memory(0.8, 1)
"""The memory used before there are scores; it is fair on the Criteo sample, the Scarab trace and Globo's news."""


class MemoryTrials:
    """Replays the lookups of a sample of the rows under each memory (M of them) and scores what its hot rows catch.

    A row is in the sample when its hash is below a threshold, which falls when more than `limit_rows` are held: so the sample
    is always what it would have been at that threshold from the start (SHARDS: Waldspurger et al., FAST 2015). The hottest
    rows, in the sample by luck or not, are caught by any memory; so misses are counted, against the lookups that a sample of
    this size stands for (as SHARDS-adj corrects its curves), not against those it happens to have.

    K are the sampled rows held, in no order.
    """

    def __init__(self, capacity_rows: int, seed: int = 0, limit_rows: int = SAMPLED_ROWS_LIMIT) -> None:
        if limit_rows < 2:
            raise ConfigError(f"limit_rows must be at least 2, got {limit_rows}")
        self.capacity_rows = capacity_rows
        self.limit_rows = limit_rows
        self.held_rows = 0
        """K; the arrays hold nothing valid beyond."""
        self.ticks = 0
        """Ticks so far."""
        self._salt = np.random.default_rng(seed).integers(0, 2**64, dtype=np.uint64)
        self._threshold = np.uint64(2**64 - 1)
        self._rows = np.empty(limit_rows, dtype=np.int64)
        self._now = np.zeros(limit_rows, dtype=np.float32)
        """Lookups of the present tick."""
        self._counts = np.zeros((len(MEMORIES), limit_rows), dtype=np.float32)
        self._hot = np.zeros((len(MEMORIES), limit_rows), dtype=np.float32)
        """1 where a row is hot."""
        self._sort()
        self._new: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        """Rows not held yet, with their lookups; one may occur several times."""
        self._new_rows = 0
        self._lookups = 0
        """All lookups of the present tick, whether in the sample or not."""
        self._missed_M = np.zeros(len(MEMORIES))
        self._expected = 0.0
        self._present = MEMORIES.index(FIRST_MEMORY)
        self._is_evidence = True
        """Whether the sample held enough hot rows at the last tick."""

    @property
    def rate(self) -> float:
        """Share of the rows that is sampled."""
        return (float(self._threshold) + 1) / 2**64

    @property
    def caught_M(self) -> NDArray[np.float64]:
        """Estimated share of the last ticks' lookups that each memory would have caught."""
        return 1 - self._missed_M / self._expected if self._expected else np.zeros(len(MEMORIES))

    def caught_ratio(self, memory: Memory) -> float:
        """Return the estimated share that one of MEMORIES would have caught."""
        return float(self.caught_M[MEMORIES.index(memory)])

    def resize(self, capacity_rows: int) -> None:
        """Set how many rows may be hot from now on."""
        self.capacity_rows = capacity_rows

    # Each step -------------------------------------------------------------------------------------------------------

    def observe(self, rows_U: NDArray[np.int64], segments_U1: NDArray[np.int64]) -> None:
        """Count a step's distinct rows, hot and cold; row ``rows_U[u]`` has ``segments_U1[u + 1] - segments_U1[u]`` lookups."""
        self._lookups += int(segments_U1[-1])
        chosen = np.flatnonzero(hash_rows(rows_U, self._salt) <= self._threshold)
        rows, counts = rows_U[chosen], segments_U1[chosen + 1] - segments_U1[chosen]
        if self.held_rows:
            place = np.minimum(np.searchsorted(self._sorted_rows_K, rows), self.held_rows - 1)
            held = self._sorted_rows_K[place] == rows
            self._now[self._order_K[place[held]]] += counts[held]
            rows, counts = rows[~held], counts[~held]
        if len(rows):
            self._new.append((rows, counts))
            self._new_rows += len(rows)
            if self._new_rows > self.limit_rows // 4:
                self._take_in()

    def _take_in(self) -> None:
        """Take the new rows into the sample; shrink the sample where it gets too large."""
        if not self._new:
            return
        new, counts = (np.concatenate(part) for part in zip(*self._new, strict=True))
        rows = sort_distinct(new)
        now = np.bincount(np.searchsorted(rows, new), weights=counts, minlength=len(rows))
        self._new, self._new_rows = [], 0
        if self.held_rows + len(rows) > self.limit_rows:
            hashes = self._make_room(rows)
            rows, now = rows[hashes <= self._threshold], now[hashes <= self._threshold]
        fresh = slice(self.held_rows, self.held_rows + len(rows))
        self._rows[fresh], self._now[fresh] = rows, now
        self._counts[:, fresh] = self._hot[:, fresh] = 0
        self.held_rows += len(rows)
        self._sort()

    def _make_room(self, new: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Drop forgotten rows, then, where needed, those with the highest hashes. Returns the new rows' hashes."""
        known = slice(self.held_rows)
        self._keep((self._now[known] > 0) | self._counts[:, known].any(axis=0))
        hashes = hash_rows(new, self._salt)
        hashes_K = hash_rows(self._rows[: self.held_rows], self._salt)
        kept = int(self.limit_rows * KEPT_RATIO)
        if self.held_rows + len(new) > kept:
            self._threshold = np.partition(np.concatenate([hashes_K, hashes]), kept - 1)[kept - 1]
            self._keep(hashes_K <= self._threshold)
        return hashes

    def _keep(self, kept_K: NDArray[np.bool_]) -> None:
        known, left = slice(self.held_rows), slice(int(np.count_nonzero(kept_K)))
        for array in (self._rows, self._now, self._counts, self._hot):
            array[..., left] = array[..., known][..., kept_K]
        self.held_rows = left.stop

    def _sort(self) -> None:
        self._order_K = np.argsort(self._rows[: self.held_rows])
        self._sorted_rows_K = self._rows[self._order_K]

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        known, nothing = slice(self.held_rows), np.empty(0, dtype=np.int64)
        return {
            "capacity_rows": self.capacity_rows,
            "ticks": self.ticks,
            "threshold": np.array([self._threshold]),
            "rows_K": self._rows[known],
            "now_K": self._now[known],
            "counts_MK": self._counts[:, known],
            "hot_MK": self._hot[:, known],
            "new_rows": np.concatenate([nothing, *(rows for rows, _ in self._new)]),
            "new_counts": np.concatenate([nothing, *(counts for _, counts in self._new)]),
            "lookups": self._lookups,
            "missed_M": self._missed_M,
            "expected": float(self._expected),
            "memory": asdict(MEMORIES[self._present]),
        }

    def set_state(self, found: Saved) -> None:
        self.capacity_rows, self.ticks = found.integer("capacity_rows"), found.integer("ticks")
        self._threshold = found.array("threshold", np.uint64, 1)[0]
        rows_K = found.array("rows_K", np.int64, ANY)
        if len(rows_K) > self.limit_rows:
            raise CheckpointError(f"sampled rows must be at most {self.limit_rows}, got {len(rows_K)}")
        self.held_rows = len(rows_K)
        known, memories = slice(self.held_rows), len(MEMORIES)
        self._rows[known] = rows_K
        self._now[known] = found.array("now_K", np.float32, self.held_rows)
        self._counts[:, known] = found.array("counts_MK", np.float32, memories, self.held_rows)
        self._hot[:, known] = found.array("hot_MK", np.float32, memories, self.held_rows)
        self._sort()
        new_rows = found.array("new_rows", np.int64, ANY)
        new_counts = found.array("new_counts", np.int64, len(new_rows))
        self._new, self._new_rows = [(new_rows, new_counts)] if len(new_rows) else [], len(new_rows)
        self._lookups, self._expected = found.integer("lookups"), found.number("expected")
        self._missed_M[:] = found.array("missed_M", np.float64, memories)
        self._present = MEMORIES.index(saved_memory(found.part("memory")))

    # When a tick ends ------------------------------------------------------------------------------------------------

    def end_tick(self, group: Group = ALONE) -> None:
        """Score each memory by what its hot rows caught of this tick's lookups; then count these and choose new hot rows.

        Each rank of a group has the lookups of its own rows and hot rows of its own. Their scores are added up, so all ranks
        choose the same memory.
        """
        self._take_in()
        known = slice(self.held_rows)
        now_K, counts_MK, hot_MK = self._now[known], self._counts[:, known], self._hot[:, known]
        if self.ticks:
            missed_M = (now_K.sum(dtype=np.float64) - hot_MK @ now_K) / self.rate
            *all_missed_M, lookups, rates = group.total(np.concatenate([missed_M, [self._lookups, self.rate]])).tolist()
            weight = rates / group.ranks  # a larger sample is better evidence
            self._missed_M = SCORE_DECAY * self._missed_M + weight * np.array(all_missed_M)
            self._expected = SCORE_DECAY * self._expected + weight * lookups
        self.ticks += 1
        counts_MK += now_K
        for number, memory in enumerate(MEMORIES):
            if since := self._since_placed(memory):
                counts_K = counts_MK[number]
                hot_MK[number] = best(counts_K, round(self.capacity_rows * self.rate))
                counts_K *= memory.decay**since
                counts_K[counts_K < FORGOTTEN_LOOKUPS] = 0
        now_K[:] = 0
        self._lookups = 0
        self._is_evidence = group.all_true(self.rate == 1 or self.capacity_rows * self.rate >= FEWEST_SAMPLED_ROWS)

    def _since_placed(self, memory: Memory) -> int:
        """Return the ticks of the window that ends now, or 0. The first windows are short, so that hot rows come early."""
        if self.ticks > memory.ticks:
            return 0 if self.ticks % memory.ticks else memory.ticks
        return 0 if self.ticks & (self.ticks - 1) else max(1, self.ticks // 2)

    def best(self) -> Memory:
        """Return the memory to use: of those about as good as the best, the one with the longest windows.

        It stays the same until it is clearly worse than the best one, or a memory of longer windows hardly is.
        """
        if not self._is_evidence:
            return MEMORIES[self._present]
        proven = [number for number, memory in enumerate(MEMORIES) if self.ticks > PROVEN_WINDOWS * memory.ticks]
        if not proven:
            return FIRST_MEMORY
        behind_M, present = self.caught_M[proven].max() - self.caught_M, self._present
        ticks = max(MEMORIES[number].ticks for number in proven if behind_M[number] <= MARGIN)
        if behind_M[present] > LEAVE_MARGIN or ticks > MEMORIES[present].ticks:
            long = [number for number, memory in enumerate(MEMORIES) if memory.ticks == ticks]
            self._present = min(long, key=lambda number: (behind_M[number], -number))
        return MEMORIES[self._present]


def saved_memory(found: Saved) -> Memory:
    """Return the one of MEMORIES that was saved."""
    memory = Memory(found.number("decay"), found.integer("ticks"))
    if memory not in MEMORIES:
        raise CheckpointError(f"memory must be one of those tried, got {memory}")
    return memory


def best(counts_K: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Mark the `count` most popular of the remembered rows (of equals the first)."""
    remembered_K: NDArray[np.bool_] = counts_K > 0
    return remembered_K if count >= np.count_nonzero(remembered_K) else mark_highest(counts_K, count)
