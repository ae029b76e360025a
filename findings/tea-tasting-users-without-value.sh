#!/usr/bin/env bash
# tea-tasting 1.14.0: tests of a metric that not all users have count those users as measured ones: A/A tests find a difference in three of ten.
#
# Guess before the run: Mean, and RatioOfMeans, over a column with nulls are what they are over the rows without nulls, in pandas, polars
# and Arrow alike, or are refused. Seen: means and variances are taken over the values there are, but divided by the number of all rows.
# Where 30 % of users have a value the standard error is about half of what it should be: a p-value of 0.00001 for 0.016, and of 400
# A/A tests 30 % are significant at 5 % (a ratio: 14 %). NaN in pandas counts as null. Quantile and Bootstrap have a nan_policy; Mean and
# RatioOfMeans have none.
# What it means: dwell time, rating or order value of a recommender's A/B test is null for users without one. Drop those rows, metric
# by metric, before analyze(), or fill what is truly 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tea-tasting==1.14.0 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import tea_tasting as tt
from scipy import stats

assert version("tea-tasting") == "1.14.0", version("tea-tasting")
USERS, TESTS = 2_000, 400
draws = np.random.default_rng(0)


def table(difference=0.0):
    """Users of two variants, of whom 30 % have a dwell time."""
    variant = draws.integers(0, 2, USERS)
    dwell = draws.normal(10, 3.4, USERS) + difference * variant
    columns = {"variant": variant, "clicks": draws.integers(1, 9, USERS)}
    return pa.table(columns | {"dwell": pa.array(dwell, mask=draws.random(USERS) < 0.7)})


def analyse(data):
    """Return the p-values of a mean and of a ratio."""
    result = tt.Experiment(mean=tt.Mean("dwell"), ratio=tt.RatioOfMeans("dwell", "clicks")).analyze(data)
    return {name: value.pvalue for name, value in result.items()}


data = table(0.2)
right = data.filter(data["dwell"].is_valid())
control, treatment = (right.filter(pc.equal(right["variant"], one))["dwell"].to_numpy() for one in (0, 1))
exact = stats.ttest_ind(treatment, control, equal_var=False).pvalue
found = {"Arrow": data, "polars": pl.from_arrow(data), "pandas": data.to_pandas()}
found = {name: analyse(frame)["mean"] for name, frame in found.items()}
dropped = analyse(right)["mean"]
print(f"Welch's test: {exact:.4f}; tea-tasting, rows with a value: {dropped:.4f}; all rows: {found}")
assert np.isclose(dropped, exact)
assert all(value < exact / 10 for value in found.values()), found

tests = [table() for _ in range(TESTS)]
shares = {}
for rows, data in {"all rows": tests, "rows with a value": [test.filter(test["dwell"].is_valid()) for test in tests]}.items():
    pvalues = [analyse(test) for test in data]
    shares[rows] = {name: float(np.mean([one[name] < 0.05 for one in pvalues])) for name in pvalues[0]}
    print(f"share of A/A tests with p < 0.05, {rows}: {shares[rows]}")
assert shares["all rows"]["mean"] > 0.2 and shares["all rows"]["ratio"] > 0.09, shares
assert all(share < 0.075 for share in shares["rows with a value"].values()), shares
PYTHON
