"""Profiles: exact, against counts made in the plainest way, on made-up data and on real clicks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, FeatureSpec, Position, TableSpec
from adaptive_rec.cli import main
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.embedding.device import split_budget
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import profile as kernels
from adaptive_rec.memory.rows import policy_row_bytes
from adaptive_rec.offline.forecast import profile as measuring
from adaptive_rec.offline.forecast.pages import profile_page
from adaptive_rec.offline.forecast.passes import FirstSamples
from adaptive_rec.offline.forecast.profile import measure
from adaptive_rec.offline.forecast.ranking import (
    RowRanking,
    Seen,
    curve_budgets,
    rounded_up,
    suggested_bytes,
    top_share,
)
from adaptive_rec.placement import RowSpace
from tests.kernels.reference import profile as twins

TINY = ["data.shuffle=false", "data.synthetic.drift_ranks=3", "data.synthetic.samples=3000"]
TWO_DIMS = [*TINY, "model.table_dims=[8,4,8,4]", "data.synthetic.lookups_per_feature=2"]


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def tiny(*settings: str) -> Config:
    return load_config("tiny", {}, [*TINY, *settings])


# Kernels and their twins ---------------------------------------------------------------------------------------------


def bags(
    rng: np.random.Generator, samples: int, rows_F: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bags of 0 to 3 ids."""
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, samples * len(rows_F)))]).astype(np.int64)
    feature_N = twins.lookup_features(offsets, len(rows_F))
    return (rng.random(offsets[-1]) * rows_F[feature_N]).astype(np.int64), offsets


@pytest.mark.parametrize("samples", [0, 1, 7, 400])
def test_kernels_count_as_their_twins(samples: int) -> None:
    rng = np.random.default_rng(samples)
    rows_F, first_row_F = np.array([5, 1, 40]), np.array([1, 0, 6])
    ids_N, offsets = bags(rng, samples, rows_F)
    level_R = rng.integers(0, 6, 46).astype(np.uint8)
    made = []
    for kind in (kernels, twins):
        counts_R, window_R = np.zeros(46, np.int64), np.zeros(46, np.uint32)
        samples_L = np.zeros(7, np.int64)
        assert kind.count_lookups(ids_N, offsets, first_row_F, rows_F, counts_R) == -1
        kind.count_levels(ids_N, offsets, first_row_F, level_R, window_R, samples_L)
        made.append((counts_R, window_R, samples_L))
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)
    assert made[0][0].sum() == made[0][1].sum() == len(ids_N)
    assert made[0][2].sum() == samples


@pytest.mark.parametrize("wrong", [-1, 40, 1 << 40])
def test_kernels_find_an_id_outside_its_table(wrong: int) -> None:
    rows_F, first_row_F = np.array([5, 1, 40]), np.array([1, 0, 6])
    ids_N, offsets = bags(np.random.default_rng(3), 50, rows_F)
    place = np.flatnonzero(twins.lookup_features(offsets, 3) == 2)[10]
    ids_N[place] = wrong
    for kind in (kernels, twins):
        counts_R = np.zeros(46, np.int64)
        assert kind.count_lookups(ids_N, offsets, first_row_F, rows_F, counts_R) == place
        assert counts_R.sum() == place


# Against the plainest count ------------------------------------------------------------------------------------------


