"""Evaluation of a run whose rows are all positives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from adaptive_rec.batch import Batch
from adaptive_rec.data.implicit.candidates import Candidates
from adaptive_rec.data.raw.raw_ids import raw_ids_of
from adaptive_rec.data.source import Source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.ranked_items import rank_items
from adaptive_rec.live.telemetry import Quality
from adaptive_rec.runtime.parts import parts_of
from adaptive_rec.state.run_state import RunState

METRICS = ("recall@20", "ndcg@20", "mrr")
"""What is shown where `eval.metrics` names nothing."""


def rank_held_out(state: RunState, source: Source, dense: DensePart, candidates: Candidates) -> Quality | None:
    """Rank what users have chosen of the held-out rows among other items. Returns None where a signal interrupted it."""
    config, raw = state.config, raw_ids_of(source)

    def rows_of(batches: Iterable[Batch]) -> Iterator[Batch]:
        return parts_of(source, batches if raw is None else raw.with_present_rows(batches))

    return rank_items(
        candidates,
        config.data.implicit.negatives,
        config.eval.metrics or METRICS,
        config.eval.batch_size,
        rows_of,
        state.store,
        dense,
        lambda: state.hurried,
    )
