#!/usr/bin/env bash
# implicit 0.7.3: the precision of its evaluation is no precision (0.32 where hits are 0.14 of the ten recommended), and its AUC sees ten items.
#
# Guess before the run: ranking_metrics_at_k gives the mean over users of hits / k as `precision`, and as `auc` that of the usual AUC over all
# items that the user has not seen; `ndcg` and `map` are the textbook's. Seen: `ndcg` and `map` are. `precision` is all hits divided by the
# sum over users of min(k, items held out): with few held-out items a user it is nearer to recall, and grows as fewer items are held out. `auc`
# ranks the first k recommendations alone and draws a straight line for all items behind them: 0.62 where the same model's AUC over all
# unseen items is 0.77. What it means: neither figure stands beside those of other libraries or papers; count them from `recommend`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet implicit==0.7.3 numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1
OPENBLAS_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from implicit.als import AlternatingLeastSquares
from implicit.evaluation import ranking_metrics_at_k
from scipy.sparse import csr_matrix
from sklearn.metrics import roc_auc_score

assert version("implicit") == "0.7.3", version("implicit")
USERS, ITEMS, K = 400, 200, 10
draws = np.random.default_rng(0)
taste = draws.normal(size=(USERS, 4)) @ draws.normal(size=(4, ITEMS)) + 2 * draws.normal(size=(USERS, ITEMS))
liked = taste > np.quantile(taste, 0.93)
held_out = liked & (draws.random((USERS, ITEMS)) < 0.3)
train, test = (csr_matrix(part.astype(np.float32)) for part in (liked & ~held_out, held_out))
model = AlternatingLeastSquares(factors=8, random_state=0, num_threads=1)
model.fit(train, show_progress=False)
theirs = ranking_metrics_at_k(model, train, test, K=K, show_progress=False, num_threads=1)

discounts = 1 / np.log2(np.arange(2, K + 2))
top, _ = model.recommend(np.arange(USERS), train, N=K)
scores = model.user_factors @ model.item_factors.T
hits, most, precision, ndcg, auc = 0, 0, [], [], []
for user in np.flatnonzero(held_out.any(axis=1)):
    found, number = held_out[user, top[user]], held_out[user].sum()
    hits, most = hits + found.sum(), most + min(K, number)
    precision.append(found.mean())
    ndcg.append((found * discounts).sum() / discounts[: min(K, number)].sum())
    unseen = ~(liked & ~held_out)[user]
    auc.append(roc_auc_score(held_out[user, unseen], scores[user, unseen]))
print(f"precision: {theirs['precision']:.4f}; hits / k {np.mean(precision):.4f}; hits / sum of min(k, held out) {hits / most:.4f}")
print(f"ndcg: {theirs['ndcg']:.4f}; textbook {np.mean(ndcg):.4f}")
print(f"auc: {theirs['auc']:.4f}; over all unseen items {np.mean(auc):.4f}")
assert abs(theirs["ndcg"] - np.mean(ndcg)) < 1e-6
assert abs(theirs["precision"] - hits / most) < 1e-6 and theirs["precision"] > 2 * np.mean(precision)
assert theirs["auc"] < np.mean(auc) - 0.1
PYTHON
