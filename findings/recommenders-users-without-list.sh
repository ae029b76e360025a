#!/usr/bin/env bash
# recommenders 1.2.1 (Microsoft): a model that answers for one user in ten keeps its precision, recall and MAP; its NDCG is a tenth.
#
# Guess before the run: the ranking metrics of python_evaluation have the textbook's values, as means over one set of users. Seen: they have for
# users with a list of recommendations. Users of the test set without one are left out of precision_at_k, recall_at_k, map_at_k and
# map, as if they had not been asked for, and are zeros in ndcg_at_k. So a model that knows one user in ten has the precision and recall of one that
# knows all, and an NDCG of a tenth; one that leaves out the users it does worst on is better than itself. The documentation of
# the functions says neither.
# What it means: new users are those without a list. Give each test user one (popular items) before these metrics, or divide by the test set's users.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet recommenders==1.2.1 pandas==2.3.3 numpy==2.2.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import pandas as pd
from recommenders.evaluation import python_evaluation

USERS, ITEMS, K = 1_000, 100, 10
draws = np.random.default_rng(0)
relevant = draws.random((USERS, ITEMS)) < 0.05
relevant[:, 0] = True
scores = draws.random((USERS, ITEMS)) + 0.3 * relevant
table = pd.DataFrame({"userID": np.repeat(np.arange(USERS), ITEMS), "itemID": np.tile(np.arange(ITEMS), USERS), "prediction": scores.ravel()})
test = table[relevant.ravel()][["userID", "itemID"]].assign(rating=1.0)
METRICS = ["precision_at_k", "recall_at_k", "map_at_k", "map", "ndcg_at_k"]


def metrics(predicted):
    return {name: float(getattr(python_evaluation, name)(test, predicted, k=K)) for name in METRICS}


hits = np.take_along_axis(relevant, np.argsort(-scores, axis=1)[:, :K], axis=1)
some = np.arange(USERS) % 10 == 0
luckiest = hits.sum(1) >= np.sort(hits.sum(1))[-USERS // 10]
asked = {"all": some | ~some, "one in ten": some, "the luckiest": luckiest}
found = {name: metrics(table[table["userID"].isin(np.flatnonzero(users))]) for name, users in asked.items()}
for name, values in found.items():
    print(f"recommendations for {name}: {({metric: round(value, 4) for metric, value in values.items()})}")
right = {name: hits[users].sum() / K / USERS for name, users in asked.items()}
print(f"precision, users without recommendations as zeros: {({name: round(float(value), 4) for name, value in right.items()})}")
everyone, few, lucky = found["all"], found["one in ten"], found["the luckiest"]
assert abs(everyone["precision_at_k"] - right["all"]) < 1e-9
assert all(0.85 < few[name] / everyone[name] < 1.15 for name in METRICS[:4]) and few["ndcg_at_k"] < 0.12 * everyone["ndcg_at_k"]
assert all(lucky[name] > 1.3 * everyone[name] for name in METRICS[:4]) and lucky["ndcg_at_k"] < 0.5 * everyone["ndcg_at_k"]
PYTHON
