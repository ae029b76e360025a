"""Yambda's listens as sequences, on small files of the columns that its documentation names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from adaptive_rec.errors import DataError
from adaptive_rec.recipes.yambda import ListenLog


def written(path: Path, seed: int, events: bool = False, count: int = 300) -> dict[str, np.ndarray]:
    """Write a log in random order, many events of one moment in it. With `events`, as `multi_event.parquet`."""
    dice = np.random.default_rng(seed)
    columns = {
        "uid": dice.integers(5, 12, count).astype(np.uint32), "item_id": dice.integers(0, 40, count).astype(np.uint32),
        "timestamp": dice.integers(0, 60, count).astype(np.uint32) * 5, "is_organic": dice.integers(0, 2, count).astype(np.uint8),
        "played_ratio_pct": dice.integers(0, 130, count).astype(np.uint16),
        "track_length_seconds": dice.integers(60, 400, count).astype(np.uint32),
    }  # fmt: skip
    table = pyarrow.table(columns)
    if events:
        kinds = dice.choice(["listen", "like", "undislike"], count, p=[0.6, 0.3, 0.1])
        ratios = pyarrow.array(columns["played_ratio_pct"], mask=kinds != "listen")  # only listens have one
        table = table.set_column(4, "played_ratio_pct", ratios)
        table = table.append_column("event_type", pyarrow.array(kinds).dictionary_encode())
        columns = {name: values[kinds == "listen"] for name, values in columns.items()}
    pyarrow.parquet.write_table(table, path)
    return columns


@pytest.mark.parametrize("events", [False, True])
def test_a_sample_has_what_its_user_listened_to_before(tmp_path: Path, events: bool) -> None:
    for seed in range(5):
        columns = written(tmp_path / "log.parquet", seed, events)
        log = ListenLog(tmp_path / "log.parquet")
        assert len(log) == len(columns["uid"])
        assert (log.users, log.tracks) == (columns["uid"].max() + 1, columns["item_id"].max() + 1)
        in_order = sorted(range(len(log)), key=lambda row: (columns["timestamp"][row], columns["uid"][row], row))
        earlier: dict[int, list[tuple[int, int]]] = {}
        expected = []
        for row in in_order:
            user, track = int(columns["uid"][row]), int(columns["item_id"][row]) + 1
            listened = int(columns["played_ratio_pct"][row] >= 50)
            history = [(0, 0)] * 7 + earlier.setdefault(user, [])
            expected.append((user, int(columns["timestamp"][row]), history[-7:], track, listened))
            earlier[user].append((track, 1 + listened))
        found = []
        for batch in log.batches(64, 7):
            pairs = np.stack([batch.history_BT, batch.listened_BT], axis=2)
            for user, time, history, track, label in zip(
                batch.user_B, batch.time_B, pairs, batch.track_B, batch.label_B, strict=True
            ):
                found.append((int(user), int(time), [(int(a), int(b)) for a, b in history], int(track), int(label)))
        assert found == expected


def test_windows_are_stretches_of_time(tmp_path: Path) -> None:
    written(tmp_path / "log.parquet", 0)
    log = ListenLog(tmp_path / "log.parquet")
    windows = log.windows(60)
    assert windows[0][0] == 0
    assert windows[-1][1] == len(log)
    assert [one[1] for one in windows[:-1]] == [other[0] for other in windows[1:]]
    for begin, end in windows:
        assert len({int(second) // 60 for second in log.seconds[begin:end]}) == 1
        assert sum(len(batch.user_B) for batch in log.batches(16, 3, begin, end)) == end - begin


def test_what_a_log_must_have(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    written(path, 0)
    whole = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(whole.drop_columns(["timestamp", "uid"]), path)
    with pytest.raises(DataError, match=r"must have the columns uid, .*, .*log.parquet lacks uid, timestamp"):
        ListenLog(path)
    pyarrow.parquet.write_table(whole.slice(0, 0), path)
    with pytest.raises(DataError, match="must have at least one listen"):
        ListenLog(path)
    ratios = pyarrow.array([None] + [3] * (len(whole) - 1), pyarrow.uint16())
    pyarrow.parquet.write_table(whole.set_column(4, "played_ratio_pct", ratios), path)
    with pytest.raises(DataError, match="played_ratio_pct of a listen must have a value, .* has 1 without one"):
        ListenLog(path)


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("uid", np.array([1 << 32], np.uint64), "uid of a listen must be a whole number from 0 to 4294967294, .* has 4294967296"),
        ("item_id", np.array([-1]), "item_id of a listen must be .*, .* has -1"),
        ("item_id", np.array([(1 << 32) - 1]), "item_id of a listen must be .*, .* has 4294967295"),
        ("timestamp", np.array([1 << 60]).astype("datetime64[us]"), "timestamp of a listen must be .*, .* has the type datetime"),
        ("timestamp", np.array([2.5]), "timestamp of a listen must be .*, .* has 2.5"),
        ("played_ratio_pct", np.array([np.nan]), "played_ratio_pct of a listen must be .*, .* has nan"),
        ("uid", np.array(["anna"]), "uid of a listen must be .*, .* has the type object"),
    ],
    ids=str,
)
def test_a_log_has_whole_numbers_of_32_bits(tmp_path: Path, name: str, values: np.ndarray, rule: str) -> None:
    """Larger ids would take the rows of others."""
    columns = {each: np.array([3]) for each in ("uid", "item_id", "timestamp", "played_ratio_pct")}
    pyarrow.parquet.write_table(pyarrow.table({**columns, name: values}), tmp_path / "log.parquet")
    with pytest.raises(DataError, match=rule):
        ListenLog(tmp_path / "log.parquet")


@pytest.mark.parametrize("dtype", [np.uint64, np.int32, np.float64, np.uint8])
def test_whole_numbers_may_have_any_type(tmp_path: Path, dtype: type) -> None:
    columns = {each: np.array([9, 3], dtype) for each in ("uid", "item_id", "timestamp", "played_ratio_pct")}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    log = ListenLog(tmp_path / "log.parquet")
    assert (log.users, log.tracks, log.seconds.tolist()) == (10, 10, [3, 9])


def test_a_log_is_a_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("uid,item_id")
    for path in (tmp_path / "log.csv", tmp_path / "none.parquet", tmp_path):
        with pytest.raises(DataError, match=f"must be a Parquet file, {path} cannot be read"):
            ListenLog(path)