class Plain:
    """The same figures by dictionaries and loops."""

    def __init__(self, config: Config, samples: int, windows: int) -> None:
        source = open_source(config)
        self.space = RowSpace.of(source.tables, source.features)
        batch = next(iter(source.train_batches(Position(seed=config.run.seed), samples)))
        features = len(self.space.features)
        self.rows_of: list[list[int]] = []
        for b in range(batch.size):
            spans = [(f, batch.offsets[b * features + f], batch.offsets[b * features + f + 1]) for f in range(features)]
            self.rows_of.append(
                [int(self.space.feature_first_row[f] + i) for f, low, high in spans for i in batch.ids_N[low:high]]
            )
        self.cuts = [samples * n // windows for n in range(windows + 1)]
        self.sizes = policy_row_bytes(config, self.space)

    def hot(self, budget: int, first: int, end: int) -> set[int]:
        """The rows that a budget holds by the counts of some samples."""
        counts = Counter(row for rows in self.rows_of[first:end] for row in rows)
        found: set[int] = set()
        for pool, slots in zip(self.space.pools, split_budget(self.space, self.sizes, budget), strict=True):
            mine = [row for row in counts if pool.first_row <= row < pool.end_row]
            found |= set(sorted(mine, key=lambda row: (-counts[row], row))[:slots])
        return found

    def caught(self, hot: set[int], first: int, end: int) -> float:
        lookups = [row in hot for rows in self.rows_of[first:end] for row in rows]
        return sum(lookups) / len(lookups)


@pytest.mark.parametrize("settings", [TINY, TWO_DIMS])
def test_a_profile_is_what_plain_counting_finds(settings: list[str]) -> None:
    config = load_config("tiny", {}, settings)
    samples, windows = 1000, 4
    made, plain = measure(config, samples, windows, quiet), Plain(config, samples, windows)
    for point in made["budgets"]:
        hot = plain.hot(point["bytes"], 0, samples)
        assert point["rows"] == len(hot)
        assert point["hot_lookup_ratio"] == pytest.approx(plain.caught(hot, 0, samples))
        popular = sum(all(row in hot for row in rows) for rows in plain.rows_of)
        assert point["popular_sample_ratio"] == pytest.approx(popular / samples)
    sets = [plain.hot(made["suggested"]["bytes"], *span) for span in pairwise(plain.cuts)]
    for number, (window, span) in enumerate(zip(made["drift"]["windows"], pairwise(plain.cuts), strict=True)):
        assert window["own_ratio"] == pytest.approx(plain.caught(sets[number], *span))
        if number:
            assert window["previous_ratio"] == pytest.approx(plain.caught(sets[number - 1], *span))
            assert window["first_ratio"] == pytest.approx(plain.caught(sets[0], *span))
        else:
            assert window["previous_ratio"] is window["first_ratio"] is None
    counts = Counter(row for rows in plain.rows_of for row in rows)
    for index, table in enumerate(made["tables"]):
        first = int(plain.space.table_first_row[index])
        mine = sorted((n for row, n in counts.items() if first <= row < first + table["rows"]), reverse=True)
        assert (table["seen_rows"], table["lookups"], table["once_rows"]) == (len(mine), sum(mine), mine.count(1))
        for share, found in table["top_ratios"].items():
            assert found == pytest.approx(sum(mine[: max(1, round(float(share) * len(mine)))]) / sum(mine))
        assert table["cdf"][-1] == [len(mine), 1.0]
        for rows, part in table["cdf"]:
            assert part == pytest.approx(sum(mine[:rows]) / sum(mine), abs=1e-6)


@pytest.mark.parametrize("settings", [TINY, TWO_DIMS])
def test_the_suggested_budget_is_the_smallest_that_holds_nearly_all_lookups_after_the_first(settings: list[str]) -> None:
    config = load_config("tiny", {}, settings)
    made, plain = measure(config, 1000, 2, quiet), Plain(config, 1000, 2)
    counts = Counter(row for rows in plain.rows_of for row in rows)

    def again(budget: int) -> int:
        return sum(counts[row] - 1 for row in plain.hot(budget, 0, 1000))

    wanted, suggested = 0.99 * sum(count - 1 for count in counts.values()), made["suggested"]["bytes"]
    assert again(suggested) >= wanted > again(suggested * 3 // 4)
    assert suggested == rounded_up(suggested)


def test_no_budget_is_suggested_where_no_row_is_looked_up_twice() -> None:
    space = RowSpace.of((TableSpec("t", 10, 4),), (FeatureSpec("f", 0),))
    assert suggested_bytes(RowRanking.of(space, [16], Seen.of(np.ones(10, np.int64)))) == 0
    assert suggested_bytes(RowRanking.of(space, [16], Seen.of(np.zeros(10, np.int64)))) == 0


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 0), (1, 1), (7, 7), (9, 10), (3_461_112, 3_670_016), (1 << 30, 1 << 30)]
)
def test_a_suggested_size_has_few_digits(size: int, expected: int) -> None:
    assert rounded_up(size) == expected


def test_a_curve_ends_where_every_row_that_is_looked_up_is_hot() -> None:
    made = measure(tiny("model.table_dims=[8,4,8,4]"), 0, 3, quiet)
    last = made["budgets"][-1]
    assert (last["hot_lookup_ratio"], last["popular_sample_ratio"]) == (1.0, 1.0)
    assert last["rows"] == made["all"]["seen_rows"]
    for before, after in pairwise(made["budgets"]):
        assert before["bytes"] < after["bytes"]
        assert before["hot_lookup_ratio"] <= after["hot_lookup_ratio"]
        assert before["popular_sample_ratio"] <= after["popular_sample_ratio"]


