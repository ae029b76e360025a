"""Preparing folders: against a plain reference, layout, bad input, what interrupted tries leave."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.data.lines import chunks
from adaptive_rec.data.prepare import numbering as prepare_number
from adaptive_rec.data.prepare import prepare as prepare_module
from adaptive_rec.data.prepare.checksums import verify_checksums
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.numbering import KeyFile, Numbering
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.errors import AdaptiveRecError, DataError, UsageError
from adaptive_rec.recipes import criteo as criteo_log
from tests.data.prepare_rows import BAD_LINES, assert_equals_plain, made, plain_rows, row, rows, silent, write
from tests.kernels.reference.number_keys import number_keys

SCHEMA = parse_schema({"label": "clicked", "sparse": ["user"]}, "schema")


class Disk:
    """What a loss of power leaves: files and names as they were when they were last synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, tuple[int, int]] = {}
        """For each file and folder, by its inode: its length, and when it, or a name in it, last changed."""
        self.checked: list[str] = []
        self._fsync, self._rename, self._replace, self._unlink = os.fsync, Path.rename, Path.replace, Path.unlink
        monkeypatch.setattr("os.fsync", self.fsync)
        monkeypatch.setattr(Path, "rename", lambda old, new: self.rename(old, new))
        monkeypatch.setattr(Path, "replace", lambda old, new: self.replace(old, new))
        monkeypatch.setattr(Path, "unlink", lambda path, **how: self.unlink(path, **how))

    def fsync(self, file: int) -> None:
        self._fsync(file)
        status = os.fstat(file)
        self.synced[status.st_ino] = status.st_size, status.st_mtime_ns

    def is_kept(self, path: Path) -> bool:
        status = path.stat()
        return self.synced.get(status.st_ino) == (status.st_size, status.st_mtime_ns)

    def rename(self, old: Path, new: Path) -> Path:
        """The folder is published: all of it must be on the disk."""
        lost = [path.name for path in [old, *old.rglob("*")] if not self.is_kept(path)]
        assert not lost, f"{lost} would be lost"
        self.checked.append(new.name)
        return self._rename(old, new)

    def replace(self, old: Path, new: Path) -> Path:
        """A file appears whole; it and, where it is a mark, what it stands for must be on the disk."""
        assert self.is_kept(old), f"{new.name} would be lost"
        part = new.parent.parent
        stands_for: list[Path] = []
        if new.name.endswith(".read.json"):
            stands_for = [part, *part.glob("*.npy"), *new.parent.glob("*.keys")]
        elif new.name.startswith("table."):
            stands_for = [*new.parent.glob(f"*.{new.name.split('.')[1]}.ids")]
        lost = [path.name for path in stands_for if not self.is_kept(path)]
        assert not lost, f"{new.name} stands for {lost}, which would be lost"
        self.checked.append(new.name)
        return self._replace(old, new)

    def unlink(self, path: Path, **how: Any) -> None:
        """Ids are given up for the array they have become, which must have its name by then."""
        assert path.suffix != ".ids" or self.is_kept(path.parent.parent)
        self._unlink(path, **how)


def real_rows_with_damage(sample: Path, count: int) -> bytes:
    """The first rows of the real sample, with blanked fields and malformed rows mixed in."""
    lines = b"".join(chunks(sample)).split(b"\n")[:count]
    random = np.random.default_rng(3)
    for place in random.choice(count, count // 20, replace=False).tolist():
        fields = lines[place].split(b"\t")
        fields[1 + int(random.integers(39))] = b""
        lines[place] = b"\t".join(fields)
    for place in random.choice(count, 200, replace=False).tolist():
        lines[place] = BAD_LINES[place % len(BAD_LINES)].rstrip(b"\n")
    return b"\n".join(lines) + b"\n"


@pytest.mark.parametrize(
    ("count", "slot_bytes"), [(12_000, 2 << 16), pytest.param(100_000, 2 << 18, marks=pytest.mark.slow)]
)
def test_real_rows_equal_the_plain_reference(
    tmp_path: Path, criteo_sample: Path, monkeypatch: pytest.MonkeyPatch, count: int, slot_bytes: int
) -> None:
    """In three files, plain and packed; few slots, so that large columns take several partitions."""
    monkeypatch.setattr(prepare_module, "HASH_TABLES_BYTES", slot_bytes)
    monkeypatch.setattr(prepare_number, "CHUNK_KEYS", count // 10 - 1)
    text = real_rows_with_damage(criteo_sample, count)
    lines, cut = text.splitlines(keepends=True), count * 2 // 5
    parts = [b"".join(lines[:cut]), b"".join(lines[cut : cut + 7]), b"".join(lines[cut + 7 :])]
    names = ("day_0", "day_1.gz", "day_2.tsv.zst")
    sources = [write(tmp_path / name, part) for name, part in zip(names, parts, strict=True)]
    plain = plain_rows(text)
    assert plain.bad == 200
    made(tmp_path / "out", *sources, min_count=2, on_bad_row="skip")
    meta = assert_equals_plain(tmp_path / "out", plain, min_count=2)
    assert [source.name for source in meta.sources] == ["day_0", "day_1", "day_2"]


def test_dense_features_are_those_of_training_from_the_file(tmp_path: Path) -> None:
    from adaptive_rec.data.criteo_file import CriteoLayout, LineMark, ParsedRows, RowReader

    path = write(tmp_path / "day_0", rows(500))
    made(tmp_path / "out", path)
    layout = CriteoLayout(path, 13, 26, False)
    parsed = ParsedRows.empty(layout, 500)
    assert RowReader(layout, LineMark(0, 0, 0)).read(parsed) == 500
    assert np.load(tmp_path / "out" / "day_0_dense.npy").tobytes() == parsed.dense_BX().tobytes()


def test_layout_is_that_of_torchrec(tmp_path: Path) -> None:
    made(tmp_path / "out", write(tmp_path / "day_0.gz", rows(50)))
    folder = tmp_path / "out"
    shapes = {path.name: (np.load(path).shape, np.load(path).dtype) for path in folder.glob("day_0_*.npy")}
    assert shapes == {
        "day_0_dense.npy": ((50, 13), np.float32),
        "day_0_sparse.npy": ((50, 26), np.int32),
        "day_0_labels.npy": ((50, 1), np.int32),
    }
    keys = [f"C{k + 1}_keys.npy" for k in range(26)]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*keys, *shapes, "meta.json"])
    sparse_BC = np.load(folder / "day_0_sparse.npy")
    for column, name in enumerate(keys):
        keys_U = np.load(folder / name)
        assert len(np.unique(keys_U)) == len(keys_U) == sparse_BC[:, column].max() - 1


