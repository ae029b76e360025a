"""Export of a generation's tables to files for other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.history import verify_all
from adaptive_rec.checkpoint.rows import SavedRows, SavedTable, saved_seed
from adaptive_rec.checkpoint.saved_keys import saved_keys
from adaptive_rec.checkpoint.table_files import TableKeysOut, TableOut, bytes_of_part, write_table_files
from adaptive_rec.data.raw.salts import salts
from adaptive_rec.system.durable import new_folder


def export_weights(generation: Path, out: Path, form: str, part_size: str | None = None) -> list[Path]:
    """Write the weights of all tables to a new folder, as a whole or not at all, and return the files.

    `safetensors`: ``NAME.safetensors`` with the array `weight`, or with `part_size` several files of at most so many bytes of
    rows, ``NAME-00001-of-00003.safetensors``. `npy`: ``NAME.npy``, with bfloat16 as float32. ``tables.json`` says which rows
    each file has. `torchrec`: ``state_dict.safetensors`` with all tables under TorchRec's names, for `load_state_dict` of an
    EmbeddingBagCollection.

    Where ids are raw keys, ``keys.safetensors`` has for each table the arrays ``NAME.key`` and ``NAME.row``: the keys that have a
    row of their own, and the number of that row in `weight`.
    """
    part_bytes = bytes_of_part(form, part_size, "--part-size")
    with new_folder(out) as draft:
        verify_all(DISK, generation)
        return write_table_files(saved_tables_out(generation), draft, out, form, part_bytes)


def saved_tables_out(generation: Path) -> list[TableOut]:
    """Return the tables of a whole generation."""
    saved = SavedRows(DISK, generation)
    keys = saved_keys(generation, saved.tables)
    salt_T = () if keys is None else salts(saved_seed(DISK, generation), len(saved.tables))
    found = []
    for index, table in enumerate(saved.tables):
        own = None if keys is None else keys.table(index)
        given = None if own is None else TableKeysOut(own.key_K, own.row_K, own.shared_rows, int(salt_T[index]))
        found.append(TableOut(table.name, table.rows, table.dim, saved.types(table)[0].type, _between(saved, table), given))
    return found


def _between(saved: SavedRows, table: SavedTable) -> Callable[[int, int], Iterator[NDArray[Any]]]:
    """Return what reads rows of a table, part by part."""

    def read(first: int, end: int) -> Iterator[NDArray[Any]]:
        for low, high in saved.chunks(table, first, end):
            yield saved.read(table, low, high)[0]

    return read
