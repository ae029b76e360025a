"""News clicks as training rows: what each row says was known before the click, bad lines are told, the kernel has a twin."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.data.prepare.checksums import StageProgress
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.prepare.raw import RawBlock, check_block
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.recipes.globo import COLUMNS, HORIZON_MS, NEGATIVES, GloboReader, Walk
from tests.kernels.reference import clicks as reference_clicks

MINUTE = 60_000
START = 1_506_826_800_000
"""3 in the morning, UTC."""


def line(minute: float, article: int, user: int = 0, session: int = 1, start: float = 0, context: int = 3) -> str:
    cells = [user, session, START + round(start * MINUTE), 2, article, START + round(minute * MINUTE), *[context] * 6]
    return ",".join(map(str, cells))


Write = Callable[..., Path]


def silent(_: StageProgress) -> None:
    pass


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(*lines: str, name: str = "clicks.csv") -> Path:
        text = "\n".join([",".join(COLUMNS), *lines, ""]).encode()
        path = tmp_path / name
        path.write_bytes(zstandard.compress(text) if name.endswith(".zst") else text)
        return path

    return write_file


def read(path: Path, skip_bad_rows: bool = False, seed: int = 1) -> tuple[GloboReader, RawBlock]:
    """The one block of a small file."""
    reader = GloboReader(path, skip_bad_rows, seed)
    (block,) = reader.blocks()
    check_block(block, reader)
    return reader, block


def column(block: RawBlock, name: str) -> list[Any]:
    names = [one.name for one in GloboReader.columns]
    return block.values_F[names.index(name)].tolist()


def dense(block: RawBlock, name: str) -> Any:
    return block.dense_BX[:, GloboReader.dense_names.index(name)]


@pytest.mark.parametrize("name", ["clicks.csv", "clicks.csv.zst"])
def test_clicks_come_in_order_of_time_each_with_articles_that_were_there(write: Write, name: str) -> None:
    path = write(
        line(5, 20, 2), line(0, 10, 1), line(1, 20, 1), line(1, 10, 2), line(70, 40, 1), line(71, 40, 1), name=name
    )
    reader, block = read(path)
    assert (reader.bad_rows, reader.read_ratio) == (0, 1.0)
    assert block.labels_B.tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    articles = [key - 1 for key in column(block, "article")]
    assert articles[:8] == [10, *[20] * 3, 20, *[10] * 3]
    assert articles[8:] == [40], "after an hour without a click no other article is on offer"
    assert column(block, "user") == [3] * 8 + [2]


def test_a_click_on_an_article_not_on_offer_makes_no_rows_but_is_known_later(write: Write) -> None:
    lines = line(0, 10, 1), line(1, 20, 1), line(2, 10, 1), line(61.5, 20, 1), line(62, 20, 1)
    _, block = read(write(*lines))
    assert [key - 1 for key in column(block, "article")] == [10, *[20] * 3, 20, *[10] * 3]
    assert column(block, "previous_article") == [21] * 8, "of a click that made no rows"
    assert np.expm1(dense(block, "session_clicks")).round().tolist() == [2] * 4 + [4] * 4


def test_a_file_without_any_article_on_offer_is_refused(write: Write) -> None:
    path = write(line(0, 10), line(1, 20), line(70, 10))
    with pytest.raises(
        DataError, match="must hold a click on an article that was clicked within the hour before, has none"
    ):
        list(GloboReader(path, False, 1).blocks())


def test_no_count_gives_a_label_away() -> None:
    """A clicked article is never known by having fewer recent clicks than any other on offer."""
    random = np.random.default_rng(3)
    minutes = np.sort(random.integers(0, 600, 4000))
    ordered = [
        (START + int(m) * MINUTE, int(a), 0, 0) for m, a in zip(minutes, random.zipf(1.3, 4000) % 50, strict=True)
    ]
    _, block = Walk(clicks_of(ordered), 3).block(0, random.random((4000, 3)))
    counts = np.expm1(dense(block, "article_clicks")).round()
    assert counts.min() == 1
    fewest = {label: counts[block.labels_B == label].min() for label in (0, 1)}
    assert fewest[0] == fewest[1] == 1


def test_a_row_holds_what_was_known_before_its_click(write: Write) -> None:
    first = line(-5, 10, 5, 5, -5), line(-4, 20, 5, 5, -5)
    lines = line(0, 10, 1, 7, -2), line(1, 20, 1, 7, -2), line(3, 10, 1, 8, 3), line(61.5, 10, 2, 9, 60)
    _, block = read(write(*first, *lines))
    rows = np.flatnonzero(block.labels_B)
    undone = np.expm1(block.dense_BX[rows])
    names = GloboReader.dense_names
    assert [column(block, "previous_article")[row] for row in rows] == [0, 11, 0, 0], "none, of the same session only"
    assert undone[:, names.index("session_clicks")].round().tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(undone[:, names.index("session_minutes")], [2, 3, 0, 1.5], atol=1e-5)
    np.testing.assert_allclose(undone[:, names.index("pause_minutes")], [0, 1, 2, 0], atol=1e-5)
    assert dense(block, "first_click")[rows].tolist() == [1, 0, 0, 1]
    assert undone[:, names.index("article_clicks")].round().tolist() == [1, 1, 2, 1], "within an hour"
    np.testing.assert_allclose(undone[:, names.index("article_minutes")], [5, 5, 8, 66.5], atol=1e-3)
    np.testing.assert_allclose(dense(block, "hour_sin")[0], np.sin(np.pi / 4), atol=1e-6)
    assert column(block, "environment") == [4] * len(block.labels_B)


clicks = st.lists(
    st.tuples(st.integers(0, 90), st.integers(0, 6), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40
)


@settings(max_examples=80, deadline=None)
@given(clicks, st.integers(1, 3), st.integers(0, 5), st.integers(0, 2**32))
def test_the_walk_equals_its_plain_twin(found: list[tuple[int, ...]], cut: int, negatives: int, seed: int) -> None:
    ordered = [(START + t * MINUTE, a, u, s) for t, a, u, s in sorted(found, key=lambda click: click[0])]
    random = np.random.default_rng(seed).random((len(ordered), negatives))
    expected = reference_clicks.walk_clicks(ordered, HORIZON_MS, random.tolist())
    walk = Walk(clicks_of(ordered), negatives)
    bounds = sorted({0, len(ordered) // cut, len(ordered)})
    of_rows, blocks = zip(*(walk.block(a, random[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)), strict=True)
    rows = [(w, t) for w in expected for t in range(1 + negatives) if w.articles[t] >= 0]
    assert np.concatenate([b.values_F[0] for b in blocks]).tolist() == [w.articles[t] + 1 for w, t in rows]
    assert np.concatenate(of_rows).tolist() == [
        c for c, w in enumerate(expected) for article in w.articles if article >= 0
    ]
    assert np.concatenate([b.values_F[1] for b in blocks]).tolist() == [w.previous + 1 for w, _ in rows]
    mine = np.concatenate([b.dense_BX for b in blocks])
    theirs = [
        [w.clicks, 0, max(w.pause_ms, 0) / MINUTE, w.recent[t], w.ages_ms[t] / MINUTE, w.pause_ms < 0] for w, t in rows
    ]
    told = np.array(theirs, dtype=np.float64).reshape(-1, 6)
    np.testing.assert_allclose(mine[:, [0, 1, 2, 6, 7]], np.log1p(told[:, :5]), atol=1e-5)
    assert mine[:, 3].tolist() == told[:, 5].tolist()


def clicks_of(ordered: list[tuple[int, int, int, int]]) -> Any:
    from adaptive_rec.recipes.globo import Clicks

    time, article, user, session = np.array(ordered, dtype=np.int64).T.copy()
    context = np.ones((len(time), 6), dtype=np.uint32)
    return Clicks(time, article.astype(np.uint32), user.astype(np.uint32), session, time.copy(), context)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_happens_later_changes_nothing_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    found = data.draw(
        st.lists(st.tuples(st.integers(0, 90), st.integers(0, 6), st.integers(0, 3)), min_size=2, max_size=30)
    )
    cut = data.draw(st.integers(0, 90))
    past = [line(t, a, u, 10 * u + t // 30) for t, a, u in found if t < cut]
    future = [(t, a, u) for t, a, u in found if t >= cut]
    other = [(t, a, u) for (t, _, _), (_, a, u) in zip(future, data.draw(st.permutations(future)), strict=True)]
    folder = tmp_path_factory.mktemp("future")
    outcomes = []
    for number, later in enumerate((future, other, [])):
        path = folder / f"{number}.csv"
        path.write_text("\n".join([",".join(COLUMNS), *past, *(line(t, a, u, 99) for t, a, u in later), ""]))
        try:
            rows = list(GloboReader(path, False, 5).blocks())
        except DataError:  # no article was on offer
            rows = []
        outcomes.append([[b.dense_BX, b.labels_B, *b.values_F] for b in rows])
    if outcomes[2]:
        kept = len(outcomes[2][0][1])
        for outcome in outcomes:
            for mine, theirs in zip(outcome[0], outcomes[2][0], strict=True):
                np.testing.assert_array_equal(mine[:kept], theirs)


def test_negatives_are_drawn_by_seed(write: Write) -> None:
    path = write(*(line(n / 10, n % 40) for n in range(200)))
    one, same, other = (column(read(path, seed=seed)[1], "article") for seed in (1, 1, 2))
    assert one == same != other


def test_negatives_are_spread_evenly_and_never_the_clicked_one(write: Write) -> None:
    path = write(*(line(n / 1000, n % 10) for n in range(5000)))
    _, block = read(path)
    click = np.cumsum(block.labels_B) - 1
    drawn = block.labels_B == 0
    article = block.values_F[0].astype(np.int64) - 1
    assert not (article[drawn] == click[drawn] % 10).any()
    counts = np.bincount(article[drawn])
    assert counts.sum() >= 4990 * NEGATIVES
    assert np.abs(counts / counts.mean() - 1).max() < 0.1


BAD = {
    "0,1,2,3,4,5,6,7,8,9,10": r"line 3: row must have 12 columns between commas, got 11",
    line(0, 5) + ",1": r"line 3: row must have 12 columns between commas, got 13",
    line(0, 5).replace(
        ",5,", ",x,"
    ): r"line 3, column click_article_id: must be a whole number between 0 and 4294967294, got 'x'",
    line(0, -1): r"line 3, column click_article_id: .* got '-1'",
    line(0, 2**32 - 1): r"line 3, column click_article_id: .* got '4294967295'",
    line(0, 5, context=2**40): r"line 3, column click_environment: .* got '1099511627776'",
    line(0, 5).replace(",5,", ",,"): r"line 3, column click_article_id: .* got ''",
    line(0, 5).replace(",5,", ", 5,"): r"line 3, column click_article_id: .* got ' 5'",
    line(0, 5).replace(",5,", ",9" + "9" * 30 + ","): r"line 3, column click_article_id: .* got '9+'",
    "": r"line 3: row must have 12 columns between commas, got 1",
    line(0, 5).replace(",5,", ",\u0665,"): r"line 3, column click_article_id: .* got '\\xd9\\xa5'",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_is_an_error_or_is_skipped(write: Write, bad: str) -> None:
    path = write(line(0, 10), bad, line(1, 20), line(2, 10))
    with pytest.raises(DataError, match=BAD[bad]):
        list(GloboReader(path, False, 1).blocks())
    reader, block = read(path, skip_bad_rows=True)
    assert reader.bad_rows == 1
    assert column(block, "article")[:2] == [11, 21]


def test_another_header_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(line(0, 10) + "\n")
    with pytest.raises(DataError, match=r"line 1: header must be user_id,.* got '0,1,"):
        GloboReader(path, False, 1)


def test_the_columns_share_the_articles_ids_and_have_one_dtype(write: Write) -> None:
    reader, block = read(write(line(0, 10), line(1, 20), line(2, 10)))
    assert [one.table for one in reader.columns[:3]] == ["article", "article", "user"]
    assert len({one.name for one in reader.columns}) == len(block.values_F) == 9
    assert {values.dtype for values in block.values_F} == {np.dtype(np.uint32)}
    assert all((values > 0).all() for index, values in enumerate(block.values_F) if index != 1)


@pytest.mark.parametrize(
    ("lines", "clicks"),
    [(150_000, 140_362), pytest.param(2_988_181, 2_826_704, marks=pytest.mark.slow)],
    ids=["beginning", "whole"],
)
def test_the_real_file_is_read_to_its_end(tmp_path: Path, lines: int, clicks: int) -> None:
    """Or its beginning. The other clicks were on articles that nobody had clicked for an hour."""
    folder = os.environ.get("ADAPTIVE_REC_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(folder) / "globo_clicks_2988181.csv.zst"
    if not path.exists():
        pytest.skip(f"the news clicks are absent: set ADAPTIVE_REC_TEST_DATA to the folder of {path.name}")
    if lines < 2_988_181:
        with zstandard.open(path, "rt") as file:
            path = tmp_path / "clicks.csv"
            path.write_text("".join(itertools.islice(file, 1 + lines)))
    reader = GloboReader(path, False, 1)
    rows = clicked = 0
    for block in reader.blocks():
        check_block(block, reader)
        assert np.isfinite(block.dense_BX).all()
        rows, clicked = rows + len(block.labels_B), clicked + int(block.labels_B.sum())
    assert clicked == clicks
    assert 3.99 < rows / clicked <= 4


# Folders of earlier versions -----------------------------------------------------------------------------------------


def make_older(path: Path, version: int | None) -> None:
    """Have a job say that another version of this package made its rows; None as those did that knew of no versions."""
    content = json.loads(path.read_text())
    job = content.get("job", content)
    del job["rows_version"]
    job |= {} if version is None else {"rows_version": version}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("version", [None, 1, 3])
@pytest.mark.parametrize("format_", ["globo", "globo_sequence"])
def test_a_folder_with_rows_of_another_version_must_be_prepared_again(
    write: Write, tmp_path: Path, format_: str, version: int | None
) -> None:
    path, folder = write(*(line(minute, 10 + minute % 3) for minute in range(9))), tmp_path / "out"
    prepare_folder(Request((path,), folder, format=format_), silent)
    assert load_meta(folder).job.rows_version == 2
    make_older(folder / "meta.json", version)
    rule = (
        rf"rows of format {format_} must be of version 2, .*out has version {version or 1}, made by adaptive-rec .*; "
    )
    with pytest.raises(DataError, match=rule + "prepare .*clicks.csv again with adaptive-rec data prepare"):
        load_meta(folder)


def test_a_run_interrupted_under_an_earlier_version_is_not_resumed(write: Write, tmp_path: Path) -> None:
    path, folder = write(*(line(minute, 10 + minute % 3) for minute in range(9))), tmp_path / "out"

    def interrupt(progress: StageProgress) -> None:
        if progress.stage == "numbering":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_folder(Request((path,), folder, format="globo"), interrupt)
    make_older(tmp_path / "out.part" / "scratch" / "job.json", None)
    with pytest.raises(UsageError, match=r"interrupted run with rows_version 1 instead of 2; remove it"):
        prepare_folder(Request((path,), folder, format="globo"), silent)
