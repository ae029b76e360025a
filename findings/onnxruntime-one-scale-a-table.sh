#!/usr/bin/env bash
# onnxruntime 1.32.0: quantize_dynamic gives an embedding table one scale, per_channel=True or not, and small rows become zeros.
#
# Guess before the run: a table that a Gather reads is quantised row by row, as torch and FBGEMM do it, at least with
# per_channel=True. Seen: the whole table has one scale. One row of a popular id that is a thousand times longer than the others
# turns all 999 others into zeros, and the model answers the same for every one of them. Nothing warns.
# What it means: norms of rows in a trained table differ by popularity, so this is the usual case; keep Gather out of what is
# quantised.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON' 2>/dev/null
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

folder = sys.argv[1]
table = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32) * 0.01
table[0] *= 1000
graph = helper.make_graph(
    [helper.make_node("Gather", ["table", "ids"], ["vectors"])],
    "lookup",
    [helper.make_tensor_value_info("ids", TensorProto.INT64, [None])],
    [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [None, 16])],
    [numpy_helper.from_array(table, "table")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 9
onnx.save(model, f"{folder}/lookup.onnx")
for options in ({}, {"per_channel": True}):
    quantize_dynamic(f"{folder}/lookup.onnx", f"{folder}/quantised.onnx", **options)
    scales = [part for part in onnx.load(f"{folder}/quantised.onnx").graph.initializer if part.name.endswith("scale")]
    vectors = onnxruntime.InferenceSession(f"{folder}/quantised.onnx").run(None, {"ids": np.arange(1000)})[0]
    zeros = int((vectors == 0).all(axis=1).sum())
    sizes = [int(np.prod(scale.dims)) for scale in scales]
    print(f"{options}: numbers in each scale {sizes}, rows of zeros {zeros} of 1,000")
    assert sizes == [1] and zeros == 999
PYTHON
