"""``meta.json`` of a prepared folder: its contents, its sources, and the checks that it is complete."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from adaptive_rec.config.faults import describe_faults
from adaptive_rec.config.knobs import Frozen
from adaptive_rec.data.prepare.place import META
from adaptive_rec.data.prepare.raw import SequenceColumns, arrays_beside
from adaptive_rec.data.prepare.recipe import rows_are_lines, rows_version
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.kernels.number_keys import FIRST_ID, INFREQUENT_ID, MAX_COUNT, MISSING_ID
from adaptive_rec.units import whole

MAX_META_BYTES = 64 << 20
MAX_TABLE_ROWS = (1 << 31) - 1
"""Ids are stored in 32 bits."""


class SourceFile(Frozen):
    """A source file as it was when preparing began."""

    name: str = Field(min_length=1)
    """The beginning of the names of its arrays."""
    path: str
    size_bytes: int
    modified_ns: int


class Job(Frozen):
    """A job of preparing. The same job always makes the same arrays."""

    format: str
    schema_sha256: str = ""
    """The checksum of the schema, for files of the user's own."""
    on_bad_row: Literal["error", "skip"]
    min_count: int = Field(ge=1, le=int(MAX_COUNT))
    seed: int
    history_steps: int = Field(0, ge=0)
    """Longest history of formats that have them; 0 for the others."""
    rows_version: int = 1
    """The version of the rule by which files of the format become rows."""
    keys_version: int = 1
    """The version of the rule by which values become keys: work that was interrupted goes on only under the same one."""
    sources: tuple[SourceFile, ...] = Field(min_length=1)


class Ids(Frozen):
    """The meaning of the ids of every table."""

    missing: int = Field(MISSING_ID, ge=MISSING_ID, le=MISSING_ID)
    infrequent: int = Field(INFREQUENT_ID, ge=INFREQUENT_ID, le=INFREQUENT_ID)
    min_count: int
    """Values that occur less often than this in all columns of their table together are infrequent."""
    first: int = Field(FIRST_ID, ge=FIRST_ID, le=FIRST_ID)
    order: str = "from `first` on in order of first occurrence: column by column of the table, file by file, row by row"


class TableMeta(Frozen):
    name: str
    rows: int = Field(ge=FIRST_ID, le=MAX_TABLE_ROWS)
    """Ids lie below this: two, and one for each distinct value that occurs often enough."""


class ColumnMeta(Frozen):
    name: str
    table: str
    bag: bool
    cardinality: int
    """Rows of its table."""


class ArrayFile(Frozen):
    name: str = Field(pattern=r"^[^/]+\.npy$")
    size_bytes: int
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ValuesFile(Frozen):
    """The file of the values that a table's ids stand for; see `values.py`."""

    table: str
    name: str = Field(pattern=r"^[^/]+\.(arrow|npy)$")
    size_bytes: int
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SourceMeta(Frozen):
    name: str
    rows: int = Field(ge=1)
    bad_rows: int
    bad_of: dict[str, int] = {}
    """Bad rows by the column that breaks its rule first, `row` where none can be said; of files with a schema."""
    files: tuple[ArrayFile, ...]


