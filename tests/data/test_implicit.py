"""Logs of positives alone: their items, the negatives that are drawn, and that a stream is the same however it is read."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Position
from adaptive_rec.config.data import ImplicitConfig
from adaptive_rec.config.eval import EvalConfig
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.implicit.candidates import Candidates
from adaptive_rec.data.implicit.draws import MOST_TRIES, Draws
from adaptive_rec.data.implicit.negatives import WithNegatives, negatives_of
from adaptive_rec.data.left_out import WithoutParts, steps_to_come
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.source import Source, untaken_batches
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.errors import ConfigError, DataError

ROWS, USERS, ITEMS = 400, 30, 25
SCHEMA: dict[str, Any] = {
    "dense": ["price", "basket"],
    "sparse": ["user", "item", "brand", {"column": "tags", "separator": "|"}, "hour"],
    "implicit": {"item": "item", "user": "user"},
}
OWN = "those of their training rows left out"
PRICES = [round(0.5 * item, 1) for item in range(ITEMS)]
TAGS = ["|".join(random.Random(item).sample("abcdef", item % 4)) for item in range(ITEMS)]
"""Properties of the items, beside the brand; hour and basket are of the row."""


def rows_of(seed: int = 1) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    rows = []
    for k in range(ROWS):
        item = dice.randrange(ITEMS) if dice.random() < 0.5 else dice.randrange(5)
        user = 0 if k % 8 == 0 else dice.randrange(USERS)
        of_item = {"item": f"i{item}", "brand": f"b{item % 7}", "tags": TAGS[item], "price": PRICES[item]}
        rows.append({"user": f"u{user}", **of_item, "hour": k % 24, "basket": k % 13})
    return rows


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    names = list(rows[0])
    path = folder / "log.csv"
    path.write_text("\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]) + "\n")
    return path


def config_of(tmp_path: Path, *settings: str, raw: bool = False, schema: dict[str, Any] | None = None) -> Config:
    """The configuration of a source of the file; a folder is prepared from it unless ids are raw."""
    path, known = written(tmp_path, rows_of()), parse_schema(schema or SCHEMA, "schema")
    given = ["data.implicit.negatives=3", "data.shuffle=false", *settings]
    if raw:
        file = tmp_path / "schema.toml"
        file.write_text(schema_toml(known))
        given = ["data.ids=raw", f"data.source={path}", f"data.schema_file={file}", "data.max_table_rows=1000", *given]
        return load_config("clicks_raw", {}, given)
    folder = tmp_path / "folder"
    if not folder.exists():
        prepare_folder(Request((path,), folder, schema=known), lambda progress: None)
    return load_config("clicks_small", {}, [f"data.source={folder}", *given])


def opened(config: Config) -> tuple[Source, WithNegatives]:
    source = open_source(config)
    drawn = negatives_of(source)
    assert drawn is not None
    return source, drawn


def samples(batches: Any, features: int) -> list[tuple[Any, ...]]:
    """Each sample of batches: its label, its dense features and its bags."""
    found = []
    for batch in batches:
        for b in range(batch.size):
            ends = batch.offsets[b * features : (b + 1) * features + 1].tolist()
            bags = tuple(tuple(batch.ids_N[one:other].tolist()) for one, other in pairwise(ends))
            found.append((float(batch.labels_B[b]), tuple(batch.dense_BX[b].tolist()), bags))
    return found


@pytest.mark.parametrize("raw", [False, True])
def test_a_stream_is_the_same_from_any_place_in_batches_of_any_size(tmp_path: Path, raw: bool) -> None:
    _, drawn = opened(config_of(tmp_path, "data.epochs=2", raw=raw))
    features, begin = len(drawn.features), Position(seed=5)
    whole = samples(drawn.train_batches(begin, 64), features)
    assert len(whole) == 2 * drawn.train_samples == 2 * 4 * 360
    for size in (19, 52, 1000, drawn.train_samples):
        assert samples(drawn.train_batches(begin, size), features) == whole
    for offset in (0, 1, 2, 3, 4, 701, drawn.train_samples - 1, drawn.train_samples):
        rest = samples(drawn.train_batches(Position(0, 5, offset), 131), features)
        assert rest == whole[offset:], offset
    second = samples(drawn.train_batches(Position(1, 5, 6), 10), features)
    assert second == whole[drawn.train_samples + 6 :]
    assert [one[0] for one in whole] == [1.0, 0.0, 0.0, 0.0] * (len(whole) // 4)
    other = samples(drawn.train_batches(Position(seed=6), 64), features)
    assert other != whole, "another seed draws others"
    assert whole[: drawn.train_samples] != whole[drawn.train_samples :], "so does another epoch"
    positions = [batch.position for batch in drawn.train_batches(begin, 50)]
    assert positions[0] == Position(0, 5, 50)
    assert positions[-1] == Position(2, 5, 0)


def test_a_negative_is_its_row_with_an_item_that_the_user_has_not(tmp_path: Path) -> None:
    _, drawn = opened(config_of(tmp_path, "data.shuffle=true"))
    features = [feature.name for feature in drawn.features]
    assert sorted(features[f] for f in drawn.items.features) == ["brand", "item", "tags"]
    assert drawn.items.dense.tolist() == [0], "the price, not the basket"
    user, item, brand, tags, hour = range(5)
    found = samples(drawn.train_batches(Position(seed=3), 97), len(features))
    of_item = {bags[item]: (bags[brand], bags[tags], dense[0]) for _, dense, bags in found[::4]}
    has = defaultdict(set)
    for _, _, bags in found[::4]:
        has[bags[user]].add(bags[item])
    for place, (label, dense, bags) in enumerate(found):
        _, own_dense, own = found[place - place % 4]
        assert (bags[user], bags[hour], dense[1]) == (own[user], own[hour], own_dense[1])
        assert of_item[bags[item]] == (bags[brand], bags[tags], dense[0])
        if label == 0 and len(has[bags[user]]) < ITEMS - 3:
            assert bags[item] not in has[bags[user]]
        assert label == (place % 4 == 0)


def test_columns_that_nearly_tell_the_item_go_with_it_or_are_named(tmp_path: Path) -> None:
    dice = random.Random(2)
    rows: list[dict[str, Any]] = []
    for k in range(600):
        item = dice.randrange(8)
        spelt = f"name {item}" if dice.random() < 0.95 else f"Name {item}"
        price = item + 0.5 if dice.random() < 0.8 else 0.25
        rows.append({"user": f"u{k % 40}", "item": item, "name": spelt, "hour": k % 5, "price": price, "rating": k % 3})
    path, folder = written(tmp_path, rows), tmp_path / "folder"
    sparse = ["user", "item", "name", "hour", "price"]
    schema = parse_schema({"dense": ["price"], "sparse": sparse, "implicit": {"item": "item", "user": "user"}}, "schema")
    prepare_folder(Request((path,), folder, schema=schema), lambda progress: None)
    _, drawn = opened(load_config("clicks_small", {}, [f"data.source={folder}", "data.implicit.negatives=2"]))
    assert [drawn.features[f].name for f in drawn.items.features] == ["item", "name"]
    assert drawn.items.usual_F[2] == pytest.approx(0.95, abs=0.06)
    assert "drawn uniformly from 8 items; with the item: name (9" in drawn.in_words()
    (remark,) = drawn.remarks()
    assert remark.startswith("most rows of an item have one value of price (")
    assert remark.count("price (") == 1, "a column that is dense and a category is one column"
    one_each = [{"user": f"u{k}", "item": f"i{k}", "shop": f"s{k}"} for k in range(90)]
    schema = parse_schema({"sparse": ["user", "item", "shop"], "implicit": {"item": "item", "user": "user"}}, "schema")
    prepare_folder(Request((written(tmp_path, one_each),), tmp_path / "one", schema=schema), lambda progress: None)
    _, drawn = opened(load_config("clicks_small", {}, [f"data.source={tmp_path / 'one'}", "data.implicit.negatives=2"]))
    assert drawn.items.features.tolist() == [1], "rows that do not come again show nothing"


def test_where_a_user_has_all_items_a_draw_ends(tmp_path: Path) -> None:
    rows = [{"user": "u", "item": f"i{k % 3}"} for k in range(60)]
    path, folder = written(tmp_path, rows), tmp_path / "few"
    schema = parse_schema({"sparse": ["user", "item"], "implicit": {"item": "item", "user": "user"}}, "schema")
    prepare_folder(Request((path,), folder, schema=schema), lambda progress: None)
    _, drawn = opened(load_config("clicks_small", {}, [f"data.source={folder}", "data.implicit.negatives=2"]))
    assert sum(batch.size for batch in drawn.train_batches(Position(), 10)) == 3 * 54
    one = [{"user": f"u{k}", "item": "i"} for k in range(60)]
    path, folder = written(tmp_path, one), tmp_path / "one"
    prepare_folder(Request((path,), folder, schema=schema), lambda progress: None)
    with pytest.raises(DataError, match="must have at least two items to draw others among, got 1"):
        open_source(load_config("clicks_small", {}, [f"data.source={folder}", "data.implicit.negatives=2"]))


def test_items_that_a_user_has_are_drawn_where_they_are_accepted(tmp_path: Path) -> None:
    _, drawn = opened(config_of(tmp_path, 'data.implicit.seen="accept"'))
    user, item = 0, 1
    found = samples(drawn.train_batches(Position(), 100), 5)
    has = {(bags[user], bags[item]) for _, _, bags in found[::4]}
    negatives = [(place, bags) for place, (label, _, bags) in enumerate(found) if label == 0]
    assert any((bags[user], bags[item]) in has for _, bags in negatives)
    assert all(bags[item] != found[place - place % 4][2][item] for place, bags in negatives), "but for the row's own"


@pytest.mark.parametrize(
    ("settings", "power"),
    [({}, 0.0), ({"sampling": "popularity"}, 0.75), ({"sampling": "popularity", "power": 1.0}, 1.0)],
)
def test_items_are_drawn_by_their_shares(settings: dict[str, Any], power: float) -> None:
    rows_I = np.array([1, 1, 2, 50, 7, 300])
    draws = Draws(ImplicitConfig(**settings), rows_I)
    shares_I = rows_I**power / (rows_I**power).sum()
    assert np.allclose(draws.shares_I, shares_I, rtol=1e-12)
    count = 200_000
    found_I = np.bincount(draws.draw(1, 0, np.arange(count)), minlength=6)
    assert (np.abs(found_I - count * shares_I) < 5 * np.sqrt(count * shares_I)).all()
    again = draws.draw(1, 0, np.arange(count)[::-1])[::-1]
    assert np.array_equal(np.bincount(again, minlength=6), found_I)


def plain_draw(items: int, seed: int, epoch: int, place: int, attempt: int) -> int:
    """A draw of items that are all alike, number by number."""

    def mix(x: int) -> int:
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            x = (x ^ (x >> 33)) * factor % 2**64
        return x ^ (x >> 33)

    golden = 0x9E3779B97F4A7C15
    begin = mix((mix((seed + 0x6E656761746976) % 2**64) + epoch * golden + attempt * 0xD1B54A32D192ED03) % 2**64)
    return int((mix((begin + place * golden) % 2**64) >> 11) * 2.0**-53 * items)


def test_draws_are_those_of_a_plain_twin() -> None:
    draws, wrong = Draws.evenly(9), {(2, 3), (5, 1), (5, 8)}
    for seed, epoch in ((0, 0), (1, 7), (2**31, 3)):
        places = np.array([0, 1, 2, 3, 10**6, 2**40])
        expected = [plain_draw(9, seed, epoch, place, 0) for place in places.tolist()]
        assert draws.draw(seed, epoch, places).tolist() == expected

        def is_wrong(among: Any, number: Any) -> Any:
            return np.array([(a, n) in wrong or a == 4 for a, n in zip(among.tolist(), number.tolist(), strict=True)])

        redrawn = draws.draw_until(seed, epoch, places, is_wrong).tolist()
        for k, place in enumerate(places.tolist()):
            tries = [plain_draw(9, seed, epoch, place, attempt) for attempt in range(MOST_TRIES)]
            right = next((one for one in tries if k != 4 and (k, one) not in wrong), tries[-1])
            assert redrawn[k] == right


def test_raw_ids_get_the_same_negatives_and_values_that_share_an_id_are_one_item(tmp_path: Path) -> None:
    source, drawn = opened(config_of(tmp_path, raw=True))
    assert isinstance(source, RawIds)
    of_raw = samples(drawn.train_batches(Position(), 90), 5)
    assert [f for f in drawn.items.features.tolist()] == [1, 2, 3]
    batches = list(source.train_batches(Position(), 90))
    assert [one[0] for one in samples(batches, 5)] == [one[0] for one in of_raw]
    few = tmp_path / "few"
    few.mkdir()
    _, shared = opened(config_of(few, schema={**SCHEMA, "min_count": 12}))
    assert not shared.items.is_one_I[0]
    assert shared.items.is_one_I[1:].all()
    assert sorted(shared.items.features.tolist()) == [1, 2, 3], "what shares an id has no properties"
    assert sum(batch.size for batch in shared.train_batches(Position(), 90)) == shared.train_samples


@pytest.mark.parametrize("raw", [False, True])
def test_a_row_without_an_item_is_trained_and_no_missing_item_is_drawn(tmp_path: Path, raw: bool) -> None:
    rows = [{"user": "" if k % 9 == 0 else f"u{k % 11}", "item": "" if k % 7 == 0 else f"i{k % 8}"} for k in range(200)]
    path = written(tmp_path, rows)
    schema = parse_schema({"sparse": ["user", "item"], "implicit": {"item": "item", "user": "user"}}, "schema")
    given = ["data.implicit.negatives=2", "data.shuffle=false"]
    if raw:
        (tmp_path / "schema.toml").write_text(schema_toml(schema))
        words = [f"data.source={path}", f"data.schema_file={tmp_path / 'schema.toml'}", "data.max_table_rows=100"]
        config = load_config("clicks_raw", {}, [*words, *given])
    else:
        prepare_folder(Request((path,), tmp_path / "folder", schema=schema), lambda progress: None)
        config = load_config("clicks_small", {}, [f"data.source={tmp_path / 'folder'}", *given])
    _, drawn = opened(config)
    assert len(drawn.items) == 8
    found = samples(drawn.train_batches(Position(), 50), 2)
    missing = (-(2**63) if raw else 0,)
    assert {label for label, _, bags in found if bags[1] == missing} == {1.0}
    assert Candidates(drawn, config.eval, 1).users.of_all > 0


def test_parts_of_the_stream_are_left_out_by_samples(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    _, drawn = opened(config)
    without = WithoutParts(drawn, {Position(0, 0, 30): Position(0, 0, 90)})
    whole = samples(drawn.train_batches(Position(), 30), 5)
    assert samples(without.train_batches(Position(), 30), 5) == whole[:30] + whole[90:]
    assert steps_to_come(without, Position(), 30) == 46
    rest = samples(untaken_batches(drawn, Position(0, 0, 1401), 50), 5)
    assert rest[:39] == whole[1401:]
    assert [label for label, _, _ in rest[39:]] == [1.0] * drawn.test_samples == [1.0] * 40


# What is ranked --------------------------------------------------------------------------------------------------------


def plain_blocks(rank_seen: bool) -> dict[Any, tuple[set[Any], set[Any], int]]:
    """Of each user of held-out rows: candidates, those chosen, and how many of those chosen no training row has."""
    rows = rows_of()
    train, held_out = rows[:360], rows[360:]
    items = {row["item"] for row in train}
    has = defaultdict(set)
    chosen = defaultdict(set)
    for row in train:
        has[row["user"]].add(row["item"])
    for row in held_out:
        chosen[row["user"]] |= {row["item"]} if rank_seen or row["item"] not in has[row["user"]] else set()
    found = {}
    for user, mine in ((user, mine) for user, mine in chosen.items() if mine):
        pool = items if rank_seen else items - has[user]
        found[user] = pool, mine & items, len(mine - items)
    return found


@pytest.mark.parametrize("rank_seen", [False, True])
def test_each_user_is_ranked_among_the_items_that_it_has_not(tmp_path: Path, rank_seen: bool) -> None:
    config = config_of(tmp_path, f"eval.rank_seen={str(rank_seen).lower()}")
    _, drawn = opened(config)
    candidates = Candidates(drawn, config.eval, 1)
    expected = plain_blocks(rank_seen)
    found: list[tuple[int, int, int]] = []
    users = 0
    for block in candidates.blocks():
        for user in np.unique(block.context_P):
            mine = block.context_P == user
            found.append((int(mine.sum()), int(block.is_chosen_P[mine].sum()), int((block.missed == user).sum())))
            users += 1
        batch = candidates.batch(block, slice(0, len(block.number_P)))
        ids_PF = samples([batch], 5)
        context = samples([candidates.contexts], 5)
        for p, (_, dense, bags) in enumerate(ids_PF):
            _, own_dense, own = context[block.context_P[p]]
            assert (bags[0], bags[4], dense[1]) == (own[0], own[4], own_dense[1])
            assert bags[1] == (drawn.items.ids_I[block.number_P[p]],)
    assert users == candidates.users.of_all == len(expected)
    assert found == [(len(pool), len(mine), missed) for pool, mine, missed in expected.values()]


def test_fewer_users_and_items_are_a_part_of_all(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    _, drawn = opened(config)
    everyone = Candidates(drawn, EvalConfig(), 1)
    some = Candidates(drawn, EvalConfig(max_users=5, candidates=6), 1)
    assert some.in_words() == f"5 of {everyone.users.of_all} users ranked among 6 of 25 items, drawn for each, {OWN}"
    assert set(some.users.ids_G) < set(everyone.users.ids_G)
    (block,) = some.blocks()
    (again,) = Candidates(drawn, EvalConfig(max_users=5, candidates=6), 1).blocks()
    assert np.array_equal(block.number_P, again.number_P)
    (whole,) = everyone.blocks()
    pairs, few = (
        set(zip(of.users.ids_G[each.context_P].tolist(), each.number_P.tolist(), each.is_chosen_P.tolist(), strict=True))
        for of, each in ((everyone, whole), (some, block))
    )
    assert few < pairs
    assert sum(chosen for *_, chosen in few) == sum(chosen for user, _, chosen in pairs if user in some.users.ids_G)


def test_rows_without_users_stand_for_themselves(tmp_path: Path) -> None:
    config = config_of(tmp_path, schema={**SCHEMA, "implicit": {"item": "item"}})
    _, drawn = opened(config)
    candidates = Candidates(drawn, config.eval, 1)
    assert candidates.in_words() == "40 rows ranked among all 25 items"
    (block,) = candidates.blocks()
    assert np.bincount(block.context_P[block.is_chosen_P]).tolist() == [1] * 40


# What is refused -------------------------------------------------------------------------------------------------------


def test_settings_and_schema_must_agree(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.implicit.negatives must be at least 1 for data whose rows are all positives"):
        open_source(config_of(tmp_path, "data.implicit.negatives=0"))
    labelled = load_config("synthetic", {}, ["data.implicit.negatives=3", "data.implicit.power=1.0"])
    with pytest.raises(ConfigError, match=r"data.implicit.negatives, data.implicit.power must be left out where rows have lab"):
        open_source(labelled)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"label": "clicked"}, "label must be empty beside"),
        ({"implicit": {"item": "nothing"}}, "implicit.item must be a sparse column of single values, got 'nothing'"),
        ({"implicit": {"item": "tags"}}, "which is one of lists"),
        ({"implicit": {"item": "item", "user": "price"}}, "implicit.user must be a sparse column"),
        ({"implicit": {"item": "item", "user": "item"}}, "must be another column than implicit.item"),
        ({"implicit": None}, "label must name a column, got nothing"),
    ],
)
def test_schemas_that_cannot_be(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(Exception, match=fault):
        parse_schema({**SCHEMA, **change}, "schema")
