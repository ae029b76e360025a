"""Writes a run's model to a folder that needs torch and numpy alone: dense part, tables, values of ids, transforms, and the
loader
``model.py``. Before the folder appears, the loader scores held-out rows, and its scores are compared with the run's."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.checkpoint.export import write_tables
from adaptive_rec.data.new_rows import schema_of, with_types
from adaptive_rec.data.prepare.values import TableValues, values_file
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.dense.evaluate import logits_of
from adaptive_rec.dense.models.dlrm import DLRM
from adaptive_rec.errors import UsageError
from adaptive_rec.kernels.number_keys import FIRST_ID, INFREQUENT_ID, MISSING_ID
from adaptive_rec.run.resume import newest_generation, runtime_of
from adaptive_rec.run.scoring import prepared_source
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.system.durable import new_folder
from adaptive_rec.system.version import __version__

LOADER = Path(__file__).with_name("model.py")
CHECKED_ROWS, MOST_DIFFERENCE = 10_000, 1e-6
"""Held-out rows that are scored both ways, and the largest difference of two probabilities."""
ONNX_OPSET = 18


@dataclass(frozen=True)
class Exported:
    """A folder with a model."""

    files: list[Path]
    step: int
    checked_rows: int
    largest_difference: float
    """Of the probabilities of the run and of the loader, over the checked rows."""


def export_model(run: Path, out: Path, onnx: bool = False, warn: Callable[[str], None] = lambda text: None) -> Exported:
    """Write the model of a run's newest whole checkpoint to a new folder, as a whole or not at all. Raises UsageError,
    DataError or
    CheckpointError."""
    if onnx:
        check_onnx()
    with newest_generation(run, warn) as generation:
        runtime = runtime_of(run, generation)
        source, folder = prepared_source(runtime, run), Path(runtime.config.data.source)
        if not isinstance(runtime.dense.model, DLRM):
            raise UsageError(f"model.name must be dlrm to be exported, got {runtime.config.model.name}")
        facts = facts_of(runtime, source, folder)
        with new_folder(out, "--to") as draft:
            draft.mkdir()
            tables = write_tables(generation, draft / "tables", out / "tables", "npy")
            for table, path in zip(facts["tables"], tables, strict=True):
                table["weights"] = path.name
            write_values(facts, folder, draft / "ids")
            weights = {
                name: value.detach().float().cpu().numpy() for name, value in runtime.dense.model.state_dict().items()
            }
            np.savez(draft / "dense.npz", **weights)
            (draft / "model.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            shutil.copyfile(LOADER, draft / "model.py")
            checked, difference = compare(runtime, source, draft)
            if onnx:
                write_onnx(draft, source)
            names = sorted(path.relative_to(draft) for path in draft.rglob("*") if path.is_file())
    return Exported([out / name for name in names], runtime.step_number, checked, difference)


def facts_of(runtime: Runtime, source: PreparedSource, folder: Path) -> dict[str, Any]:
    """Return what ``model.json`` says: columns, transforms, tables."""
    meta, space, standard = source.meta, runtime.store.space, source.standard
    kinds = {table.name: TableValues(folder / values_file(table.name)).type for table in meta.tables}
    schema = with_types(schema_of(meta, folder), kinds)
    for each in schema.sparse:
        if "binary" in str(kinds[each.table_name]):
            raise UsageError(f"columns must hold whole numbers or texts to be exported, {each.column} holds bytes")
    measured = {x: (standard.mean_X[k], standard.deviation_X[k]) for k, x in enumerate(standard.columns)}
    dense = []
    for x, column in enumerate(schema.dense):
        mean, deviation = measured.get(x, (0.0, 1.0))
        dense.append({**column.model_dump(), "mean": float(mean), "deviation": float(deviation)})
    sparse = [
        {
            "column": column.column,
            "feature": column.feature,
            "table": column.table_name,
            "type": column.type or "text",
            "separator": column.separator,
            "list": trained.bag,
        }
        for column, trained in zip(schema.sparse, meta.columns, strict=True)
    ]
    return {
        "made_by": f"adaptive-rec {__version__}",
        "step": runtime.step_number,
        "label": schema.label,
        "file": schema.file.model_dump(exclude_defaults=True),
        "dense": dense,
        "sparse": sparse,
        "tables": [
            {"name": table.name, "rows": table.rows, "dim": table.dim, "map": space.dims.index(table.dim)}
            for table in space.tables
        ],
        "pooling": runtime.config.data.pooling,
        "missing_id": MISSING_ID,
        "unknown_id": INFREQUENT_ID,
        "first_id": FIRST_ID,
    }


def write_values(facts: dict[str, Any], folder: Path, out: Path) -> None:
    """Write the values of each table's ids, one JSON value a line; line k is id k + `first_id`."""
    out.mkdir()
    for number, table in enumerate(facts["tables"]):
        table["ids"] = f"{Path(table['weights']).stem or number}.jsonl"
        with (out / table["ids"]).open("w", encoding="utf-8") as lines:
            for chunk in TableValues(folder / values_file(table["name"])).all().chunks:
                lines.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in chunk.to_pylist())


