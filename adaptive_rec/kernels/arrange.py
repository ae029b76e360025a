"""These kernels arrange a stream: they find hot samples and copy samples from batch to batch.

They fill the caller's arrays; callers check shapes and, by `ids_fit`, ids. Plain twins stand in `reference/arrange.py`.
Shapes: see the legend in `adaptive_rec.batch`; R are all rows of the joint row space.
"""

from __future__ import annotations

from numba import njit

from adaptive_rec.kernels.jit import JIT


@njit(**JIT)
def ids_fit(ids_N, offsets, rows_F):
    """Whether every id lies within its feature's table."""
    features = len(rows_F)
    for bag in range(len(offsets) - 1):
        rows = rows_F[bag % features]
        for n in range(offsets[bag], offsets[bag + 1]):
            if ids_N[n] < 0 or ids_N[n] >= rows:
                return False
    return True


@njit(**JIT)
def find_hot_samples(ids_N, offsets, first_row_F, hot_R, hot_B):
    """Find the samples whose lookups are all of hot rows. A sample without lookups is hot."""
    features = len(first_row_F)
    for b in range(len(hot_B)):
        hot = True
        for f in range(features):
            bag = b * features + f
            for n in range(offsets[bag], offsets[bag + 1]):
                hot &= hot_R[first_row_F[f] + ids_N[n]]
            if not hot:
                break
        hot_B[b] = hot


@njit(**JIT)
def copy_samples(samples_S, features, ids_N, offsets, to_ids, to_offsets):
    """Copy the bags of some samples, one sample after the other."""
    at = 0
    bag = 0
    for s in samples_S:
        for f in range(features):
            for n in range(offsets[s * features + f], offsets[s * features + f + 1]):
                to_ids[at] = ids_N[n]
                at += 1
            bag += 1
            to_offsets[bag] = at


@njit(**JIT)
def count_chosen(ids_N, offsets, first_row_F, chosen_B, counts_R):
    """Count the rows that the chosen samples look up."""
    features = len(first_row_F)
    for b in range(len(chosen_B)):
        if chosen_B[b]:
            for f in range(features):
                bag = b * features + f
                for n in range(offsets[bag], offsets[bag + 1]):
                    counts_R[first_row_F[f] + ids_N[n]] += 1


@njit(**JIT)
def count_flagged(ids_N, offsets, first_row_F, flag_R, count_B):
    """Count the lookups of each sample whose row is flagged."""
    features = len(first_row_F)
    for b in range(len(count_B)):
        count = 0
        for f in range(features):
            bag = b * features + f
            for n in range(offsets[bag], offsets[bag + 1]):
                count += flag_R[first_row_F[f] + ids_N[n]]
        count_B[b] = count
