"""Slipstream as released: after a short measured window, hot samples whose rows hardly moved are dropped for the rest of the
epoch.

Paper: Ebrahimzadeh Maboud et al., "Efficient Training of Recommender Models through Popularity-Based Skipping of Stale
Embeddings" (arXiv 2404.04270). As in its released code, on FAE's arrangement as released (`fae_released`): an epoch trains its
cold batches, then `window_ratio` of its hot ones. Over these the movement of every hot row is measured, by its largest component.
A bisection searches a threshold at which the wanted share (`target_skip_ratio`) of some hot samples not yet trained has
`stale_lookups_ratio` of its lookups stale, 26 of 26 there; such samples are dropped, the others are repacked and trained. A row
that the window did not touch has not moved and counts as stale. This flaw is kept because it was published; `slipstream`
corrects it. Different here: any number of epochs works; the window's last batch is trained once; optimizer state moves with the
rows; the stale lookups needed are a share, so that models with other than 26 tables drop samples too; samples are drawn without
replacement, from the seed. The journal has the dropped share of the hot samples, as the authors count, and of all. Not exact.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, take
from adaptive_rec.policies.fae_released import FaeReleased
from adaptive_rec.policy import Outcome, Phase, StreamView
from adaptive_rec.policy.batches import Choose, flagged_lookups, repack, rows_of
from adaptive_rec.policy.hot_sets import NO_ROWS, count_samples, describe_hot_set, only_hot, others, sample_rows
from adaptive_rec.tracking.stale import critical_movement, stale_lookups_needed


class SlipstreamReleased(FaeReleased):
    name = "slipstream_released"
    exact = False
    tracks_movement = True

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        sampled, size = sample_rows(stream), stream.batch_size
        for epoch in stream.epochs:
            hot = self.choose(stream, *sampled)
            is_hot = only_hot(stream, hot)
            hot_total = count_samples(stream, epoch, is_hot)
            first = size * (round(stream.options.window_ratio * -(-hot_total // size)) + 1)
            cold = repack(stream.read(epoch), size, others(is_hot))
            yield Phase("cold", cold, NO_ROWS, note=describe_hot_set(stream, hot) if epoch == stream.epochs[0] else "")
            window = repack(stream.read(epoch), size, numbered(is_hot, 0, first), malformed=False)
            outcome = yield Phase("window", window, hot, measured=True)
            threshold, how = search(critical_movements(stream, epoch, is_hot, first, outcome), stream)
            rest = numbered(is_hot, first, hot_total)
            dropped = [0]
            kept = repack(stream.read(epoch), size, rest, stale(stream, outcome, threshold), malformed=False)
            yield Phase("hot", counting(kept, dropped), note=how)
            yield Phase("end", (), note=shares(dropped[0], hot_total, stream.samples(epoch)))


def numbered(is_hot: Choose, first: int, end: int) -> Choose:
    """Choose the hot samples from number `first` up to number `end`, without it. It must see all batches of an epoch in order."""
    seen = 0

    def chosen(batch: Batch) -> NDArray[np.bool_]:
        nonlocal seen
        hot_B = is_hot(batch)
        number_B = seen + np.cumsum(hot_B) - 1
        seen += int(np.count_nonzero(hot_B))
        return hot_B & (number_B >= first) & (number_B < end)

    return chosen


def critical_movements(
    stream: StreamView, epoch: int, is_hot: Choose, first: int, moved: Outcome
) -> NDArray[np.float64]:
    """Return, for some hot samples that the window did not train, the threshold above which each would be dropped."""
    if not stream.knobs().target_skip_ratio:
        return np.empty(0)
    random = np.random.default_rng([stream.seed, epoch, int.from_bytes(b"search", "little")])
    rest, ratio = numbered(is_hot, first, stream.samples(epoch)), stream.options.search_sample_ratio
    movement_R = np.full(
        stream.space.rows, np.inf
    )  # unknown for rows that a smaller budget moved to the host meanwhile
    movement_R[moved.rows] = moved.movement
    found = [np.empty(0)]
    for batch in stream.read(epoch):
        some = take(batch, np.flatnonzero(rest(batch) & (random.random(batch.size) < ratio)))
        if some.size:
            offsets = some.offsets[:: len(stream.space.features)]
            movement_L = movement_R[rows_of(some, stream.space)]
            found.append(critical_movement(movement_L, offsets, stream.options.stale_lookups_ratio))
    return np.concatenate(found)


def search(critical_S: NDArray[np.float64], stream: StreamView) -> tuple[float, str]:
    """Search the threshold by bisection. Returns it with a note for the journal; 0 drops nothing."""
    options, target = stream.options, stream.knobs().target_skip_ratio
    low, high, share = 0.0, options.search_max_movement, 0.0
    for step in range(options.search_steps if len(critical_S) else 0):
        threshold = (low + high) / 2
        share = float(np.mean(critical_S < threshold))
        if abs(share - target) <= options.drop_tolerance_ratio:
            return (
                threshold,
                f"threshold {threshold:.3g} after {step + 1} steps: drops {share:.1%} of {len(critical_S):,} samples",
            )
        low, high = (threshold, high) if share < target else (low, threshold)
    return (
        0.0,
        f"no threshold drops about {target:.0%} of {len(critical_S):,} samples (the last {share:.1%}): all are trained",
    )


def stale(stream: StreamView, moved: Outcome, threshold: float) -> Choose:
    """Choose the samples that have enough stale lookups."""
    stale_R = np.zeros(stream.space.rows, dtype=np.bool_)
    stale_R[moved.rows[moved.movement < threshold]] = True

    def chosen(batch: Batch) -> NDArray[np.bool_]:
        lookups_B = np.diff(batch.offsets[:: len(stream.space.features)])
        needed_B = stale_lookups_needed(lookups_B, stream.options.stale_lookups_ratio)
        return (lookups_B > 0) & (flagged_lookups(batch, stream.space, stale_R) >= needed_B)

    return chosen


def counting(batches: Iterable[Batch], dropped: list[int]) -> Iterator[Batch]:
    """Yield the batches and add up the samples that were left out of them."""
    for batch in batches:
        dropped[0] += batch.skipped_samples
        yield batch


def shares(dropped: int, hot: int, samples: int) -> str:
    """Describe the dropped share as the authors count it, and as we do."""
    return f"dropped {dropped:,} samples: {dropped / max(1, hot):.1%} of the hot ones, {dropped / max(1, samples):.1%} of all"


POLICY = SlipstreamReleased
