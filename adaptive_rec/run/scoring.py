"""Scores new rows with the model of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.new_rows import NewRows
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.dense.evaluate import logits_of
from adaptive_rec.dense.metrics import quality
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.live.telemetry import Evaluation, Quality
from adaptive_rec.run.inputs import of_other_data
from adaptive_rec.run.resume import trained_runtime
from adaptive_rec.runtime.loop import Runtime


@dataclass
class Scored:
    """Rows and their scores."""

    labels_B: NDArray[np.float32]
    """All 0 where the rows have no labels."""
    logits_B: NDArray[np.floating]

    @property
    def scores_B(self) -> NDArray[np.float32]:
        """The predicted probability of label 1."""
        return (0.5 * (1 + np.tanh(0.5 * self.logits_B.astype(np.float64)))).astype(np.float32)


class Scorer:
    """The model of a run, and files of new rows."""

    def __init__(
        self, run: Path, paths: Sequence[Path], labelled: bool, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        """Load the newest whole checkpoint of a run. Raises UsageError, DataError or CheckpointError."""
        self._runtime = trained_runtime(run, warn)
        source = prepared_source(self._runtime, run)
        self.rows = NewRows(source, Path(self._runtime.config.data.source), paths, labelled)

    @property
    def step(self) -> int:
        return self._runtime.step_number

    def scored(self) -> Iterator[Scored]:
        """Yield all rows in order, some at a time."""
        runtime = self._runtime
        for batch in self.rows.batches(runtime.config.eval.batch_size):
            yield Scored(batch.labels_B, logits_of(batch, runtime.store, runtime.dense))

    def quality(self) -> Evaluation:
        """Score all rows and compare with their labels. Raises DataError where there is no row."""
        parts = list(self.scored())
        if not parts:
            raise DataError("the data to score must hold at least one row, it has none")
        labels_B = np.concatenate([part.labels_B for part in parts])
        found: Quality = quality(labels_B, np.concatenate([part.logits_B for part in parts]))
        return Evaluation(self.step, found)


def prepared_source(runtime: Runtime, run: Path) -> PreparedSource:
    """Return the data that a run was trained on. Raises UsageError where it has no schema and no names of values."""
    source = runtime.source
    if isinstance(source, RawIds):
        rule = "new rows are scored, and models exported, by ids that are rows"
        raise UsageError(f"{rule}, run {run} has data.ids=raw (checkpoint export --as store writes its rows by id)")
    if not isinstance(source, PreparedSource):
        raise of_other_data(run, runtime.config.data.source)
    return source
