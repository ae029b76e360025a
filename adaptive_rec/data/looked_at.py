"""Rows of a source that are looked at before a run trains: some blocks of them, spread over all, and of a prepared folder the
ids of all training rows, up to a number of lookups that takes well under a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo import MemorySource, StreamSource
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.data.split_facts import Labels, Looked, Part
from adaptive_rec.errors import DataError
from adaptive_rec.kernels.number_keys import FIRST_ID, INFREQUENT_ID, MISSING_ID

if TYPE_CHECKING:
    from adaptive_rec.data.loaded_samples import LoadedSamples
    from adaptive_rec.data.prepare.meta import Meta
    from adaptive_rec.data.prepared import PreparedSource
    from adaptive_rec.data.prepared_arrays import FolderArrays
    from adaptive_rec.data.tabular.stream import TabularSource

BLOCK_ROWS = 128
MOST_BLOCKS = 96
"""Blocks of training rows, and of held-out rows, of a prepared folder."""
REORDERED_BLOCKS = 16
"""Where rows are read in order of time, one by one."""
CHUNK_ROWS = 1 << 15
MOST_LOOKUPS = 1 << 25
"""Lookups of training rows whose ids are compared with those of held-out rows."""
MOST_LABELS, MOST_ROWS = 1 << 26, 1 << 26
"""Rows of a folder whose labels are all looked at, and rows of a table whose ids are compared: a byte of memory each."""
SINGLE, LEAST_SINGLE = 64, 8
"""One of so many training rows, in a small file one of fewer, is first compared with the others, as one held out by itself."""
FILE_BLOCKS, FILE_ROWS = 4, 1 << 12
"""Blocks of training rows, and of held-out rows, of files that are read as they are, and the rows of each."""
STREAM_ROWS = 1 << 13
"""Rows at the beginning of a Criteo file's training and held-out rows whose labels are looked at."""


def looked_at(source: Source, config: Config) -> Looked | None:
    """Look at rows of a source; None where it has none yet, or draws them, or they cannot be read, which a run says of itself
    when it comes to them."""
    while isinstance(source, Wrapped):
        source = source.origin
    try:
        return _looked_at(source, config)
    except DataError:
        return None


def _looked_at(source: Source, config: Config) -> Looked | None:
    if isinstance(source, MemorySource):
        train, held_out = (Labels.of(source.labels_R[rows.start : rows.stop], len(rows)) for rows in source.ranges)
        return Looked((train, held_out))
    if isinstance(source, StreamSource):
        train = Labels.of(_first_labels(source.train_batches(Position(), STREAM_ROWS)), source.train_samples)
        held_out = Labels.of(_first_labels(source.test_batches(STREAM_ROWS, STREAM_ROWS)), source.test_samples)
        return Looked((train, held_out))
    if config.data.source == "synthetic":
        return None
    from adaptive_rec.data.prepared import PreparedSource
    from adaptive_rec.data.tabular.stream import TabularSource

    if isinstance(source, PreparedSource):
        return _of_folder(source, config)
    return _of_files(source, config) if isinstance(source, TabularSource) else None


def _first_labels(batches: Iterator[Batch]) -> NDArray[np.float32]:
    return np.concatenate([np.empty(0, np.float32), *(batch.labels_B for batch in islice(batches, 1))])


def _of_folder(source: PreparedSource, config: Config) -> Looked:
    meta, arrays, (train, held_out) = source.meta, source.arrays, source.ranges
    blocks = REORDERED_BLOCKS if arrays.is_reordered else MOST_BLOCKS
    parts = [
        _part(rows, [arrays.read(block.start, block.stop) for block in _spread(rows, blocks, BLOCK_ROWS)])
        for rows in (train, held_out)
    ]
    labels = (Labels.of(parts[0].labels_S, len(train)), Labels.of(parts[1].labels_S, len(held_out)))
    if meta.rows <= MOST_LABELS:
        label_R = np.concatenate([arrays.labels_in_file(rows) == 1 for rows in _chunks(range(meta.rows))])
        ones = [_positives(arrays, label_R, rows) for rows in (train, held_out)]
        labels = (Labels(len(train), ones[0]), Labels(len(held_out), ones[1]))
    if meta.columns_schema is None:
        return Looked(labels)
    names = tuple(column.name for column in meta.columns if not column.bag)
    unseen_C, usual_C, compared = _unseen_in_folder(source, parts[1])
    return Looked(
        labels,
        parts[0],
        parts[1],
        names,
        meta.dense_names if meta.columns_schema.dense else (),
        unseen_C,
        usual_C,
        compared,
        _values_of_rows(meta, parts[0]),
        MISSING_ID,
        config.data.order == "time",
        train.stop <= held_out.start,
        *meta.columns_schema.choice,
    )


def _positives(arrays: FolderArrays, label_R: NDArray[np.bool_], rows: range) -> int:
    """Return how many of some rows have label 1."""
    return sum(int(np.count_nonzero(label_R[arrays.numbers(chunk)])) for chunk in _chunks(rows))


