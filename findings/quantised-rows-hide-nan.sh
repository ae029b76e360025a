#!/usr/bin/env bash
# torch 2.13.0 and FBGEMM 1.8.0: rows that are quantised to 8 or 4 bits lose a NaN; the smallest number of the row stands in its
# place.
#
# Guess before the run: a row with a NaN comes back with a NaN, or as NaN whole, as it does with an infinity and as
# torch.ao.nn.quantized.Embedding.from_float makes it. Seen: the packing operators of both libraries leave the NaN out when they
# look for the smallest and the largest number, and code it as 0, which stands for the smallest. Only a row of nothing but NaN
# stays one.
# What it means: a table that has diverged looks healthy once it is quantised for serving; check it before.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 setuptools==84.2.1
"$folder/venv/bin/pip" install --quiet --no-deps fbgemm-gpu-cpu==1.8.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
import fbgemm_gpu  # noqa: F401 (its operators)
import torch

nan, inf = torch.nan, torch.inf
quantised, fbgemm = torch.ops.quantized, torch.ops.fbgemm
ways = {
    "torch, 8 bits": lambda row: quantised.embedding_bag_byte_unpack(quantised.embedding_bag_byte_prepack(row)),
    "torch, 4 bits": lambda row: quantised.embedding_bag_4bit_unpack(quantised.embedding_bag_4bit_prepack(row)),
    "FBGEMM, 8 bits": lambda row: fbgemm.Fused8BitRowwiseQuantizedToFloat(fbgemm.FloatToFused8BitRowwiseQuantized(row)),
}
for name, way in ways.items():
    for row in ([nan, 1.0, 2.0, 3.0], [1.0, nan, 2.0, 3.0], [1.0, 2.0, 3.0, nan], [nan] * 4, [inf, 1.0, 2.0, 3.0]):
        back = way(torch.tensor([row * 4]))[0]
        print(f"{name}: {row} comes back as {[round(number, 2) for number in back[:4].tolist()]}")
        if inf in row or row == [nan] * 4:
            assert back.isnan().all()
        else:
            assert back.isfinite().all() and back[row.index(nan)] == 1.0
PYTHON
