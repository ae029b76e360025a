#!/usr/bin/env bash
# tdigest 0.5.2.2, pytdigest 0.1.4: of counts that are 90 % zeros the quantiles of 50 to 90 % are not 0, and tdigest's lowest are below 0.
#
# Guess before the run: quantiles are within the range of the data, and 0 as far as the zeros reach.
# Seen: a value stands in the middle of its share, and quantiles are interpolated from there. Of 20,000 counts of which 90 % are 0 and the
# others 1 to about 12 the 75 % quantile is 0.66 (tdigest) and 1.16 (pytdigest), the 90 % quantile 0.99 and 1.74, the 1 % quantile -0.97
# (tdigest), and cdf(0) is 0.45 for 0.90. Log-normal values have right quantiles. fastdigest's are 0, as the guess has it.
# What it means: clicks, purchases and dwell times have a mass at zero. A threshold "above the 75 % quantile" keeps or drops others than
# those meant. Keep the count of zeros apart and sketch the rest.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tdigest==0.5.2.2 pytdigest==0.1.4 fastdigest==0.12.0 numpy==2.4.6 pandas==3.1.1
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from fastdigest import TDigest as FastDigest
from pytdigest import TDigest as PyTDigest
from tdigest import TDigest

assert version("tdigest") == "0.5.2.2" and version("pytdigest") == "0.1.4"
ROWS, SHARES = 20_000, (0.01, 0.25, 0.5, 0.75, 0.9, 0.99)


def quantiles(values):
    """Return the quantiles of the values, exact and of three packages, and cdf(0) of two."""
    old, new, fast = TDigest(), PyTDigest.compute(values), FastDigest.from_values(values.tolist())
    old.batch_update(values)
    found = {"exact": [np.quantile(values, share) for share in SHARES], "tdigest": [old.percentile(100 * share) for share in SHARES],
             "pytdigest": [new.inverse_cdf(share) for share in SHARES], "fastdigest": [fast.quantile(share) for share in SHARES]}
    return {name: np.round(np.array(row, dtype=float), 2).tolist() for name, row in found.items()}, (old.cdf(0), float(new.cdf(0)))


draws = np.random.default_rng(0)
print(f"quantiles {SHARES}")
smooth, _ = quantiles(draws.lognormal(0, 1, ROWS))
print("log-normal:", smooth)
assert all(np.allclose(smooth[name], smooth["exact"], rtol=0.05, atol=0.02) for name in smooth)
counts = np.where(draws.random(ROWS) < 0.9, 0, draws.poisson(3, ROWS) + 1).astype(float)
found, below = quantiles(counts)
print(f"counts, {(counts == 0).mean():.1%} of them 0: {found}; cdf(0) {below}")
assert counts.min() == 0 and found["exact"][:4] == found["fastdigest"][:4] == [0, 0, 0, 0]
assert found["tdigest"][0] < -0.9 and found["tdigest"][3] > 0.5 and found["pytdigest"][3] > 1
assert all(value < 0.5 for value in below)
PYTHON
