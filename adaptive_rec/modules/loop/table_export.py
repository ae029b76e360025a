"""Tables of a user's loop in files for other programs. Rows are read part by part from where they are, and none moves for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from adaptive_rec.checkpoint.table_files import (
    TableKeysOut,
    TableOut,
    bytes_of_part,
    check_parts,
    files_of_table,
    write_table_files,
)
from adaptive_rec.errors import UsageError
from adaptive_rec.modules.loop.ids import LoopIds
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers
from adaptive_rec.system.common_work import CommonWork
from adaptive_rec.system.durable import check_new_folder, new_folder

FORMS = ("safetensors", "npy")
CHUNK_ROWS, CHUNK_BYTES = 1 << 16, 16 << 20
"""Limits of what is read at a time."""
TYPES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}
"""Names of the types of tables in the format of safetensors."""


def write_tables_of_loop(
    tables: TablesInTiers, raw_ids: LoopIds | None, out: Path, form: str, part_size: int | str | None
) -> list[Path]:
    """Write all tables to the new folder `out`, as a whole or not at all. Returns the files; of several ranks the first writes
    them, with rows that the others send. An error of one rank ends all with it after the part that is read or written. Raises
    UsageError, CheckpointError, DiskError, RankError."""
    if form not in FORMS:
        raise UsageError(f"form must be {' or '.join(FORMS)}, got {form!r}")
    part_bytes, group = bytes_of_part(form, part_size, "part_size"), tables.rows.group
    together = CommonWork(group, "export tables")
    with together.part():
        if group.rank == 0:
            check_new_folder(out, "out")
    with tables.turn:
        tables.sums.settle()
        for number in range(len(tables.space.tables)):
            tables.dense_steps.settle(number)
        written = [_table_out(tables, raw_ids, number, together) for number in range(len(tables.space.tables))]
        check_parts(written, part_bytes)
        with together.part():
            if group.rank == 0:
                with new_folder(out, "out") as draft:
                    return write_table_files(written, draft, out, form, part_bytes)
            for table in written:
                for _, first, end in files_of_table("", table, form, part_bytes)[1]:
                    for _ in table.between(first, end):
                        pass
        return []


def _table_out(tables: TablesInTiers, raw_ids: LoopIds | None, number: int, together: CommonWork) -> TableOut:
    spec, keys = tables.space.tables[number], None
    if raw_ids is not None:
        keys = TableKeysOut(*raw_ids.keys_and_rows(number), raw_ids.shared_rows, raw_ids.salt(number))
    return TableOut(spec.name, spec.rows, spec.dim, TYPES[tables.weight_dtype], _between(tables, number, together), keys)


def _between(tables: TablesInTiers, number: int, together: CommonWork) -> Callable[[int, int], Iterator[NDArray[Any]]]:
    """Return what reads rows of a table, part by part, from all tiers and ranks."""
    pool = tables.store.space.table_range(number)[0]
    row_bytes = sum(array.itemsize * array.shape[1] for array in tables.store.cold.arrays(pool))
    step = max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))

    def read(first: int, end: int) -> Iterator[NDArray[Any]]:
        for low in range(first, end, step):
            part = tables.rows.between(number, low, min(low + step, end), tables.state.step, together)
            if part is not None:
                yield part

    return read