def test_meta_describes_the_arrays(tmp_path: Path) -> None:
    text = row(1, C1="") + row(2, C1="a") + row(3, C1="b") + row(4, C1="a") + row(5, C1="0")
    source = write(tmp_path / "day_0.zst", text)
    made(tmp_path / "out", source, min_count=2)
    folder = tmp_path / "out"
    meta = json.loads((folder / "meta.json").read_text())
    assert np.load(folder / "day_0_sparse.npy")[:, 0].tolist() == [0, 2, 1, 2, 0]
    assert meta["tables"][0] == {"name": "C1", "rows": 3}
    assert meta["columns"][0] == {"name": "C1", "table": "C1", "bag": False, "cardinality": 3}
    assert {name: meta["ids"][name] for name in ("missing", "infrequent", "first", "min_count")} == {
        "missing": 0, "infrequent": 1, "first": 2, "min_count": 2,
    }  # fmt: skip
    assert (meta["rows"], meta["bad_rows"], meta["format_version"]) == (5, 0, 1)
    assert meta["dense_names"] == [f"I{i}" for i in range(1, 14)]
    assert meta["job"]["sources"][0]["size_bytes"] == source.stat().st_size
    for file in meta["sources"][0]["files"]:
        content = (folder / file["name"]).read_bytes()
        assert (file["size_bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def test_all_that_is_published_or_marked_as_done_outlasts_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [write(tmp_path / name, rows(300, first)) for name, first in (("day_0", 0), ("day_1.gz", 300))]
    disk = Disk(monkeypatch)
    made(tmp_path / "out", *sources)
    assert disk.is_kept(tmp_path), "the name of the folder itself"
    marks = {"job.json", "day_0.read.json", "day_1.read.json", *(f"table.{t}.json" for t in range(26))}
    keys = {f"C{k + 1}_keys.npy" for k in range(26)}
    assert {*disk.checked} == {*marks, *keys, "day_0_sparse.npy", "day_1_sparse.npy", "meta.json", "out"}


keys_of_files = st.lists(st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 1), max_size=40), min_size=1, max_size=3)


numberings = given(keys_of_files, st.integers(1, 4), st.sampled_from([4, 8, 64]), st.sampled_from([4, 8]))


@settings(deadline=None, max_examples=30)
@numberings
def test_numbering_equals_its_plain_twin(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[int]], min_count: int, slots: int, key_bytes: int
) -> None:
    assert_numbered(tmp_path_factory.mktemp("numbering"), lists, min_count, slots, key_bytes)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@numberings
def test_numbering_equals_its_plain_twin_in_many_cases(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[int]], min_count: int, slots: int, key_bytes: int
) -> None:
    assert_numbered(tmp_path_factory.mktemp("numbering"), lists, min_count, slots, key_bytes)


