"""Guard rails for every policy's wish: the budget, hysteresis and a limit on the rows moved at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.kernels.ranking import are_hot, places_between
from adaptive_rec.kernels.row_sets import are_in
from adaptive_rec.placement import Migration

Rows = NDArray[np.int64]
Scores = NDArray[Any]

SAMPLED = 64
"""One score of so many is in the sample of `_narrow`."""
MANY_ROWS = 1 << 16
"""Fewer rows are sorted at once."""


def plan_migration(
    wanted_rows: Rows,
    wanted_scores: Scores,
    hot_rows: Rows,
    hot_scores: Scores,
    slot_of_row: NDArray[np.signedinteger] | None,
    capacity_rows: int,
    hysteresis: float,
    max_moved_rows: int,
    threads: int = 1,
) -> Migration:
    """Decide which rows of one pool change tier. Scores are estimated popularity; the rows returned are sorted.

    `slot_of_row` has all rows, and is negative for those that are not among the hot ones; None: no wanted row is hot. Only the
    training thread may ask for more than one thread.

    1. Hot rows beyond `capacity_rows` leave at once, least popular first. The budget is a promise, so only this may exceed
       `max_moved_rows`; then nothing else moves.
    2. Free slots go to the most popular wanted rows.
    3. The best cold row replaces the worst hot one while ``cold > (1 + hysteresis) * hot``; each swap is two moves.
    4. Hot rows that score -inf leave even without a replacement.

    Rows that a policy did not list stay where they are unless displaced. A hot row that is listed has the listed score; -inf
    makes it leave. Of rows with equal scores the lower one is (or stays) hot.
    """
    wanted_rows, wanted_scores = _sort_distinct(wanted_rows, wanted_scores)
    hot_scores = _checked(hot_rows, hot_scores)
    cold_rows, cold_scores, hot_scores = _take_out_hot(
        wanted_rows, wanted_scores, hot_rows, hot_scores, slot_of_row, threads
    )
    excess = max(0, len(hot_rows) - capacity_rows)
    moves = max(0, max_moved_rows - excess)
    fill = min(max(0, capacity_rows - len(hot_rows)), len(cold_rows), moves)
    moves -= fill
    likely = _likely_swaps(cold_scores, hot_scores, fill, excess, hysteresis)
    for most in sorted({min(likely, moves // 2), moves // 2}):
        best_rows, best_scores = _narrow(cold_rows, cold_scores, fill + most, True, threads)
        worst_rows, worst_scores = _narrow(hot_rows, hot_scores, excess + most, False, threads)
        # Bare numbers sort ten times as fast as rows by score: hot rows are never sorted.
        best_first, worst_first = np.sort(best_scores)[::-1], np.sort(worst_scores)
        swaps = _count_swaps(best_first[fill:], worst_first[excess:], hysteresis, most)
        if swaps < most:
            break  # more pairs would not swap either
    demoted = excess + swaps
    demoted += int(np.sum(worst_first[demoted : demoted + moves - 2 * swaps] == -np.inf))
    return Migration(
        promote=_first(best_rows, -best_scores, -best_first, fill + swaps),
        demote=-_first(-worst_rows, worst_scores, worst_first, demoted)[::-1],
    )


def _likely_swaps(cold_scores: Scores, hot_scores: Scores, fill: int, excess: int, hysteresis: float) -> int:
    """Return more rows than are likely to swap, by a sample."""
    best_first, worst_first = np.sort(cold_scores[::SAMPLED])[::-1], np.sort(hot_scores[::SAMPLED])
    pairs = _count_swaps(best_first[fill // SAMPLED :], worst_first[excess // SAMPLED :], hysteresis, len(best_first))
    return SAMPLED * (pairs + pairs // 4 + 1)


def _narrow(rows: Rows, scores: Scores, count: int, highest: bool, threads: int) -> tuple[Rows, Scores]:
    """Return the rows, in their order, that may be among the `count` of lowest (or highest) score, so that the others need not
    be sorted: all rows up to a score that a sample suggests, or simply all where the sample misleads or `count` is large."""
    sample = scores[::SAMPLED]
    place = count // SAMPLED + count // (2 * SAMPLED) + SAMPLED  # half as many again, as a sample is not exact
    if len(rows) < MANY_ROWS or place > len(sample) // 2:
        return rows, scores
    place = len(sample) - 1 - place if highest else place
    bar = np.partition(sample, place)[place]
    low, high = (bar, np.inf) if highest else (-np.inf, bar)
    few = places_between(scores, low, high, threads)
    return (rows[few], scores[few]) if len(few) >= count else (rows, scores)


def _first(rows: Rows, ranks: Scores, ranked: Scores, count: int) -> Rows:
    """Return the `count` rows of lowest rank, of equals the lower ones, in rising order. `ranked`: the ranks in rising order."""
    if not count:
        return rows[:0]
    bar = ranked[count - 1]
    below, equal = rows[ranks < bar], rows[ranks == bar]
    missing = count - len(below)
    return np.sort(np.concatenate([below, np.partition(equal, missing - 1)[:missing]]))


def _checked(rows: Rows, scores: Scores) -> NDArray[np.float64]:
    """Return the scores of some rows. Raises AdaptiveRecError where one is missing or no number."""
    if len(rows) != len(scores):
        raise AdaptiveRecError(f"rows and scores must be equally many, got {len(rows)} and {len(scores)}")
    scores = scores.astype(np.float64, copy=False)
    if np.isnan(scores.min(initial=np.inf)):  # NaN where any of them is
        raise AdaptiveRecError(f"scores must be numbers, got NaN for row {rows[np.isnan(scores)][0]}")
    return scores


def _sort_distinct(rows: Rows, scores: Scores) -> tuple[Rows, NDArray[np.float64]]:
    """Return the rows in rising order with their scores. A row listed twice keeps the higher score."""
    scores = _checked(rows, scores)
    if np.all(rows[1:] > rows[:-1]):
        return rows, scores
    order = np.argsort(rows)
    risen = rows[order]
    if np.all(risen[1:] > risen[:-1]):
        return risen, scores[order]
    order = np.lexsort((-scores, rows))  # three times as slow, and seldom needed
    rows, scores = rows[order], scores[order]
    first = np.concatenate([[True], rows[1:] != rows[:-1]])
    return rows[first], scores[first]


def _take_out_hot(
    wanted_rows: Rows,
    wanted_scores: Scores,
    hot_rows: Rows,
    hot_scores: Scores,
    slot_of_row: NDArray[np.signedinteger] | None,
    threads: int,
) -> tuple[Rows, Scores, Scores]:
    """Return the wanted rows that may be promoted, their scores, and the scores of hot rows: those listed for them, where they
    are."""
    cold = wanted_scores > -np.inf
    if slot_of_row is not None:
        is_hot = are_hot(slot_of_row, wanted_rows, threads)
        if is_hot.any():
            listed = np.flatnonzero(are_in(hot_rows, wanted_rows[is_hot]))
            hot_scores = hot_scores.copy()
            hot_scores[listed] = wanted_scores[np.searchsorted(wanted_rows, hot_rows[listed])]
        cold &= ~is_hot
    if cold.all():
        return wanted_rows, wanted_scores, hot_scores
    return wanted_rows[cold], wanted_scores[cold], hot_scores


def _count_swaps(cold_scores: Scores, hot_scores: Scores, hysteresis: float, most: int) -> int:
    """Count the best cold rows that beat the worst hot ones, pair by pair."""
    pairs = min(len(cold_scores), len(hot_scores), most)
    hot = hot_scores[:pairs]
    # A margin makes sense only above zero: multiplying a negative score would lower the bar.
    bar = np.where(hot > 0, (1 + hysteresis) * hot, hot)
    return int(np.sum(cold_scores[:pairs] > bar))