def compare(runtime: Runtime, source: PreparedSource, draft: Path) -> tuple[int, float]:
    """Score held-out rows with the run's model and with the loader; return their number and the largest difference. Raises
    UsageError
    where it is too large."""
    model, rows, largest = load(draft), 0, 0.0
    for batch in source.test_batches(runtime.config.eval.batch_size, CHECKED_ROWS):
        ours = torch.sigmoid(torch.from_numpy(np.asarray(logits_of(batch, runtime.store, runtime.dense))).double())
        with torch.no_grad():
            theirs = torch.sigmoid(
                model(torch.from_numpy(batch.dense_BX), *padded_ids(batch, len(source.features))).double()
            )
        largest, rows = max(largest, float((ours - theirs).abs().max())), rows + batch.size
    if largest > MOST_DIFFERENCE and runtime.config.run.precision == "float32":
        raise UsageError(
            f"an exported model must score held-out rows as the run does, to {MOST_DIFFERENCE}, they differ by {largest:.2g}"
        )
    return rows, largest


def load(folder: Path) -> Any:
    """Return the model of an exported folder, by its own loader."""
    spec = importlib.util.spec_from_file_location("exported_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model(folder).eval()


def padded_ids(batch: Batch, features: int) -> list[torch.Tensor]:
    """Return the ids (B, L) of each feature of a batch, with -1 after the last one of a shorter bag."""
    starts_BF, ends_BF = (part.reshape(-1, features) for part in (batch.offsets[:-1], batch.offsets[1:]))
    return [torch.from_numpy(_padded(batch.ids_N, starts_BF[:, f], ends_BF[:, f])) for f in range(features)]


def _padded(ids_N: NDArray[np.int64], starts_B: NDArray[np.int64], ends_B: NDArray[np.int64]) -> NDArray[np.int64]:
    lengths_B = ends_B - starts_B
    places_BL = starts_B[:, None] + np.arange(max(1, int(lengths_B.max(initial=0))))
    inside_BL = places_BL < ends_B[:, None]
    ids_BL = np.append(ids_N, -1)[np.where(inside_BL, places_BL, len(ids_N))]
    return ids_BL.astype(np.int64)


def check_onnx() -> None:
    """Raise UsageError unless the packages that write ONNX files are installed."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"--onnx needs {' and '.join(missing)}: pip install onnx onnxscript")


def write_onnx(draft: Path, source: PreparedSource) -> None:
    """Write ``model.onnx``: dense features (S, X) after their transforms, and ids (S, L) of each sparse column, to logits
    (S,)."""
    batch = next(source.train_batches(Position(), 2))
    ids = padded_ids(batch, len(source.features))
    rows, names = torch.export.Dim("rows", min=1), [feature.name for feature in source.features]
    lengths = [torch.export.Dim(f"values_{f}", min=1) if ids_SL.shape[1] > 1 else None for f, ids_SL in enumerate(ids)]
    shapes = [{0: rows} if length is None else {0: rows, 1: length} for length in lengths]
    torch.onnx.export(
        load(draft),
        (torch.from_numpy(batch.dense_BX), *ids),
        str(draft / "model.onnx"),
        input_names=["dense", *names],
        output_names=["logits"],
        opset_version=ONNX_OPSET,
        dynamo=True,
        dynamic_shapes={"dense": {0: rows}, "ids": tuple(shapes)},
        verbose=False,
    )