def assert_numbered(folder: Path, lists: list[list[int]], min_count: int, slots: int, key_bytes: int) -> None:
    lists = [[key % 2 ** (8 * key_bytes) for key in keys] for keys in lists]
    files = []
    for k, keys in enumerate(lists):
        np.array(keys, dtype=f"<u{key_bytes}").tofile(folder / f"{k}.keys")
        files.append(KeyFile(folder / f"{k}.keys", key_bytes, len(keys), folder / f"{k}.ids"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_number, "FIRST_SLOTS", 4)
        patch.setattr(prepare_number, "CHUNK_KEYS", 7)
        numbering = Numbering(files, min_count, folder / "table", slots, lambda keys: None)
        table_rows = numbering.run()
    found = [np.fromfile(file.ids_path, "<i4").tolist() for file in files]
    ids, expected_rows = number_keys([key for keys in lists for key in keys], min_count)
    assert (sum(found, []), table_rows) == (ids, expected_rows)
    assert sorted(path.suffix for path in folder.iterdir()) == [".ids"] * len(lists) + [".keys"] * len(lists)


def test_a_bad_row_is_an_error_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo_log, "CHUNKS_PER_BLOCK", 1)
    source = write(tmp_path / "day_0", rows(20_000) + BAD_LINES[0] + rows(3))
    with pytest.raises(DataError, match="day_0, line 20001: row must have 40 tab-separated columns, got 2"):
        made(tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    good = write(tmp_path / "day_0", rows(9))
    (tmp_path / "there").mkdir()
    (tmp_path / "again").mkdir()
    (tmp_path / "binary").write_bytes(b"\0\1\2\n")
    cases: list[tuple[type[AdaptiveRecError], str, Path, list[Path], dict[str, Any]]] = [
        (UsageError, "--out must be a new directory, .*there exists", tmp_path / "there", [good], {}),
        (DataError, "a source must be a file that exists, got '.*none'", tmp_path / "o", [tmp_path / "none"], {}),
        (DataError, "a source must be a file that exists, got '.*there'", tmp_path / "o", [tmp_path / "there"], {}),
        (DataError, "at least one row, got '.*void', which is empty", tmp_path / "o", [write(tmp_path / "void", b"")], {}),
        (UsageError, "the format of .*binary cannot be recognised", tmp_path / "o", [tmp_path / "binary"], {}),
        (UsageError, "min_count .*must be at least 1, got 0", tmp_path / "o", [good], {"min_count": 0}),
        (UsageError, "min_count .*at most 65535", tmp_path / "o", [good], {"min_count": 65536}),
        (UsageError, "two make arrays named day_0", tmp_path / "o", [good, write(tmp_path / "again/day_0.gz", rows(2))], {}),
        (UsageError, "--schema are for --format csv or parquet", tmp_path / "o", [good], {"schema": SCHEMA, "format": "criteo"}),
        (UsageError, "--format parquet needs --label COLUMN, or --schema", tmp_path / "o", [good], {"format": "parquet"}),
        (DataError, "must be a complete gz file", tmp_path / "p", [_cut(write(tmp_path / "day_1.gz", rows(999)))], {}),
        (DataError, "at least one well-formed row", tmp_path / "q", [write(tmp_path / "bad", b"\t\n")], {"on_bad_row": "skip"}),
        (DataError, "q2.part cannot be written|Not a directory", good / "q2", [good], {}),
    ]  # fmt: skip
    for kind, message, out, sources, options in cases:
        with pytest.raises(kind, match=message):
            made(out, *sources, **options)
        assert out.name == "there" or not out.exists()


def _cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-9])
    return path


def test_verify_finds_a_changed_byte(tmp_path: Path) -> None:
    made(tmp_path / "out", write(tmp_path / "day_0", rows(60)))
    path = tmp_path / "out" / "day_0_sparse.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="day_0_sparse.npy must have the SHA-256 .*, as meta.json says, got"):
        verify_checksums(tmp_path / "out", load_meta(tmp_path / "out"), silent)


def lines_of(text: str) -> Iterator[str]:
    return (" ".join(line.split()) for line in text.splitlines())


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from adaptive_rec.cli import main

    source = write(tmp_path / "day_0.tsv", rows(60) + BAD_LINES[0])
    out = tmp_path / "out"
    assert main(["data", "prepare", str(source), "--out", str(out), "--on-bad-row", "skip"]) == 0
    told = list(lines_of(capsys.readouterr().out))
    assert "rows 60, 1 malformed left out" in told
    assert "columns 13 dense, 26 sparse" in told
    assert any(line.startswith("reading day_0.tsv (1 of 1)") for line in told)
    assert main(["data", "verify", str(out)]) == 0
    assert "is whole: 29 files" in capsys.readouterr().out
    assert main(["data", "prepare", str(source), "--out", str(out)]) == 2
    assert f"error: --out must be a new directory, {out} exists" in capsys.readouterr().err
    assert main(["data", "prepare", str(source), "--out", str(tmp_path / "two"), "--on-bad-row", "skip", "--json"]) == 0
    caught = capsys.readouterr()
    assert json.loads(caught.out)["rows"] == 60
    assert "reading day_0.tsv" in caught.err


def test_a_shells_order_of_numbers_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from adaptive_rec.cli import main

    sources = [str(write(tmp_path / f"day_{k}", rows(2))) for k in (1, 10, 2)]
    assert main(["data", "prepare", *sources, "--out", str(tmp_path / "out")]) == 0
    assert "note: rows keep the order day_1, day_10, day_2" in capsys.readouterr().err
    assert main(["data", "prepare", *sorted(sources, key=len), "--out", str(tmp_path / "two")]) == 0
    assert capsys.readouterr().err == f"preparing {tmp_path / 'two'} ...\n"