def test_more_levels_than_their_type_holds_are_never_made() -> None:
    space = RowSpace.of((TableSpec("t", 10, 1 << 40),), (FeatureSpec("f", 0),))
    ranking = RowRanking.of(space, [1 << 42], Seen.of(np.ones(10, np.int64)))
    assert len(curve_budgets(ranking, 5, 1 << 43)) < np.iinfo(np.uint8).max


def test_even_access_is_noted() -> None:
    even = ["data.synthetic.zipf_exponent=0", "data.synthetic.popular_ratio=0", "data.table_rows=[90,90,90,90]"]
    assert "nearly even" in measure(tiny(*even), 0, 2, quiet)["suggested"]["note"]
    assert measure(tiny(), 0, 2, quiet)["suggested"]["note"] == ""


def test_rows_of_equal_count_keep_their_order() -> None:
    seen = Seen.of(np.array([0, 2, 5, 2, 0, 5], np.int64))
    assert seen.ranked().rows_K.tolist() == [2, 5, 1, 3]
    assert (seen.part(2, 3).rows_K.tolist(), seen.part(2, 3).lookups) == ([2, 3], 7)
    assert top_share(np.array([6, 3, 1], np.int64), 0.001) == 0.6
    assert top_share(np.empty(0, np.int64), 0.1) == 0.0


# Reading -------------------------------------------------------------------------------------------------------------


class Recorded:
    """A source that writes down what is asked of it."""

    tables = (TableSpec("one", 10, 4),)
    features = (FeatureSpec("f", 0),)
    dense_features, epochs, malformed_rows = 1, 1, 0

    def __init__(
        self, samples: int, holds: int | None = None, largest: int = 1 << 30, wrong_id: int | None = None
    ) -> None:
        self.train_samples, self._holds, self._largest = samples, samples if holds is None else holds, largest
        self._wrong = wrong_id

    def train_batches(self, position: Position, batch_size: int) -> Any:
        at = position.offset
        while at < self._holds:
            size = min(batch_size, self._largest, self._holds - at)
            ids = np.full((size, 1), 3) if self._wrong is None else np.full((size, 1), self._wrong)
            at += size
            dense, labels = np.zeros((size, 1), np.float32), np.zeros(size, np.float32)
            yield Batch.one_hot(dense, ids, labels, Position(0, position.seed, at))

    def test_batches(self, batch_size: int, max_samples: int = 0) -> Any:
        raise AssertionError("held-out samples are no part of a profile")


@pytest.mark.parametrize("largest", [1 << 30, 8192, 700])
def test_parts_end_at_the_cuts(largest: int) -> None:
    source = Recorded(20_000, largest=largest)
    samples = FirstSamples(source, RowSpace.of(source.tables, source.features), 7, 19_999, quiet)
    parts = list(samples.parts("reading", (5, 9_000, 9_001)))
    ends = np.cumsum([len(part.offsets) - 1 for part in parts]).tolist()
    assert ends == [part.done for part in parts]
    assert {5, 9_000, 9_001} <= set(ends)
    assert ends[-1] == 19_999
    assert all(len(part.ids_N) == part.offsets[-1] for part in parts)


def use(monkeypatch: pytest.MonkeyPatch, source: Recorded) -> None:
    monkeypatch.setattr(measuring, "open_source", lambda config: source)


def test_a_source_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Recorded(100, holds=60))
    with pytest.raises(DataError, match="must hold 100 samples, as it said, got 60"):
        measure(tiny(), 0, 2, quiet)


def test_an_id_outside_its_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Recorded(100, wrong_id=10))
    with pytest.raises(DataError, match=r"ids of table one must lie in \[0, 10\), got 10"):
        measure(tiny(), 0, 2, quiet)


def test_progress_reaches_the_end_of_both_passes() -> None:
    reported: list[tuple[str, int, int]] = []
    measure(tiny(), 2000, 2, lambda *what: reported.append(what))
    assert [each[0] for each in reported].index("replaying against budgets") > 0
    assert reported[-1] == ("replaying against budgets", 2000, 2000)
    assert ("counting lookups", 2000, 2000) in reported