class Meta(Frozen):
    """The whole of ``meta.json``."""

    format_version: Literal[1] = 1
    made_by: str
    rows: int
    bad_rows: int
    dense_names: tuple[str, ...] = Field(min_length=1)
    dense_transform: str
    ids: Ids
    tables: tuple[TableMeta, ...] = Field(min_length=1)
    columns: tuple[ColumnMeta, ...] = Field(min_length=1)
    """Sparse columns; those without bags are the columns of ``NAME_sparse.npy``, in this order."""
    sequence: SequenceColumns | None = None
    """The columns of a sample's history, if samples have one."""
    sources: tuple[SourceMeta, ...] = Field(min_length=1)
    columns_schema: Schema | None = None
    """The schema of files of the user's own; null for other formats."""
    values: tuple[ValuesFile, ...] = ()
    """A file for each table: the values that ids stand for where there is a schema, their keys where lines of a public log are
    rows. Folders of such logs that older versions prepared have none."""
    has_times: bool = False
    """Whether each source has an array of its rows' times, in microseconds since 1970; folders of older versions have none."""
    time_order: ArrayFile | None = None
    """The file of the order of all rows by time; null where they are in that order, or have no times."""
    job: Job
    meta_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    """The checksum of all other values (`sum_of_values`); null in folders that older versions prepared."""

    def sealed(self) -> Meta:
        """Return the same with the checksum of its values."""
        values = self.model_dump(mode="json", exclude={"meta_sha256"})
        return self.model_copy(update={"meta_sha256": sum_of_values(values)})

    @property
    def beside(self) -> tuple[str, ...]:
        """The arrays that each source has beside its features, of those of `BESIDE`."""
        return arrays_beside(self.has_times, self.columns_schema)

    @property
    def left_out(self) -> str:
        """Say how many rows were left out, and by which columns; empty where none was."""
        if not self.bad_rows:
            return ""
        why = sum((Counter(source.bad_of) for source in self.sources), Counter[str]())
        columns = ", ".join(f"{whole(count)} by {'their fields' if name == 'row' else name}" for name, count in why.most_common())
        return f", {whole(self.bad_rows)} malformed left out" + (f" ({columns})" if columns else "")

    def check_has_values(self, folder: Path) -> None:
        """Raise UsageError where the folder does not hold what its ids stand for, so that no new rows can be scored."""
        if self.columns_schema is None and not rows_are_lines(self.job.format):
            raise UsageError(
                f"the model must have been trained on data whose lines are rows; the samples of format {self.job.format}, from "
                f"which {folder} was prepared, are made of several lines, and some are drawn"
            )
        if not self.values:
            raise UsageError(
                f"the prepared folder must hold the keys of its ids, {folder} was made by {self.made_by}, which left them out; "
                f"prepare {', '.join(each.path for each in self.job.sources)} again in its place, which gives the same ids"
            )

    def array_files(self) -> Iterator[ArrayFile | ValuesFile]:
        for source in self.sources:
            yield from source.files
        yield from self.values
        if self.time_order is not None:
            yield self.time_order


def dense_file(name: str) -> str:
    return f"{name}_dense.npy"


def sparse_file(name: str) -> str:
    return f"{name}_sparse.npy"


def labels_file(name: str) -> str:
    return f"{name}_labels.npy"


def bag_files(name: str, column: str) -> tuple[str, str]:
    """Return the files of a column with bags: the ids of all bags one after another, and the offsets of the bags."""
    return f"{name}_bag_{column}_values.npy", f"{name}_bag_{column}_offsets.npy"


def beside_file(name: str, array: str) -> str:
    """Return the file of one of the arrays of `BESIDE`: ``NAME_times.npy``, ``NAME_weights.npy``, ``NAME_groups.npy``."""
    return f"{name}_{array.removesuffix('_B')}.npy"


def array_names(name: str, columns: tuple[ColumnMeta, ...], beside: tuple[str, ...]) -> list[str]:
    """Return the names of all files that are made from a source. `beside`: its arrays of `BESIDE`."""
    bags = [file for column in columns if column.bag for file in bag_files(name, column.name)]
    sparse = [sparse_file(name)] if any(not column.bag for column in columns) else []
    return [dense_file(name), *sparse, labels_file(name), *bags, *(beside_file(name, array) for array in beside)]