def _chunks(rows: range) -> Iterator[range]:
    """Yield rows, some at a time."""
    return (rows[start : start + CHUNK_ROWS] for start in range(0, len(rows), CHUNK_ROWS))


def _spread(rows: range, blocks: int, size: int) -> list[range]:
    """Return blocks of rows, evenly spread: all rows where there are few."""
    if len(rows) <= blocks * size:
        return [rows] if len(rows) else []
    return [rows[first : first + size] for first in np.linspace(0, len(rows) - size, blocks).astype(int).tolist()]


def _part(rows: range, pieces: list[LoadedSamples]) -> Part:
    """Return a part of which these pieces are looked at."""
    if not pieces:
        return Part(len(rows), np.empty(0, np.int32))
    from adaptive_rec.data.loaded_samples import LoadedSamples

    samples = LoadedSamples.joined(pieces)
    return Part(len(rows), samples.labels_B, samples.ids_BC.astype(np.int64), samples.dense_BX)


def _values_of_rows(meta: Meta, part: Part) -> NDArray[np.float64]:
    """Return the values of each column without bags for each row; NaN where its table is that of several columns. Of values that
    share a row there are no fewer than so many rows of the part show."""
    tables = [column.table for column in meta.columns]
    columns = [column for column in meta.columns if not column.bag]
    rows_T = {table.name: table.rows for table in meta.tables}
    infrequent_C = np.mean(part.ids_SC == INFREQUENT_ID, axis=0) / max(1, meta.ids.min_count - 1)
    own = [(rows_T[c.table] - FIRST_ID) / meta.rows if tables.count(c.table) == 1 else np.nan for c in columns]
    return np.array(own) + infrequent_C


def _unseen_in_folder(source: PreparedSource, held_out: Part) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the share of held-out rows looked at whose id no training row compared has, by column, that of single training rows,
    and the rows compared."""
    meta, arrays, (train, _) = source.meta, source.arrays, source.ranges
    columns = held_out.ids_SC.shape[1] if len(held_out.labels_S) else 0
    if not columns or (arrays.is_reordered and meta.rows > MOST_LABELS):
        return np.empty(0), np.empty(0), 0
    is_trained = np.ones(0, dtype=bool)
    if arrays.is_reordered:
        is_trained = np.zeros(meta.rows, dtype=bool)
        for rows in _chunks(train):
            is_trained[arrays.numbers(rows)] = True
    chunks = list(_chunks(range(meta.rows) if arrays.is_reordered else train))
    most = max(1, MOST_LOOKUPS // columns // CHUNK_ROWS)
    if len(chunks) > most:
        chunks = [chunks[k] for k in np.linspace(0, len(chunks) - 1, most).astype(int).tolist()]
    rows_C = [column.cardinality for column in meta.columns if not column.bag]
    seen_C = [np.zeros(rows if rows <= MOST_ROWS else 0, dtype=bool) for rows in rows_C]
    singles, compared = [np.empty((0, columns), dtype=np.int64)], 0
    for rows in chunks:
        ids_SC = arrays.ids_in_file(rows)
        ids_SC = ids_SC[is_trained[rows.start : rows.stop]] if arrays.is_reordered else ids_SC
        single_S = _singles(len(ids_SC), len(train))
        singles.append(ids_SC[single_S].astype(np.int64))
        ids_SC, compared = ids_SC[~single_S], compared + len(ids_SC)
        for c, seen in enumerate(seen_C):
            if len(seen):
                seen[ids_SC[:, c]] = True
    for seen in seen_C:
        seen[INFREQUENT_ID:FIRST_ID] = False  # a value that hardly any other row has
    usual_C = _unseen_of_all(seen_C, np.concatenate(singles))
    return _unseen(seen_C, held_out.ids_SC), usual_C, compared


def _singles(rows: int, of: int) -> NDArray[np.bool_]:
    """Return which of some training rows, `of` all of them, are compared with the others first."""
    every = max(LEAST_SINGLE, min(SINGLE, of // 512))
    return np.arange(rows) % every == every - 1


def _unseen_of_all(seen_C: list[NDArray[np.bool_]], ids_SC: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of some training rows whose ids no other one has, by column, and add them to those seen."""
    usual_C = _unseen(seen_C, ids_SC)
    for c, seen in enumerate(seen_C):
        if len(seen):
            seen[ids_SC[ids_SC[:, c] != INFREQUENT_ID, c]] = True
    return usual_C


def _unseen(seen_C: list[NDArray[np.bool_]], ids_SC: NDArray[np.int64]) -> NDArray[np.float64]:
    if not len(ids_SC):
        return np.zeros(len(seen_C))
    return np.array([float(np.mean(~seen[ids_SC[:, c]])) if len(seen) else np.nan for c, seen in enumerate(seen_C)])