# Real clicks ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def columns(criteo_sample: Path) -> list[list[bytes]]:
    """The values of each categorical column, in file order."""
    import zstandard

    with open(criteo_sample, "rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read()
    return [list(column) for column in zip(*(line.split(b"\t")[14:] for line in text.splitlines()), strict=True)]


def criteo(path: Path, *settings: str) -> Config:
    return load_config("criteo_sample", {}, [f"data.source={path}", "data.shuffle=false", *settings])


@pytest.mark.slow
def test_the_skew_of_criteo_is_that_of_its_values(criteo_sample: Path, columns: list[list[bytes]]) -> None:
    """Over the training range, a missing value a row like any other."""
    made = measure(criteo(criteo_sample), 0, 10, quiet)
    samples = round(criteo(criteo_sample).data.train_range[1] * len(columns[0]))
    assert made["data"]["samples"] == samples < len(columns[0])
    together: list[int] = []
    for table, column in zip(made["tables"], columns, strict=True):
        counts = sorted(Counter(column[:samples]).values(), reverse=True)
        together += counts
        assert table["seen_rows"] == len(counts)
        assert table["top_ratios"]["0.01"] == pytest.approx(sum(counts[: max(1, round(0.01 * len(counts)))]) / samples)
    together.sort(reverse=True)
    for share in ("0.001", "0.01", "0.1"):
        top = sum(together[: round(float(share) * len(together))])
        assert made["all"]["top_ratios"][share] == pytest.approx(top / sum(together))


@pytest.mark.slow
def test_the_known_figures_of_criteo_are_found(criteo_sample: Path, columns: list[list[bytes]]) -> None:
    """The sample's published skew leaves missing values out; its drift of C3 is over all rows."""
    counts = [n for column in columns for value, n in Counter(column).items() if value]
    known = -np.sort(-np.array(counts, np.int64))
    assert [round(100 * top_share(known, share)) for share in (0.001, 0.01, 0.1)] == [54, 73, 89]
    made = measure(criteo(criteo_sample, "data.train_range=[0,0.9999]", "data.test_range=[0.9999,1]"), 0, 10, quiet)
    assert [round(100 * share) for share in made["all"]["top_ratios"].values()] == [59, 76, 90]
    third = made["tables"][2]
    assert (round(100 * third["first_window_ratio"]), round(100 * third["last_window_ratio"])) == (29, 27)


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_prints_figures_and_leaves_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a" / "profile"
    words = ["profile", "synthetic", "tiny", "--samples", "2000", "--windows", "4", "--out", str(out)]
    assert main(words) == 0
    text = capsys.readouterr().out
    made = json.loads((out / "profile.json").read_text())
    assert "suggested   --set knobs.hot_budget_bytes=" in text
    assert "2,000 of 20,000" in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("C", "all"))] == [
        "C1",
        "C2",
        "C3",
        "C4",
        "all",
    ]
    assert len(made["drift"]["windows"]) == 4
    assert main([*words[:7], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for timing in ("seconds", "lookups_per_second"):
        del made[timing], printed[timing]
    assert printed == made


def test_the_page_of_a_profile_is_one_file_and_escapes_names() -> None:
    hostile = "</script><img src=x>"
    made = measure(tiny(), 1000, 3, quiet)
    made["tables"][0]["name"] = made["data"]["source"] = made["data"]["policy"] = hostile
    text = profile_page(made)
    assert "<img" not in text
    assert "default-src 'none'" in text
    assert text.count("&lt;/script&gt;") >= 4
    assert {f'id="{name}"' in text for name in ("budgets", "cdf", "drift")} == {True}
    assert len(text) < 1 << 20


Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nowhere.txt"], 2, "data.source must be"),
        (["synthetic", "tiny", "--samples", "-3"], 2, "--samples must be a whole number of at least 0, got -3"),
        (["synthetic", "tiny", "--windows", "1"], 2, "--windows must be a whole number of at least 2, got 1"),
        (["synthetic", "tiny", "--samples", "5"], 3, "10 windows must have as many samples, got 5"),
        (["synthetic", "tiny", "--set", "knobs.no=1"], 2, "unknown key knobs.no"),
        (["synthetic", "tiny", "--samples", "100", "--out", "/dev/null/x"], 2, "cannot be written"),
    ],
)
def test_impossible_commands_are_refused(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *words]) == code
    assert told in capsys.readouterr().err
