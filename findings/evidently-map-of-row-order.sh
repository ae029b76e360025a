#!/usr/bin/env bash
# evidently 0.7.23: the mean average precision of the same recommendations is 0.55 to 1.35, by the order of the rows.
#
# Guess before the run: evidently's ranking metrics (precision, recall, NDCG, MAP, MRR, hit rate at k) have the textbook's values, whatever
# the order of the rows is, as each row has its user and its score. Seen: all have but MAP. Whether the item at place k is relevant is read
# from the last of the user's rows among the first k by score, last as the table has them. Sorted by user and falling score
# MAP at 10 is right (0.73); it is 0.89 sorted by user and item, 0.97 shuffled, and 1.35 with the positives at the end. A MAP of more than 1
# raises nothing.
# What it means: MAP of two models, or of two days, compares the orders of two tables. Sort by user and falling score before, or read NDCG.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet evidently==0.7.23 pandas==2.3.3 numpy==2.2.6
DO_NOT_TRACK=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import pandas as pd
from evidently import DataDefinition, Dataset, Recsys, Report
from evidently.metrics import MAP, NDCG, MRR, HitRate, PrecisionTopK, RecallTopK

USERS, ITEMS, K = 200, 20, 10
draws = np.random.default_rng(0)
relevant = draws.random((USERS, ITEMS)) < 0.2
relevant[:, 0] = True
scores = draws.random((USERS, ITEMS)) + 0.5 * relevant
table = pd.DataFrame({"user_id": np.repeat(np.arange(USERS), ITEMS), "item_id": np.tile(np.arange(ITEMS), USERS)})
table["prediction"], table["target"] = scores.ravel(), relevant.ravel().astype(int)


def metrics(rows):
    data = Dataset.from_pandas(rows.reset_index(drop=True), DataDefinition(ranking=[Recsys(recommendations_type="score")]))
    asked = [MAP, NDCG, MRR, HitRate, PrecisionTopK, RecallTopK]
    found = Report([metric(k=K) for metric in asked]).run(data, None).dict()["metrics"]
    return {metric.__name__: float(one["value"]["value"][K - 1]) for metric, one in zip(asked, found)}


def average_precision(of_a_user, order):
    hits = of_a_user[order]
    return (np.cumsum(hits) / np.arange(1, ITEMS + 1) * hits)[:K].sum() / hits.sum()


right = float(np.mean([average_precision(of_a_user, np.argsort(-score)) for of_a_user, score in zip(relevant, scores)]))
print(f"by hand: MAP at {K} is {right:.4f}")
orders = {
    "by user and falling score": table.sort_values(["user_id", "prediction"], ascending=[True, False]),
    "by user and item": table,
    "shuffled": table.sample(frac=1, random_state=1),
    "positives first": table.sort_values("target", ascending=False, kind="stable"),
    "positives last": table.sort_values("target", kind="stable"),
}
found = {name: metrics(rows) for name, rows in orders.items()}
for name, values in found.items():
    print(f"rows {name}: {({metric: round(value, 4) for metric, value in values.items()})}")
best = found["by user and falling score"]
assert abs(best["MAP"] - right) < 1e-9
assert all(abs(values[name] - best[name]) < 1e-9 for values in found.values() for name in best if name != "MAP")
assert found["positives last"]["MAP"] > 1.2 and found["positives first"]["MAP"] < 0.6 and found["shuffled"]["MAP"] > right + 0.1
PYTHON
