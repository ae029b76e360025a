"""An exported ONNX file scores as the exported model does. Its libraries take seconds to load, hence a file of its own."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.offline.export.write import export_model, load_exported
from tests.finished_runs import FOLLOWED


def test_onnx_scores_alike(finished_run: Callable[..., Path], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    export_model(finished_run("followed"), tmp_path / "onnx", onnx=True)
    model = load_exported(tmp_path / "onnx")
    with (tmp_path / FOLLOWED).open(newline="") as file:
        rows = list(csv.DictReader(file))[-40:]
    table = {name: [row[name] for row in rows] for name in rows[0]}
    inputs = [model.dense(table), *(model.rows_of(column, table) for column in model.facts["sparse"])]
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    fed = {each.name: value.numpy() for each, value in zip(session.get_inputs(), inputs, strict=True)}
    np.testing.assert_allclose(session.run(None, fed)[0], model(*inputs).detach().numpy(), atol=1e-5)