def load_meta(folder: Path) -> Meta:
    """Read ``meta.json`` and check that every file it names is there in its size."""
    path = folder / META
    try:
        with path.open("rb") as text:
            content = text.read(MAX_META_BYTES + 1)
        if len(content) > MAX_META_BYTES:
            raise DataError(f"{path} must have at most {MAX_META_BYTES} bytes, it has more")
        meta = Meta.model_validate_json(content)
    except FileNotFoundError:
        raise DataError(f"a prepared folder must hold {META}, {folder} has none") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise DataError(f"{path} breaks the rules of its format: {describe_faults(error).strip()}") from None
    _check_rows(meta, folder)
    for file in meta.array_files():
        try:
            size_bytes = (folder / file.name).stat().st_size
        except OSError as error:
            raise DataError(f"{folder / file.name}, which {META} names, cannot be read: {error.strerror}") from None
        if size_bytes != file.size_bytes:
            raise DataError(f"{folder / file.name} must have {file.size_bytes} bytes, as {META} says, got {size_bytes}")
    _check_sums(meta, path)
    if meta.meta_sha256 is not None:
        _check_seal(meta, path, content)
    return meta


def sum_of_values(values: dict[str, Any]) -> str:
    """Return the SHA-256 of the values of ``meta.json``: written as JSON with sorted keys, in ASCII without spaces."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _check_seal(meta: Meta, path: Path, content: bytes) -> None:
    """Raise where `meta.json` was changed since it was made."""
    try:
        values = json.loads(content)
        del values["meta_sha256"]
        found = sum_of_values(values)
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"{path} breaks the rules of its format: {error}") from None
    if found != meta.meta_sha256:
        raise DataError(
            f"{path}: the values must have the SHA-256 {meta.meta_sha256}, as meta_sha256 says, got {found}: a value was "
            "changed after the folder was made; prepare it again, or remove meta_sha256 to use it as it is"
        )


def _check_rows(meta: Meta, folder: Path) -> None:
    """Raise where a folder's rows have another version than the current one."""
    job, wanted = meta.job, rows_version(meta.job.format)
    if job.rows_version != wanted:
        sources = ", ".join(source.path for source in job.sources)
        raise DataError(
            f"rows of format {job.format} must be of version {wanted}, {folder} has version {job.rows_version}, made by "
            f"{meta.made_by}; prepare {sources} again with adaptive-rec data prepare"
        )


def _check_sums(meta: Meta, path: Path) -> None:
    """Raise where two parts of `meta.json` contradict each other."""
    rows_of = {table.name: table.rows for table in meta.tables}
    for column in meta.columns:
        if rows_of.get(column.table) != column.cardinality:
            raise DataError(f"{path}: column {column.name} must have the rows of its table {column.table}")
    for source in meta.sources:
        names = array_names(source.name, meta.columns, meta.beside)
        if [file.name for file in source.files] != names:
            raise DataError(f"{path}: source {source.name} must have the files {names}")
    named = [file.table for file in meta.values]
    if named != list(rows_of) and (named or meta.columns_schema):
        raise DataError(f"{path}: values must name a file for each of the tables {list(rows_of)}")
    if meta.sequence is not None:
        check_sequence(meta, meta.sequence, path)
    if sum(source.rows for source in meta.sources) != meta.rows:
        raise DataError(f"{path}: rows must be the sum of the sources' rows, got {meta.rows}")


def check_sequence(meta: Meta, sequence: SequenceColumns, path: Path) -> None:
    """Raise unless every column of a history exists and is of the right kind."""
    columns = {column.name: column for column in meta.columns}
    for history in sequence.histories:
        bags, single = columns.get(history.column), columns.get(history.candidate)
        if bags is None or single is None or not bags.bag or single.bag or bags.table != single.table:
            raise DataError(
                f"{path}: column {history.column} must have bags, {history.candidate} none, and both the same table"
            )
    dense = [sequence.length, *(name for names in sequence.dense for name in names)]
    missing = [name for name in dense if name not in meta.dense_names]
    if missing or any(len(names) != sequence.steps for names in sequence.dense):
        raise DataError(f"{path}: sequence must name dense columns, one for each of {sequence.steps} steps, {missing}")
