"""Users' held-out items ranked among all others, beside a plain computation pair by pair."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.dense import ranked_items
from adaptive_rec.live.telemetry import Quality
from adaptive_rec.runtime.assemble import assemble

ROWS, TRAINED, NEGATIVES = 280, 240, 3
TRAIN = TRAINED + 23
METRICS = ["recall@5", "ndcg@5", "mrr", "gauc"]
QUIET = ["run.device=cpu", "run.threads=1", "model.bottom_mlp=[8]", "model.top_mlp=[8]", "data.shuffle=false"]


def rows_of() -> list[tuple[str, str]]:
    """Rows of 21 users; of all items that are trained on, user 20 has all but two."""
    dice = np.random.default_rng(3)
    rows = [(f"u{dice.integers(20)}", f"i{int(25 * dice.random() ** 2)}") for _ in range(ROWS)]
    most = [("u20", f"i{item}") for item in range(25) if item not in (1, 4)]
    return [*most, *rows[:TRAINED], ("u20", "i4"), ("u20", "never seen"), ("nobody", "i0"), *rows[TRAINED:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranked")
    (path / "log.csv").write_text("\n".join(["user,item", *map(",".join, rows_of())]) + "\n")
    schema = parse_schema({"sparse": ["user", "item"], "implicit": {"item": "item", "user": "user"}}, "schema")
    prepare_folder(Request((path / "log.csv",), path / "folder", schema=schema), lambda progress: None)
    return path / "folder"


def config_of(folder: Path, *settings: str) -> Config:
    split = TRAIN / len(rows_of())
    ranges = [f"data.train_range=[0.0, {split}]", f"data.test_range=[{split}, 1.0]"]
    data = [f"data.source={folder}", f"data.implicit.negatives={NEGATIVES}", f"eval.metrics={METRICS}"]
    given = [*QUIET, *ranges, *data, *settings]
    return load_config("clicks_small", {}, [one.replace("'", '"') for one in given])


def plain(logit_of: dict[tuple[str, str], float], shares: dict[str, float]) -> dict[str, float]:
    """The same figures, user by user, from the logit of each pair of user and item, without ties."""
    rows = rows_of()
    train, held_out = rows[:TRAIN], rows[TRAIN:]
    has, chosen = defaultdict(set), defaultdict(set)
    for user, item in train:
        has[user].add(item)
    for user, item in held_out:
        if item not in has[user]:
            chosen[user].add(item)
    sums: dict[str, list[float]] = defaultdict(list)
    pairs, loss, weight = [], 0.0, 0.0
    for user, mine in chosen.items():
        pool = sorted({item for _, item in train} - has[user], key=lambda item: -logit_of[user, item])
        places = [pool.index(item) + 1 if item in pool else math.inf for item in mine]
        sums["recall@5"].append(sum(place <= 5 for place in places) / len(mine))
        best = sum(1 / math.log2(k + 2) for k in range(min(5, len(mine))))
        sums["ndcg@5"].append(sum(1 / math.log2(place + 1) for place in places if place <= 5) / best)
        sums["mrr"].append(1 / min(places) if min(places) < math.inf else 0.0)
        others = [item for item in pool if item not in mine]
        found = [item for item in pool if item in mine]
        right = sum(logit_of[user, one] > logit_of[user, other] for one in found for other in others)
        pairs += [(right / (len(found) * len(others)), len(pool))] if found else []
        loss += sum(math.log1p(math.exp(-logit_of[user, item])) for item in found)
        all_shares = sum(shares[item] for item in others)
        drawn = NEGATIVES * len(found) / all_shares
        loss += drawn * sum(shares[item] * math.log1p(math.exp(logit_of[user, item])) for item in others)
        weight += (1 + NEGATIVES) * len(found)
    figures = {name: float(np.mean(values)) for name, values in sums.items()}
    figures["gauc"] = sum(auc * samples for auc, samples in pairs) / sum(samples for _, samples in pairs)
    return {**figures, "logloss": loss / weight}


@pytest.mark.parametrize("settings", [[], ['data.implicit.sampling="popularity"']])
def test_figures_are_those_of_a_plain_computation(
    folder: Path, settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranked_items, "MOST_AT_ONCE", 7)
    runtime = assemble(config_of(folder, *settings))
    items = sorted({item for _, item in rows_of()[:TRAIN]})
    users = sorted({user for user, _ in rows_of()})
    logit_of = {(u, i): float(np.random.default_rng([k, j]).normal()) for k, u in enumerate(users) for j, i in enumerate(items)}
    counts = {item: sum(each == item for _, each in rows_of()[:TRAIN]) ** (0.75 if settings else 0.0) for item in items}
    shares = {item: count / sum(counts.values()) for item, count in counts.items()}
    names = value_of_ids(folder)

    def logits(batches: Iterable[Batch], *_: Any) -> Any:
        found = [batch.ids_N.reshape(-1, 2).tolist() for batch in batches]
        assert all(len(batch) <= 7 for batch in found)
        return np.array([logit_of[names["user"][u], names["item"][i]] for batch in found for u, i in batch])

    monkeypatch.setattr(ranked_items, "logits_in_order", logits)
    evaluation = runtime.evaluate()
    assert evaluation is not None
    quality, expected = evaluation.quality, plain(logit_of, shares)
    assert quality.ranking is not None
    assert quality.ranking.groups == len({user for user, _ in rows_of()[TRAIN:]}) - users_with_nothing_new()
    for name, value in expected.items():
        got = quality.logloss if name == "logloss" else quality.ranking.metrics[name]
        assert got == pytest.approx(value, abs=1e-12), name
    assert quality.auc == quality.ranking.metrics["gauc"]


def users_with_nothing_new() -> int:
    has = {pair for pair in rows_of()[:TRAIN]}
    new = {user for user, item in rows_of()[TRAIN:] if (user, item) not in has}
    return len({user for user, _ in rows_of()[TRAIN:]} - new)


def value_of_ids(folder: Path) -> dict[str, dict[int, str]]:
    import pyarrow as pa

    found = {}
    for table in ("user", "item"):
        values = pa.ipc.open_file(folder / f"{table}_values.arrow").read_all().column(0).to_pylist()
        found[table] = dict(enumerate(values, start=2))
    return found


def test_blocks_of_any_size_give_the_same_figures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adaptive_rec.data.implicit import candidates

    def evaluated(pairs: int) -> Quality:
        monkeypatch.setattr(candidates, "MOST_PAIRS", pairs)
        evaluation = assemble(config_of(folder)).evaluate()
        assert evaluation is not None
        return evaluation.quality

    whole, parts = evaluated(1 << 20), evaluated(30)
    assert whole.ranking is not None
    assert parts.ranking is not None
    assert (parts.samples, parts.ranking.groups) == (whole.samples, whole.ranking.groups)
    for name, value in whole.ranking.metrics.items():
        assert parts.ranking.metrics[name] == pytest.approx(value, abs=1e-12)
    assert parts.logloss == pytest.approx(whole.logloss, rel=1e-12)


def test_an_evaluation_that_is_given_up_has_no_result(folder: Path) -> None:
    runtime = assemble(config_of(folder))
    runtime.state.leave()
    assert runtime.evaluate() is None
