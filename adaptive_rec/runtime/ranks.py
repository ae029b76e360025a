"""The figures of each of several processes, and which of them the others wait for."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.live.rank_report import RankReport, Straggler
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.state.run_state import RunState

KINDS = ("requests", "rows", "gradients", "dense", "other")
"""Kinds of bytes that are shown; all others are `other`."""
COUNTS = ("steps", "work_us", "wait_us", "samples", "lookups", "lookups_hot", *KINDS)
"""What each rank reports of itself (K): whole numbers that only grow, from 0 at its start."""
STEPS, WORK, WAIT, SAMPLES, LOOKUPS, HOT = range(6)
SENT = slice(6, None)

REPORTS = 5
"""Number of reports that recent figures are of. Their median leaves out a pause or two, such as compiling."""
LEAST_REPORTS = 3
LEAST_SHARE = 0.2
"""A rank is a straggler where a step would be shorter by at least this share if the rank were as quick as the others. Below that,
ranks differ by chance."""


class Ranks:
    """Gathers the figures of all ranks for each report. Ranks call its methods together."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._work = self._wait = 0.0
        self._clock = self._stage_wait = self._ahead = self._waited = 0.0
        """Clocks at the last report."""
        self._first = self._own_counts()
        self._reported: deque[NDArray[np.int64]] = deque(maxlen=REPORTS + 1)

    def start(self) -> None:
        """Count from here on: a resumed run has counts of earlier processes."""
        self._read_clocks()
        self._work = self._wait = 0.0
        self._first = self._own_counts()
        self._reported.clear()
        self._reported.append(np.zeros((self._state.store.group.ranks, len(COUNTS)), np.int64))

    def report(self) -> tuple[list[RankReport], Straggler | None]:
        """Return the figures of all ranks, and the straggler among them. Raises DataError where their raw ids differ."""
        if self._state.input.raw_ids is not None:
            self._state.input.raw_ids.check_alike(self._state.store.group, self._state.step)
        self._read_clocks()
        own = self._own_counts() - self._first
        own[WORK], own[WAIT] = round(1e6 * self._work), round(1e6 * self._wait)
        self._reported.append(self._state.store.group.gather(own))
        counts_RWK = np.stack(self._reported)
        return rank_reports(counts_RWK), find_straggler(counts_RWK)

    def _own_counts(self) -> NDArray[np.int64]:
        counters, sent_bytes = self._state.tally.counters, self._state.store.group.meter.sent_bytes
        known = [sent_bytes[kind] for kind in KINDS[:-1]]
        counts = (counters.steps, 0, 0, counters.samples_seen, counters.lookups, counters.lookups_hot)
        return np.array([*counts, *known, sent_bytes.total() - sum(known)], np.int64)

    def _read_clocks(self) -> None:
        """Divide the time since the last report into own work and waiting.

        The thread that stages batches waits for other ranks too. The training thread may wait for it, or for this rank's own
        reader: it waits for ranks at most as long as that thread does.
        """
        state = self._state
        before = self._clock, self._waited, self._stage_wait, self._ahead
        self._clock, self._waited = state.recorder.seconds, state.recorder.waited_seconds
        self._stage_wait, self._ahead = state.times.seconds["wait"], state.store.group.meter.waited_ahead()
        now = self._clock, self._waited, self._stage_wait, self._ahead
        seconds, waited, stage_wait, ahead = (new - old for new, old in zip(now, before, strict=True))
        wait = waited + min(stage_wait, ahead)
        self._wait += wait
        self._work += seconds - wait


def rank_reports(counts_RWK: NDArray[np.int64]) -> list[RankReport]:
    """Return the figures of each rank from the counts at some reports, the first of which begins the period."""
    now_WK, gained_WK = counts_RWK[-1], counts_RWK[-1] - counts_RWK[0]
    step_WK = np.median(_per_step(counts_RWK), axis=0)
    return [
        RankReport(
            work_seconds=int(now_K[WORK]) / 1e6,
            wait_seconds=int(now_K[WAIT]) / 1e6,
            sent_bytes=dict(zip(KINDS, now_K[SENT].tolist(), strict=True)),
            work_seconds_per_step=float(step_WK[rank, WORK]) / 1e6,
            wait_seconds_per_step=float(step_WK[rank, WAIT]) / 1e6,
            sent_bytes_per_sample={
                kind: ratio(sent, gained_WK[rank, SAMPLES])
                for kind, sent in zip(KINDS, gained_WK[rank, SENT].tolist(), strict=True)
            },
            hot_lookup_ratio=ratio(gained_WK[rank, HOT], gained_WK[rank, LOOKUPS]),
        )
        for rank, now_K in enumerate(now_WK)
    ]


def find_straggler(counts_RWK: NDArray[np.int64]) -> Straggler | None:
    """Return the slowest rank, where a step would be clearly shorter if its own work took as long as the others' (the median)."""
    if len(counts_RWK) <= LEAST_REPORTS:
        return None
    seconds_W2 = np.median(_per_step(counts_RWK)[:, :, [WORK, WAIT]], axis=0) / 1e6
    rank = int(seconds_W2[:, 0].argmax())
    own, others = seconds_W2[rank, 0], float(np.median(np.delete(seconds_W2[:, 0], rank)))
    if own - others < LEAST_SHARE * seconds_W2[rank].sum():
        return None
    text = f"rank {rank} holds up the others: its own work takes {1000 * own:.1f} ms a step, theirs {1000 * others:.1f} ms"
    return Straggler(rank, text)


def _per_step(counts_RWK: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what the counts gained in a step, from each report to the next."""
    gained_RWK = np.diff(counts_RWK, axis=0)
    return gained_RWK / np.maximum(gained_RWK[:, :, STEPS : STEPS + 1], 1)
