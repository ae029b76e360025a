"""Taobao's events as points with histories; MovieTweetings' ratings: labels, negatives, order, malformed lines."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from adaptive_rec.data.prepare.formats import find_format
from adaptive_rec.data.prepare.raw import RawBlock, check_block
from adaptive_rec.errors import DataError
from adaptive_rec.recipes.movietweetings import MovieTweetingsReader
from adaptive_rec.recipes.taobao import POINTS_PER_USER, TaobaoReader

STEPS = 3


def events_file(path: Path, lengths: list[int], items: int = 60, seed: int = 1) -> tuple[Path, list[tuple[int, ...]]]:
    """Events of users 10, 11, ..., of such numbers; item i has category i % 7, a few have two. Returns them by time."""
    random = np.random.default_rng(seed)
    rows = []
    for user, count in enumerate(lengths, start=10):
        for time in random.choice(10_000, count, replace=False):
            item = int(random.integers(items))
            rows.append((user, item, (item + (item < 4) * int(random.integers(2))) % 7, 1_511_000_000 + int(time)))
    random.shuffle(rows)
    path.write_text("".join(f"{u},{i},{c},{('pv', 'fav')[i % 2]},{t}\n" for u, i, c, t in rows))
    return path, sorted(rows, key=lambda row: row[3])


def read(path: Path, seed: int = 1, skip: bool = False) -> tuple[TaobaoReader, RawBlock]:
    reader = TaobaoReader(path, skip, seed, STEPS)
    blocks = list(reader.blocks())
    for block in blocks:
        check_block(block, reader)
    assert len(blocks) == 1
    return reader, blocks[0]


def values(block: RawBlock, column: str) -> list[int]:
    names = [one.name for one in TaobaoReader.columns]
    return [int(key) - 1 for key in block.values_F[names.index(column)]]


def bags(block: RawBlock, column: str) -> list[list[int]]:
    names = [one.name for one in TaobaoReader.columns]
    lengths: Any = block.lengths_F[names.index(column)]
    return [part.tolist() for part in np.split(np.array(values(block, column)), np.cumsum(lengths)[:-1])]


def test_points_are_events_with_what_came_before_and_negatives_are_new_to_the_user(tmp_path: Path) -> None:
    lengths = [40, 1, 2, 11, 12, 30]
    path, events = events_file(tmp_path / "log.csv", lengths)
    reader, block = read(path)
    assert (reader.read_ratio, find_format(path)) == (1.0, "taobao")
    users, items, categories = values(block, "user"), values(block, "item"), values(block, "category")
    assert {user: users.count(user) for user in set(users)} == {
        10: 2 * POINTS_PER_USER, 12: 2, 13: 2 * POINTS_PER_USER, 14: 2 * POINTS_PER_USER, 15: 2 * POINTS_PER_USER,
    }  # fmt: skip
    assert block.labels_B.tolist() == [1, 0] * (len(users) // 2)
    pairs = {(item, category) for _, item, category, _ in events}
    of_user = {user: [(i, c, t) for u, i, c, t in events if u == user] for user in set(users)}
    times = []
    histories = list(zip(bags(block, "item_history"), bags(block, "category_history"), strict=True))
    for row, (user, item, category) in enumerate(zip(users, items, categories, strict=True)):
        own = of_user[user]
        if block.labels_B[row]:
            before = list(zip(*histories[row], strict=True))
            fits = [
                place for place in range(1, len(own))
                if own[place][:2] == (item, category)
                and [event[:2] for event in own[max(0, place - STEPS) : place]] == before
            ]  # fmt: skip
            assert fits, "an event of the user's, and the ones before it"
            times.append(own[fits[0]][2])
        else:
            assert users[row - 1] == user
            assert histories[row] == histories[row - 1]
            assert (item, category) in pairs
            assert (item, category) not in {event[:2] for event in own}
    assert np.mean(np.diff(times) >= 0) > 0.9, "in order of time (two fits make a doubt)"
    assert block.dense_BX[:, 0].tolist() == [len(history[0]) for history in histories]


def test_points_and_negatives_are_drawn_by_seed(tmp_path: Path) -> None:
    path, _ = events_file(tmp_path / "log.csv", [40, 40])
    one, same, other = (values(read(path, seed)[1], "item") for seed in (1, 1, 2))
    assert one == same != other


def test_negatives_are_spread_evenly(tmp_path: Path) -> None:
    path, _ = events_file(tmp_path / "log.csv", [11] * 300, items=40)
    _, block = read(path)
    drawn = np.array(values(block, "item"))[block.labels_B == 0]
    counts = np.bincount(drawn, minlength=40)[4:]  # the first four may have two categories
    assert counts.sum() > 2000
    assert np.abs(counts / counts.mean() - 1).max() < 0.5


def test_who_knows_every_item_gets_no_negatives(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("1,5,1,pv,100\n1,6,1,buy,101\n2,5,1,cart,102\n2,5,1,fav,103\n")
    _, block = read(path)
    assert list(zip(values(block, "user"), values(block, "item"), block.labels_B, strict=True)) == [
        (1, 6, 1.0), (2, 5, 1.0), (2, 6, 0.0),
    ]  # fmt: skip


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("1,5,1,pv,100\n1,6,1,look,101\n1,7,1,pv,102\n")
    with pytest.raises(DataError, match="line 2, column behaviour: must be one of pv, buy, cart, fav, got 'look'"):
        read(path)
    reader, block = read(path, skip=True)
    assert reader.bad_rows == 1
    assert values(block, "item")[0] == 7
    path.write_text("1,5,1,pv,100\n2,6,1,pv,101\n")
    with pytest.raises(DataError, match="must have a user with two events"):
        read(path)


def test_an_empty_compressed_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="must have a user with two events"):
        read(path)
    assert list(MovieTweetingsReader(path, False, 1).blocks()) == []


RATINGS = (
    "3::0110912::9::1373211560\n1::0068646::8::1373211500\n1::0110912::7::1373297900\n3::0068646::10::1373384300\n"
)


def test_ratings_come_in_order_of_time_with_what_was_known_before(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text(RATINGS)
    reader = MovieTweetingsReader(path, False, 1)
    (block,) = reader.blocks()
    check_block(block, reader)
    assert find_format(path) == "movietweetings"
    assert block.labels_B.tolist() == [1, 1, 0, 1]
    assert [key.tolist() for key in block.values_F] == [[2, 4, 2, 4], [68647, 110913, 110913, 68647]]
    np.testing.assert_allclose(np.expm1(block.dense_BX[:, :2]), [[0, 0], [0, 0], [1, 1], [1, 1]], atol=1e-6)
    hours = 15 + (38 * 60 + 20) / 3600  # 7 July 2013, a Sunday, 15:38:20 UTC
    np.testing.assert_allclose(
        block.dense_BX[0, 2:],
        [f(turn) for turn in (2 * np.pi * hours / 24, 2 * np.pi * (6 + hours / 24) / 7) for f in (np.sin, np.cos)],
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("1::2::11::3", "column rating: must be a whole number between 0 and 10, got '11'"),
        ("1,2,3,4", "between '::', got 1"),
    ],
)
def test_a_malformed_rating_is_an_error_with_its_line(tmp_path: Path, bad: str, message: str) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text(RATINGS + bad + "\n")
    with pytest.raises(DataError, match=f"line 5.*{message}"):
        list(MovieTweetingsReader(path, False, 1).blocks())


@pytest.mark.parametrize(
    ("name", "users"), [("UserBehavior_294users_31k.csv.zst", 294), ("UserBehavior_slice_2h_110k.csv.zst", 0)]
)
def test_the_real_files_are_read_to_their_end(name: str, users: int, real_file: Callable[[str], Path]) -> None:
    path = real_file(name)
    reader = TaobaoReader(path, False, 1, 20)
    blocks = list(reader.blocks())
    for block in blocks:
        check_block(block, reader)
    with zstandard.open(path, "rt") as log:
        events = Counter(line.partition(",")[0] for line in log)
    points = sum(min(POINTS_PER_USER, count - 1) for count in events.values())
    labels = np.concatenate([block.labels_B for block in blocks])
    assert (labels.sum(), len(labels), reader.bad_rows) == (points, 2 * points, 0)
    assert len(events) == users or not users
    lengths = np.concatenate([block.dense_BX[:, 0] for block in blocks])
    assert lengths.min() == 1
    assert lengths.max() <= 20


def test_the_real_ratings_are_read_to_their_end(real_file: Callable[[str], Path]) -> None:
    reader = MovieTweetingsReader(real_file("movietweetings_141695.dat.zst"), False, 1)
    blocks = list(reader.blocks())
    labels = np.concatenate([block.labels_B for block in blocks])
    assert (len(labels), reader.bad_rows) == (141_695, 0)
    assert 0.45 < labels.mean() < 0.55, "about half of them, as the docstring says"
