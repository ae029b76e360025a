"""Histories from the log to the batch: whose events they are, and which features they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.batch import Batch, Position, check_batch
from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.tree import Config
from adaptive_rec.data import prepared
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.prepare.raw import RawBlock, check_block
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.recipes.globo import COLUMNS, GloboReader
from adaptive_rec.recipes.globo_sequence import GloboSequenceReader
from adaptive_rec.recipes.histories import Histories, padded

STEPS = 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 5), st.data())
def test_a_history_is_what_the_owner_had_before(owners: list[int], steps: int, data: st.DataObject) -> None:
    histories = Histories(np.array(owners, dtype=np.int64), steps)
    asked = data.draw(st.lists(st.integers(0, len(owners) - 1), max_size=12)) if owners else []
    earlier_N, lengths_B = histories.of(np.array(asked, dtype=np.int64))
    expected = [[e for e in range(event) if owners[e] == owners[event]][-steps:] for event in asked]
    assert lengths_B.tolist() == [len(history) for history in expected]
    assert earlier_N.tolist() == [event for history in expected for event in history]
    assert histories.earlier_C.tolist() == [owners[:c].count(owner) for c, owner in enumerate(owners)]


def test_padding_stands_before_the_values() -> None:
    lengths = np.array([2, 0, 3], dtype=np.int32)
    values = padded(np.array([1, 2, 3, 4, 5], dtype=np.float32), lengths, 3)
    assert values.tolist() == [[0, 1, 2], [0, 0, 0], [3, 4, 5]]


def clicks_file(path: Path, clicks: int, seed: int = 3) -> Path:
    """Clicks of 7 users on 12 articles, out of order, several at one moment."""
    random = np.random.default_rng(seed)
    times = random.integers(0, 40, clicks) * 60_000 + 1_506_826_800_000
    lines = [
        ",".join(map(str, [user, user * 100 + time // 600_000 % 10, time, 2, article, time, *[1] * 6]))
        for user, article, time in zip(
            random.integers(0, 7, clicks), random.integers(0, 12, clicks), times, strict=True
        )
    ]
    path.write_text("\n".join([",".join(COLUMNS), *lines, ""]))
    return path


def one_block(reader: Any) -> RawBlock:
    (block,) = reader.blocks()
    check_block(block, reader)
    return block


def test_news_rows_are_those_without_histories_and_the_clicks_before(tmp_path: Path) -> None:
    path = clicks_file(tmp_path / "clicks.csv", 80)
    plain, rows = GloboReader(path, False, 5), GloboSequenceReader(path, False, 5, STEPS)
    without, block = one_block(plain), one_block(rows)
    np.testing.assert_array_equal(block.labels_B, without.labels_B)
    np.testing.assert_array_equal(block.dense_BX[:, : len(plain.dense_names)], without.dense_BX)
    shared = [(0, 0), *zip(range(2, 9), range(2, 9), strict=True)]
    for mine, theirs in shared:
        assert rows.columns[mine] == plain.columns[theirs]
        np.testing.assert_array_equal(block.values_F[mine], without.values_F[theirs])

    clicks = plain.clicks()
    lengths, keys = block.lengths_F[1], block.values_F[1].tolist()
    assert lengths is not None
    assert {0, STEPS} <= set(lengths.tolist())
    (of_rows,) = [click_R for click_R, _ in plain.walked(clicks)]
    place = 0
    for row, click in enumerate(of_rows):
        before = [c for c in range(click) if clicks.user_C[c] == clicks.user_C[click]][-STEPS:]
        assert keys[place : place + lengths[row]] == [clicks.article_C[c] + 1 for c in before]
        place += lengths[row]
        minutes = [(clicks.time_ms_C[click] - clicks.time_ms_C[c]) / 60_000 for c in before]
        told = block.dense_BX[row, -STEPS:]
        np.testing.assert_allclose(told, np.log1p([0.0] * (STEPS - len(before)) + minutes), atol=1e-6)
        assert block.dense_BX[row, rows.dense_names.index("history_steps")] == len(before)


def test_a_length_that_is_not_the_bags_is_an_error(tmp_path: Path) -> None:
    reader = GloboSequenceReader(clicks_file(tmp_path / "clicks.csv", 20), False, 5, STEPS)
    block = one_block(reader)
    block.dense_BX[3, reader.dense_names.index("history_steps")] += 1
    with pytest.raises(
        DataError, match="bags of column article_history must have as many keys as column history_steps"
    ):
        check_block(block, reader)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prepared, "BLOCK_ROWS", 16)
    monkeypatch.setattr(prepared, "GROUP_BLOCKS", 3)
    path = clicks_file(tmp_path / "clicks.csv", 90)
    prepare_folder(Request((path,), tmp_path / "out", format="globo_sequence", seed=5, history_steps=STEPS), lambda told: None)
    return tmp_path / "out"


def bag(batch: Batch, sample: int, feature: int, features: int) -> list[int]:
    first, end = batch.offsets[sample * features + feature : sample * features + feature + 2]
    ids: list[int] = batch.ids_N[first:end].tolist()
    return ids


@pytest.mark.parametrize("shuffle", [False, True])
def test_steps_become_features_the_last_ones_filled(folder: Path, shuffle: bool) -> None:
    source = open_source(Config(data=DataConfig(source=str(folder), shuffle=shuffle, epochs=2)))
    names = [feature.name for feature in source.features]
    history = [f"article_history_{step}" for step in (4, 3, 2, 1)]
    assert names[:6] == ["article", *history, "user"]
    assert {feature.table for feature in source.features[:5]} == {0}
    assert source.sequence is not None
    assert source.sequence.features == ((1, 2, 3, 4, 0),)
    assert source.sequence.shared_features(len(names)) == tuple(range(5, len(names)))

    raw = one_block(GloboSequenceReader(folder.parent / "clicks.csv", False, 5, STEPS))
    number_of: dict[int, int] = {}
    rows = {}  # rows that are equal in everything dense are told apart by their candidate's key
    place = 0
    for row, length in enumerate(raw.lengths_F[1]):  # type: ignore[arg-type]
        keys = raw.values_F[1][place : place + length].tolist()
        rows.setdefault((raw.dense_BX[row].tobytes(), int(raw.labels_B[row])), []).append((raw.values_F[0][row], keys))
        place += length
    seen = 0
    for batch in source.train_batches(Position(seed=2), 7):
        check_batch(batch, source.tables, source.features)
        for b in range(batch.size):
            bags = [bag(batch, b, f, len(names)) for f in range(5)]
            length = int(batch.dense_BX[b, source.sequence.length])
            assert [len(one) for one in bags] == [1] + [0] * (STEPS - length) + [1] * length
            ids = [one[0] for one in bags if one]
            matches = rows[(batch.dense_BX[b].tobytes(), int(batch.labels_B[b]))]
            assert any(
                all(number_of.setdefault(key, i) == i for key, i in zip([candidate, *keys], ids, strict=True))
                for candidate, keys in matches
            )
            seen += 1
    assert seen == 2 * source.train_samples
    assert sorted(number_of.values()) == list(range(2, 2 + len(number_of)))


def test_a_position_is_reached_without_what_comes_before(folder: Path) -> None:
    source = open_source(Config(data=DataConfig(source=str(folder), epochs=2)))
    batches = list(source.train_batches(Position(seed=2), 11))
    later = list(source.train_batches(batches[4].position, 11))
    assert len(later) == len(batches) - 5 > 10
    for one, other in zip(later, batches[5:], strict=True):
        np.testing.assert_array_equal(one.ids_N, other.ids_N)
        np.testing.assert_array_equal(one.offsets, other.offsets)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["histories"][0].update(candidate="user"), "column article_history must have bags, user none"),
        (lambda s: s["histories"][0].update(column="gone"), "column gone must have bags"),
        (lambda s: s.update(length="gone"), r"one for each of 4 steps, \['gone'\]"),
        (lambda s: s["dense"][0].pop(), "one for each of 4 steps"),
    ],
)
def test_a_layout_that_does_not_fit_is_an_error_on_opening(folder: Path, change: Any, message: str) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    change(meta["sequence"])
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match=message):
        open_source(Config(data=DataConfig(source=str(folder))))


@pytest.mark.parametrize(
    ("format_", "steps", "message"),
    [
        ("globo", 4, "--history is for --format globo_sequence or taobao, got --format globo"),
        ("taobao", 0, "at least 1"),
    ],
)
def test_a_history_that_makes_no_sense_is_refused(tmp_path: Path, format_: str, steps: int, message: str) -> None:
    path = clicks_file(tmp_path / "clicks.csv", 5)
    with pytest.raises(UsageError, match=message):
        prepare_folder(Request((path,), tmp_path / "out", format=format_, history_steps=steps), lambda told: None)
