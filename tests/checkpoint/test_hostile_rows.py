"""Forged chains, shards and descriptions of tables are refused with the file's name, quickly and with little memory."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.checkpoint import rows as rows_module
from adaptive_rec.checkpoint.difference import find_differences
from adaptive_rec.checkpoint.draft import Draft
from adaptive_rec.checkpoint.files import DISK, Files
from adaptive_rec.checkpoint.generation import read_manifest
from adaptive_rec.checkpoint.history import MOST_LINKS, chain, newest_valid, prune, verify_all
from adaptive_rec.checkpoint.manifest import Since
from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.errors import CheckpointError
from tests.checkpoint.histories import CHECKPOINTS, TABLES, name_of, rows_after, write
from tests.checkpoint.sim_files import SimFiles
from tests.checkpoint.test_hostile import refused_cheaply, seal


def since_of(files: Files, step: int) -> Since:
    return chain(files, CHECKPOINTS / name_of(step))[-1].since


def empty(files: Files, step: int, since: Since | None = None) -> Path:
    return Draft(files, CHECKPOINTS, step).commit({}, since)


# Chains ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [name_of(40), f"{name_of(40)}.1", name_of(41), "step-100000000000040"])
def test_no_generation_builds_on_itself_or_on_a_newer_one(named: str) -> None:
    """So there is no circle."""
    files = SimFiles()
    for step in (7, 41):
        empty(files, step)
    newer = empty(files, 40, Since(name=named, crc32="01234567"))
    with pytest.raises(CheckpointError, match=rf"{newer} must build on an older generation, got {named}"):
        verify_all(files, newer)
    assert newest_valid(files, CHECKPOINTS).generation == CHECKPOINTS / name_of(41)


def test_two_generations_that_name_each_other_are_an_error() -> None:
    files = SimFiles()
    empty(files, 7, Since(name=name_of(40), crc32="01234567"))
    empty(files, 40, Since(name=name_of(7), crc32=read_manifest(files, CHECKPOINTS / name_of(7)).crc32))
    for step in (7, 40):
        with pytest.raises(
            CheckpointError, match=rf"{name_of(7)} must build on an older generation, got {name_of(40)}"
        ):
            verify_all(files, CHECKPOINTS / name_of(step))
    assert newest_valid(files, CHECKPOINTS).generation is None


def test_a_renamed_generation_still_builds_on_its_base(tmp_path: Path) -> None:
    """Its own name does not show its age."""
    write(DISK, 7, tmp_path)
    write(DISK, 40, tmp_path)
    (tmp_path / name_of(40)).rename(tmp_path / "kept")
    verify_all(DISK, tmp_path / "kept")
    assert [link.path.name for link in chain(DISK, tmp_path / "kept")] == [name_of(7), "kept"]


def test_a_missing_or_replaced_base_is_an_error() -> None:
    files = SimFiles()
    for step in (7, 40, 123):
        write(files, step)
    base = CHECKPOINTS / name_of(7)
    files.remove_folder(base)
    message = rf"{name_of(40)} builds on {name_of(7)}, which cannot be used: {base}/MANIFEST.json: reading failed"
    with pytest.raises(CheckpointError, match=rf"{CHECKPOINTS}/{name_of(123)} builds on {name_of(40)}: .*{message}"):
        verify_all(files, CHECKPOINTS / name_of(123))
    write(files, 7, on=())
    verify_all(files, CHECKPOINTS / name_of(40))  # the same one again
    files.remove_folder(base)
    empty(files, 7)
    with pytest.raises(
        CheckpointError, match=rf"{name_of(40)} builds on another {name_of(7)}, whose manifest had crc32 \w+, got"
    ):
        SavedRows(files, CHECKPOINTS / name_of(40))


def test_the_length_of_a_chain_is_limited() -> None:
    files, since = SimFiles(), None
    for step in range(MOST_LINKS + 1):
        empty(files, step, since)
        since = Since(name=name_of(step), crc32=read_manifest(files, CHECKPOINTS / name_of(step)).crc32)
    assert len(chain(files, CHECKPOINTS / name_of(MOST_LINKS - 1))) == MOST_LINKS
    with pytest.raises(CheckpointError, match=rf"{name_of(MOST_LINKS)} must build on fewer than {MOST_LINKS}"):
        chain(files, CHECKPOINTS / name_of(MOST_LINKS))
    with pytest.raises(CheckpointError, match=rf"{name_of(MOST_LINKS)} must build on fewer than"):
        prune(files, CHECKPOINTS, keep=2)


# Tables ----------------------------------------------------------------------------------------------------------------


def generation(
    tables: Any, *shards: dict[str, Any], files: Files | None = None, on: int | None = None
) -> tuple[Files, Path]:
    files = files or SimFiles()
    draft = Draft(files, CHECKPOINTS, 7 if on is None else on + 1)
    for number, shard in enumerate(shards):
        draft.arrays(f"rows-{number:05d}.safetensors", shard)
    draft.json("state.json", {"run": {"tables": tables}})
    return files, draft.commit({}, None if on is None else since_of(files, on))


def shard(rows: Any, dim: int = 3, state: int = 1, dtype: Any = np.uint32, **more: Any) -> dict[str, Any]:
    row = np.array(rows, dtype)
    return {
        "row": row,
        "weight": np.ones((len(row), dim), np.float32),
        "optimizer_state": np.ones((len(row), state)),
    } | more


def table(**changes: Any) -> dict[str, Any]:
    return {"name": "C1", "rows": 6, "dim": 3, "first_row": 0} | changes


def read_all(files: Files, path: Path) -> None:
    saved = SavedRows(files, path)
    for each in saved.tables:
        for first, end in saved.chunks(each):
            saved.read(each, first, end)


def test_a_good_generation_is_read() -> None:
    read_all(*generation([table()], shard(range(6))))


@pytest.mark.parametrize("key", ["rows", "dim", "first_row"])
@pytest.mark.parametrize(
    "value", [-1, 1 << 41, 10**400, -(10**400), 1.5, True, None, "6", [6], {"a": 6}], ids=lambda v: f"{v}"[:9]
)
def test_sizes_of_tables_are_whole_numbers_in_bounds(key: str, value: Any) -> None:
    files, path = generation([table(**{key: value})], shard(range(6)))
    message = rf"^{key} of a table in {path}/state.json must be a whole number from [01] to {1 << 40}, got .{{1,60}}$"
    with pytest.raises(CheckpointError, match=message):
        read_all(files, path)


TABLE_LISTS: dict[str, tuple[Any, str]] = {
    "no tables": ([], "must have a list of tables in run.tables"),
    "tables that are a text": ("x" * 1000, "must have a list of tables in run.tables"),
    "a table that is none": ([7], "rows of a table in"),
    "no name": ([table(name=None)], "name of a table in .* must be a text, got None"),
    "a name that is a list": ([table(name=["x"] * 1000)], "name of a table in .* must be a text, got list"),
    "tables that overlap": ([table(), table(name="C2")], r"first_row of table 'C2' in .* must be 6, got 0"),
    "a hole": ([table(), table(name="C2", first_row=7)], r"first_row of table 'C2' in .* must be 6, got 7"),
    "no beginning": ([table(first_row=3)], r"first_row of table 'C1' in .* must be 0, got 3"),
    "too many rows together": ([table(rows=1 << 40), table(first_row=1 << 40)], "must have 1099511627776 rows or fewer"),
    "no rows": ([table(rows=0)], "rows of a table in"),
    "no dim": ([table(dim=0)], "dim of a table in"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLE_LISTS)
def test_invalid_lists_of_tables_are_errors(kind: str) -> None:
    tables, message = TABLE_LISTS[kind]
    files, path = generation(tables, shard(range(6)))
    with pytest.raises(CheckpointError, match=message) as raised:
        read_all(files, path)
    assert f"{path}/state.json" in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("value", [None, [], 7, {"run": []}, {"run": {"tables": {}}}])
def test_a_state_file_without_tables_is_an_error(value: Any) -> None:
    files = SimFiles()
    draft = Draft(files, CHECKPOINTS, 7)
    draft.json("state.json", value)
    path = draft.commit({})
    with pytest.raises(
        CheckpointError, match=f"{path}/state.json must have a list of tables in run.tables, it has none"
    ):
        SavedRows(files, path)


@pytest.mark.parametrize("rows", [7, 1 << 30, 1 << 40])
def test_a_table_that_claims_more_rows_than_there_are_takes_no_memory(tmp_path: Path, rows: int) -> None:
    draft = Draft(DISK, tmp_path, 7)
    draft.arrays("rows-00000.safetensors", shard(range(6)))
    draft.json("state.json", {"run": {"tables": [table(rows=rows)]}})
    path = draft.commit({})
    with pytest.raises(CheckpointError, match=f"{path}: row 6 of table 'C1' must be there; it is missing"):
        read_all(DISK, path)
    refused_cheaply(lambda: read_all(DISK, path), 0)
    refused_cheaply(lambda: list(find_differences(DISK, path, path)), 0)


# Shards ----------------------------------------------------------------------------------------------------------------

U32, U64 = np.uint32, np.uint64
SHARDS: dict[str, tuple[dict[str, Any], str]] = {
    "descending": (shard([5, 4, 3, 2, 1, 0]), "row of {} must be distinct and ascending numbers"),
    "the same row twice": (shard([0, 1, 1, 2, 3, 4]), "row of {} must be distinct and ascending numbers"),
    "out of order once": (shard([0, 2, 1, 3, 4, 5]), "row of {} must be distinct and ascending numbers"),
    "a row too high": (shard([0, 1, 2, 3, 4, 6]), "row of {} must be below 6, as the tables are, got 6"),
    "a row beyond 63 bits": (shard([0, 1, 2, 3, 4, (1 << 64) - 1], dtype=U64), "row of {} must be below 6.* got 18446744"),
    "a row beyond 40 bits": (shard([0, 1, 2, 3, 4, 1 << 40], dtype=U64), "row of {} must be below 6"),
    "rows that are signed": (shard([0, 1, 2, 3, 4, -1], dtype=np.int64), r"{} must hold row \(N,\), weight"),
    "rows that are fractions": (shard(range(6), dtype=np.float32), r"{} must hold row \(N,\), weight"),
    "rows of two dimensions": (shard(range(6), row=np.zeros((6, 1), U32)), r"{} must hold row \(N,\), weight"),
    "a row that is no list": (shard(range(6), row=np.zeros((), U32)), r"{} must hold row \(N,\), weight"),
    "no rows": (shard([]), r"{} must hold row \(N,\), weight"),
    "fewer weights": (shard(range(6), weight=np.ones((5, 3), np.float32)), r"{} must hold row \(N,\), weight"),
    "flat weights": (shard(range(6), weight=np.ones(6, np.float32)), r"{} must hold row \(N,\), weight"),
    "fewer states": (shard(range(6), optimizer_state=np.ones((5, 1))), r"{} must hold row \(N,\), weight"),
    "no dim at all": (shard(range(6), dim=0, state=0), r"rows of {} must have 1 to 16777216 bytes, got 0"),
    "another dim": (shard(range(6), dim=4), "weight of {} must be of dim 3 for table 'C1', got 4"),
    "rows too wide": (shard([0], dim=(4 << 20) + 1, state=0), "rows of {} must have 1 to 16777216 bytes, got 16777220"),
    "row missing": ({"weight": np.ones((6, 3)), "optimizer_state": np.ones((6, 1))}, "{} must hold row, which is missing"),
    "weight missing": ({"row": np.arange(6, dtype=U32), "optimizer_state": np.ones((6, 1))}, "{} must hold weight, which is"),
    "state missing": ({"row": np.arange(6, dtype=U32), "weight": np.ones((6, 3))}, "{} must hold optimizer_state, which is"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHARDS)
@pytest.mark.parametrize("where", ["full", "changes"])
def test_a_shard_that_breaks_a_rule_is_named(kind: str, where: str) -> None:
    content, message = SHARDS[kind]
    files, path = generation([table()], shard(range(6)) if where == "changes" else content)
    if where == "changes":
        if kind == "another dim":
            message = "weight of {} must be as in the shards before it"
        files, path = generation([table()], content, files=files, on=7)
    with pytest.raises(CheckpointError, match=message.format(f"{path}/rows-00000.safetensors")):
        read_all(files, path)


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([shard([0, 1, 2, 5]), shard([3, 4, 5])], "rows-00001.safetensors must have rows that no other shard has, got 5"),
        ([shard([0, 1, 2]), shard([3, 5])], ": row 4 of table 'C1' must be there; it is missing"),
        ([shard([1, 2, 3, 4, 5])], ": row 0 of table 'C1' must be there; it is missing"),
        ([], ": rows of table 'C1' must be there, none is"),
        ([shard([0, 1, 2]), shard([3, 4, 5], dim=2)], r"weight of .*rows-00001.* rows of \[3\] F32, got \[2\] F32"),
        ([shard([0, 1, 2]), shard([3, 4, 5], state=2)], r"optimizer_state of .*rows-00001.* rows of \[1\] F64, got \[2\]"),
        ([shard([0, 1, 2]), shard([3, 4, 5], weight=np.ones((3, 3)))], r"weight of .*rows-00001.* of \[3\] F32, got \[3\] F64"),
    ],
)  # fmt: skip
def test_shards_of_a_generation_must_fit_together(shards: list[dict[str, Any]], message: str) -> None:
    files, path = generation([table()], *shards)
    with pytest.raises(CheckpointError, match=message) as raised:
        read_all(files, path)
    assert str(path) in str(raised.value)


def test_a_changed_row_is_in_one_shard_only() -> None:
    files, _ = generation([table()], shard(range(6)))
    files, path = generation([table()], shard([1, 4]), shard([4]), files=files, on=7)
    with pytest.raises(
        CheckpointError, match=rf"{path}/rows-00001.safetensors must have rows that no other shard has, got 4"
    ):
        read_all(files, path)


def test_row_numbers_of_32_bits_do_not_overflow_for_a_larger_table() -> None:
    """The first table ends beyond 32 bits, so all of it is asked for in numbers that such a shard cannot hold."""
    tables = [table(rows=(1 << 32) + 9)]
    files, path = generation(tables, shard(range(6)))
    with pytest.raises(CheckpointError, match="row 6 of table 'C1' must be there"):
        read_all(files, path)
    saved = SavedRows(files, path)
    with pytest.raises(CheckpointError, match="row 4294967290 of table 'C1' must be there"):
        saved.read(saved.tables[0], (1 << 32) - 6, (1 << 32) + 6)


def test_a_shard_of_zeros_takes_no_memory(tmp_path: Path) -> None:
    """A file with holes is as large as it likes to be."""
    lines = 1 << 32
    header = json.dumps(
        {
            "row": {"dtype": "U64", "shape": [lines], "data_offsets": [0, 8 * lines]},
            "weight": {"dtype": "F32", "shape": [lines, 3], "data_offsets": [8 * lines, 20 * lines]},
            "optimizer_state": {"dtype": "F32", "shape": [lines, 0], "data_offsets": [20 * lines, 20 * lines]},
        }
    ).encode()
    (path := tmp_path / name_of(7)).mkdir()
    with open(path / "rows-00000.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 20 * lines)
    (path / "state.json").write_text(json.dumps({"run": {"tables": [table(rows=lines)]}}))
    entries = [
        {"name": each.name, "size_bytes": (size := each.stat().st_size), "crc32": "00000000" * -(-size // (4 << 20))}
        for each in sorted(path.iterdir())
    ]
    manifest = {"format": 3, "since": None, "step": 7, "chunk_bytes": 4 << 20, "description": {}, "files": entries}
    data = seal(json.dumps(manifest).encode())
    (path / "MANIFEST.json").write_bytes(data)
    refused_cheaply(lambda: verify_all(DISK, path), 4 * len(data))
    refused_cheaply(lambda: SavedRows(DISK, path), 4 * len(data))
    with pytest.raises(CheckpointError, match=rf"row of {path}/rows-00000.safetensors must be distinct"):
        SavedRows(DISK, path)


# Reading ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 3, 64])
def test_any_part_of_a_table_is_read_correctly(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Wherever blocks of row numbers end."""
    monkeypatch.setattr(rows_module, "_BLOCK", block)
    files, rng = SimFiles(), np.random.default_rng(5)
    for step in (7, 40, 123):
        write(files, step)
    saved = SavedRows(files, CHECKPOINTS / name_of(123))
    assert [(each.name, each.first_row) for each in saved.tables] == [
        (each["name"], each["first_row"]) for each in TABLES
    ]
    for each, expected in zip(saved.tables, rows_after((7, 40, 123)), strict=True):
        for first, end in np.sort(rng.integers(0, each.rows + 1, (60, 2)), axis=1).tolist():
            for got, array in zip(saved.read(each, first, end), expected, strict=True):
                assert np.array_equal(got, array[first:end]), (first, end)


def test_a_shard_of_distant_rows_is_not_used_for_rows_between_them() -> None:
    """Rows that were kept while they changed may be of several pools of one dim, with one of another dim between them."""
    tables = [table(rows=3), table(name="C2", rows=3, dim=5, first_row=3), table(name="C3", rows=3, first_row=6)]
    files, path = generation(tables, shard([0, 2, 7]), shard([1, 6, 8]), shard([3, 4, 5], dim=5))
    read_all(files, path)
    assert [kind[0].shape[1] for kind in map(SavedRows(files, path).types, SavedRows(files, path).tables)] == [3, 5, 3]


@pytest.mark.parametrize("limit", ["CHUNK_ROWS", "CHUNK_BYTES"])
def test_parts_are_of_bounded_size(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(rows_module, limit, {"CHUNK_ROWS": 4, "CHUNK_BYTES": 4 * (12 + 8) + 1}[limit])
    saved = SavedRows(*generation([table()], shard(range(6))))
    assert list(saved.chunks(saved.tables[0])) == [(0, 4), (4, 6)]
