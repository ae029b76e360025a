"""The description of a prepared folder that is complete but for it, checksums included."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adaptive_rec.data.prepare.checksums import Report, StageProgress, checksums
from adaptive_rec.data.prepare.meta import (
    ArrayFile,
    ColumnMeta,
    Ids,
    Job,
    Meta,
    SourceMeta,
    TableMeta,
    ValuesFile,
    array_names,
    beside_file,
)
from adaptive_rec.data.prepare.raw import RawReader, arrays_beside
from adaptive_rec.data.prepare.read import ReadSource
from adaptive_rec.data.prepare.recipe import rows_are_lines
from adaptive_rec.data.prepare.time_order import TIME_ORDER, write_time_order
from adaptive_rec.data.prepare.values import table_keys_file, values_file
from adaptive_rec.system.version import __version__
from adaptive_rec.units import counted


def describe_content(
    part: Path,
    job: Job,
    reader: RawReader,
    tables: dict[str, int],
    columns: tuple[ColumnMeta, ...],
    read: list[ReadSource],
    pool: ThreadPoolExecutor,
    report: Report,
) -> Meta:
    """Return the contents of `meta.json`, with the checksums of all arrays; the order by time is written first where rows have
    times. `tables`: the rows of each."""
    has_times, rows = reader.has_times, sum(source.rows for source in read)
    beside = arrays_beside(has_times, reader.schema)
    names = [array_names(source.name, columns, beside) for source in job.sources]
    order = []
    if has_times and write_time_order(part, [part / beside_file(source.name, "times_B") for source in job.sources], rows):
        order = [TIME_ORDER]
    of_values = {name: values_file(name) for name in tables} if reader.schema is not None else {}
    if rows_are_lines(job.format):
        of_values = {name: table_keys_file(name) for name in tables}
    paths = [part / name for of_source in names for name in of_source]
    paths += [part / name for name in (*of_values.values(), *order)]
    sums = iter(
        checksums(
            paths, pool, lambda ratio: report(StageProgress("checksums", counted(len(paths), "file"), ratio, rows))
        )
    )
    sources = tuple(
        SourceMeta(
            name=source.name,
            rows=done.rows,
            bad_rows=done.bad_rows,
            bad_of=done.bad_of,
            files=tuple(
                ArrayFile(name=name, size_bytes=(part / name).stat().st_size, sha256=next(sums))
                for name in of_source
            ),
        )
        for source, done, of_source in zip(job.sources, read, names, strict=True)
    )
    return Meta(
        made_by=f"adaptive-rec {__version__}",
        rows=rows,
        bad_rows=sum(source.bad_rows for source in read),
        dense_names=reader.dense_names,
        dense_transform=reader.dense_transform,
        ids=Ids(min_count=job.min_count),
        tables=tuple(TableMeta(name=name, rows=table_rows) for name, table_rows in tables.items()),
        columns=columns,
        sequence=reader.sequence,
        sources=sources,
        columns_schema=reader.schema,
        values=tuple(
            ValuesFile(table=table, name=name, size_bytes=(part / name).stat().st_size, sha256=next(sums))
            for table, name in of_values.items()
        ),
        has_times=has_times,
        time_order=next(
            (ArrayFile(name=name, size_bytes=(part / name).stat().st_size, sha256=next(sums)) for name in order), None
        ),
        job=job,
    ).sealed()
