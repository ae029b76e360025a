"""Scores new rows with the model of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from adaptive_rec.batch import Batch
from adaptive_rec.checkpoint.saved_keys import saved_columns
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.criteo_rows import CriteoRows
from adaptive_rec.data.new_rows import KeyedRows, NumberedRows
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.source import has_groups
from adaptive_rec.data.tabular.follow import files_of_source
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.data.unknown import Unknown
from adaptive_rec.dense.evaluate import logits_of
from adaptive_rec.dense.scored import Scored
from adaptive_rec.errors import DataError
from adaptive_rec.live.telemetry import Evaluation, Quality
from adaptive_rec.run.chosen_checkpoint import chosen_checkpoint
from adaptive_rec.run.inputs import is_folder, of_other_data, reads_criteo
from adaptive_rec.run.resume import runtime_of
from adaptive_rec.runtime.start_checks import check_groups


class Scorer:
    """The model of a run, and files of new rows."""

    def __init__(
        self,
        run: Path,
        paths: Sequence[Path],
        labelled: bool,
        warn: Callable[[str], None] = lambda text: None,
        wanted: str | None = None,
        metrics: Sequence[str] | None = None,
    ) -> None:
        """Load a checkpoint of a run; `wanted` and `warn` are those of `chosen_checkpoint`. `metrics`: those that rank, by
        default the run's, where the rows have groups. Raises UsageError, DataError, CheckpointError or ConfigError."""
        with chosen_checkpoint(run, wanted, warn) as chosen:
            rows = new_rows(run, chosen.generation, paths, labelled)
            for note in lacking_columns(rows):
                warn(note)
            ranks = bool(load_config(str(run / "config.toml"), {}).data.implicit.negatives)
            check_groups(metrics or (), ranks or has_groups(rows), ", ".join(map(str, paths)))
            self._runtime = runtime_of(run, chosen.generation, rows, metrics)
        self.chosen = chosen
        """The checkpoint that was read."""
        self._rows = rows
        self.rows = 0
        """Rows that were scored so far."""
        values = rows.origin if isinstance(rows, RawIds) else rows
        self.unknown = values.unknown if isinstance(values, (NumberedRows, CriteoRows)) else {}
        """Lookups of each column, and those of values that the numbering of the training data does not know."""
        self.shared = {feature.name: Unknown() for feature in rows.features} if isinstance(rows, RawIds) else {}
        """Where ids are raw: lookups of each feature, and those of ids without a row of their own."""

    @property
    def step(self) -> int:
        return self._runtime.step_number

    @property
    def schema(self) -> Schema | None:
        """The schema of the files; None for public logs, such as Criteo files."""
        rows = self._rows.origin if isinstance(self._rows, RawIds) else self._rows
        return rows.schema if isinstance(rows, (NumberedRows, KeyedRows)) else None

    def scored(self) -> Iterator[Scored]:
        """Yield all rows in order, some at a time."""
        runtime = self._runtime
        for batch in self._rows.test_batches(runtime.config.eval.batch_size):
            self.rows += batch.size
            if isinstance(self._rows, RawIds):
                self._count_shared(batch, self._rows)
            yield Scored.of(batch, logits_of(batch, runtime.store, runtime.dense))

    def _count_shared(self, batch: Batch, keys: RawIds) -> None:
        bag_lengths, features = np.diff(batch.offsets), len(keys.features)
        feature_N = np.repeat(np.arange(len(bag_lengths)) % features, bag_lengths)
        rows_F = keys.keys.shared_T[[feature.table for feature in keys.features]]
        is_shared_N = batch.ids_N < rows_F[feature_N]
        lookups_F, shared_F = (np.bincount(part, minlength=features) for part in (feature_N, feature_N[is_shared_N]))
        for f, counted in enumerate(self.shared.values()):
            counted.count(int(lookups_F[f]), int(shared_F[f]))

    def quality(self) -> Evaluation:
        """Score all rows and compare with their labels; where all are positives, rank their items among those of the training
        rows. Raises DataError where there is no row."""
        if self._runtime.config.data.implicit.negatives:
            return Evaluation(self.step, self._ranked())
        parts = list(self.scored())
        if not parts:
            raise DataError("the data to score must hold at least one row, it has none")
        return Evaluation(self.step, Scored.joined(parts).quality(self._runtime.config.eval.metrics))


    def _ranked(self) -> Quality:
        """Rank what the users of the rows have chosen. Reads the training rows, whose items and users these are."""
        from adaptive_rec.data.implicit.candidates import Candidates
        from adaptive_rec.data.implicit.negatives import negatives_of
        from adaptive_rec.runtime.ranked import rank_held_out

        runtime, self.shared = self._runtime, {}
        drawn = negatives_of(open_source(runtime.config, trains=True))
        assert drawn is not None, "rows are all positives"
        new = self._rows.origin if isinstance(self._rows, RawIds) else self._rows
        settings = runtime.config.eval.model_copy(update={"max_samples": 0})
        candidates = Candidates(drawn, settings, runtime.config.run.seed, new)
        found = rank_held_out(runtime.state, self._rows, runtime.dense, candidates)
        assert found is not None, "nobody interrupts it"
        return found


def lacking_columns(rows: NumberedRows | CriteoRows | RawIds) -> list[str]:
    """Say which columns some of the files of new rows lack."""
    source = rows.origin if isinstance(rows, RawIds) else rows
    return source.lacking if isinstance(source, NumberedRows | KeyedRows) else []


def new_rows(run: Path, generation: Path, paths: Sequence[Path], labelled: bool) -> NumberedRows | CriteoRows | RawIds:
    """Return files of new rows as a source of the ids that a run was trained on. Raises UsageError where that is not possible."""
    config = load_config(str(run / "config.toml"), {})
    if config.data.schema_file:
        return RawIds(KeyedRows(config, trained_columns(config, generation), paths, labelled), config)
    if reads_criteo(config.data):
        criteo = CriteoRows(config, paths, labelled)
        return RawIds(criteo, config) if config.data.ids == "raw" else criteo
    rows = NumberedRows(prepared_source(config, run), paths, labelled)
    return RawIds(rows, config) if config.data.ids == "raw" else rows


def trained_columns(config: Config, generation: Path) -> TrainedColumns:
    """Return the columns of the files that a run reads by raw ids: those in its checkpoint, or those of the files, where the
    checkpoint is of a version that kept none."""
    if (columns := saved_columns(generation)) is not None:
        return columns
    files = files_of_source(open_source(config, trains=True))
    assert files is not None, "the configuration names files"
    return files.trained_columns()


def prepared_source(config: Config, run: Path) -> PreparedSource:
    """Return the folder that a run was trained on. Raises UsageError where its data is no such folder."""
    if not is_folder(config.data):
        raise of_other_data(run, config.data.source)
    return PreparedSource(config)