def _of_files(source: TabularSource, config: Config) -> Looked:
    """Look at blocks of files that are read as they are; keys are numbered in the order in which these blocks have them."""
    train, held_out = source.ranges
    most_passed = MOST_LOOKUPS // max(1, len(source.features))
    ascending = sorted(source.ranges, key=lambda rows: rows.start)
    wanted = [block for rows in ascending for block in _spread(rows, FILE_BLOCKS, FILE_ROWS)]
    found = source.pieces(wanted, most_passed)
    parts = [_part(rows, [piece for at, piece in found if at in rows]) for rows in (train, held_out)]
    if not parts[0].looked:
        return Looked(source.labels)
    columns = parts[0].ids_SC.shape[1]
    keys_SC = np.concatenate([part.ids_SC for part in parts if len(part.labels_S)])
    ids_SC = np.empty_like(keys_SC)
    for c in range(columns):
        ids_SC[:, c] = numbered(keys_SC[:, c])
    trained_SC, held_out_SC = np.split(ids_SC, [len(parts[0].labels_S)])
    parts = [replace(part, ids_SC=part_SC) for part, part_SC in zip(parts, (trained_SC, held_out_SC), strict=True)]
    single_S = _singles(len(trained_SC), len(trained_SC))
    seen_C = [np.zeros(int(ids_SC.max(initial=0)) + 1, dtype=bool) for _ in range(columns)]
    for c, seen in enumerate(seen_C):
        seen[trained_SC[~single_S, c]] = True
    usual_C = _unseen_of_all(seen_C, trained_SC[single_S])
    values_C = np.array([_values_for_each(ids_SC[:, c], len(train) + len(held_out)) for c in range(columns)])
    schema, names = source.trained_columns().schema, source.single_names
    return Looked(
        source.labels,
        parts[0],
        parts[1],
        names,
        tuple(column.column for column in schema.dense),
        _unseen(seen_C, held_out_SC) if len(held_out_SC) else np.empty(0),
        usual_C,
        len(trained_SC),
        values_C,
        MISSING_ID,
        config.data.order == "time",
        train.stop <= held_out.start,
        *schema.choice,
    )


def estimated_rows(source: TabularSource, min_count: int = 1) -> list[int]:
    """Return about how many rows each table would have once the values of files are numbered, by those of some blocks of rows.
    Raises DataError."""
    rows = max(part.stop for part in source.ranges)
    wanted = _spread(range(rows), 2 * FILE_BLOCKS, FILE_ROWS)
    pieces = [piece for _, piece in source.pieces(wanted, MOST_LOOKUPS // max(1, len(source.features)))]
    looked = sum(len(piece.labels_B) for piece in pieces)
    keys_T: list[list[NDArray[Any]]] = [[] for _ in source.tables]
    single, bag = 0, 0
    for feature in source.features:
        is_single = feature.name in source.single_names
        keys_T[feature.table] += [piece.ids_BC[:, single] if is_single else piece.bags[bag].values_N for piece in pieces]
        single, bag = single + is_single, bag + (not is_single)
    return [FIRST_ID + _values_of(np.concatenate(keys), rows / max(1, looked), min_count) for keys in keys_T]


def _values_of(keys_N: NDArray[Any], times: float, min_count: int) -> int:
    """Return about how many values occur `min_count` times at the least, any above 1 counted as 2, among `times` as many lookups
    as these."""
    counts_U = np.unique(keys_N, return_counts=True)[1]
    if times <= 1 or not len(keys_N):
        return int(np.count_nonzero(counts_U >= min_count))
    lookups, values = round(len(keys_N) * times), len(counts_U)
    single, twice = (int(np.count_nonzero(counts_U == occurs)) for occurs in (1, 2))
    # Each further lookup is of a new value, or of one that occurred once, with a probability that the counts give (Good, 1953).
    new = min((times - 1) * single, max(0.0, _values_for_each(keys_N, lookups) * lookups - values))
    if min_count == 1 or not single:
        return round(values + new)
    again = single * -np.expm1(-(times - 1) * 2 * twice / single)
    several = values - single
    return round(several + again + new * several / values)


def _values_for_each(ids_S: NDArray[np.int64], rows: int) -> float:
    """Return how many values a column has for each of so many rows, by some of them. Where a value has c rows, a row looked at, a
    share f of all, is the only one of its value with probability (1 - f) ^ (c - 1)."""
    counts_U = np.unique(ids_S, return_counts=True)[1]
    if len(ids_S) >= rows:
        return len(counts_U) / rows
    single = float(np.count_nonzero(counts_U == 1)) / len(ids_S)
    return 1 / (1 + np.log(single) / np.log1p(-len(ids_S) / rows)) if single else 0.0


def numbered(keys_S: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return keys as numbers from `FIRST_ID` on in the order in which they first occur; a missing one is `MISSING_ID`."""
    distinct, first_U, number_S = np.unique(keys_S, return_index=True, return_inverse=True)
    place_U = np.empty(len(distinct), dtype=np.int64)
    place_U[np.argsort(first_U)] = np.arange(FIRST_ID, FIRST_ID + len(distinct))
    if len(distinct) and distinct[0] == np.iinfo(np.int64).min:
        place_U[0] = MISSING_ID
    return place_U[number_S]
