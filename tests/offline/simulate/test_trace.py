"""Raw traces of keys: what files hold, how keys become rows, what is refused."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.batch import Position
from adaptive_rec.cli import main
from adaptive_rec.errors import DataError
from adaptive_rec.offline.forecast.sources import TraceSource

KEYS = np.array([70, 9, 70, 2**63 + 1, 9, 70, 5], dtype=np.uint64)
IDS = [0, 1, 0, 2, 1, 0, 3]


def written(folder: Path, suffix: str) -> Path:
    path = folder / f"trace{suffix}"
    if suffix == ".npy":
        np.save(path, KEYS)
    else:
        content = KEYS.astype(">u8").tobytes()
        path.write_bytes(lzma.compress(content) if suffix == ".xz" else content)
    return path


@pytest.mark.parametrize("suffix", [".bin", ".xz", ".npy"])
def test_keys_become_rows_in_the_order_of_first_occurrence(tmp_path: Path, suffix: str) -> None:
    source = TraceSource(written(tmp_path, suffix), dim=4)
    batches = list(source.train_batches(Position(), 3))
    assert [batch.ids_N.tolist() for batch in batches] == [IDS[:3], IDS[3:6], IDS[6:]]
    assert [(table.rows, table.dim) for table in source.tables] == [(4, 4)]
    assert source.train_samples == len(KEYS)
    assert [batch.ids_N.tolist() for batch in source.train_batches(Position(offset=5), 9)] == [IDS[5:]]
    assert not list(source.test_batches(8))


def test_each_column_of_a_table_of_keys_is_a_table(tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.array([[5, -1], [6, -1], [5, 8]]))
    source = TraceSource(tmp_path / "two.npy", dim=2)
    (batch,) = source.train_batches(Position(), 8)
    assert batch.ids_N.tolist() == [0, 0, 1, 0, 0, 1]
    assert [table.rows for table in source.tables] == [2, 2]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("short.bin", b"1234567", "whole keys of 8 bytes, got .*short.bin of 7 bytes"),
        ("empty.bin", b"", "must hold whole numbers"),
        ("broken.xz", b"no such thing", "must be a readable"),
        ("broken.npy", b"no such thing", "must be a readable"),
        ("floats.npy", np.array([1.5]), "must hold whole numbers, .* type float64"),
        ("cube.npy", np.zeros((2, 2, 2), int), r"shape \(2, 2, 2\)"),
    ],
)
def test_files_that_hold_no_trace_are_refused(tmp_path: Path, name: str, content: bytes | np.ndarray, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    with pytest.raises(DataError, match=expected):
        TraceSource(path, dim=2)


def test_a_missing_trace_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "nowhere.xz"]) == 3
    assert "nowhere.xz" in capsys.readouterr().err


def test_the_scarab_trace_has_the_keys_it_is_known_for() -> None:
    folder = os.environ.get("ADAPTIVE_REC_TEST_DATA") or Path(__file__).resolve().parents[3].parent / "shared" / "data"
    path = Path(folder) / "scarab-recs.trace.xz"
    if not path.exists():
        pytest.skip(f"no {path.name}; set ADAPTIVE_REC_TEST_DATA to the folder that holds it")
    source = TraceSource(path, dim=16)
    assert (source.train_samples, source.tables[0].rows) == (1_245_184, 258_368)
