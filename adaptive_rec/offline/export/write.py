"""Writes a run's model to a folder that needs torch and numpy alone: dense part, tables, values of ids or raw keys, transforms,
and the loader ``model.py``. Before the folder appears, the loader scores held-out rows, or made-up ones where ids are raw, and
its scores are compared with the run's."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.checkpoint.export import saved_tables_out
from adaptive_rec.checkpoint.table_files import file_names, write_file
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.criteo_rows import criteo_columns
from adaptive_rec.data.new_rows import KeyedRows, folder_columns, folder_keys, folder_values, value_type
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare.raw import MISSING_KEY
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.source import Source
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.data.tabular.written_numbers import PATTERNS, POINTS
from adaptive_rec.dense.evaluate import logits_of
from adaptive_rec.dense.models.dlrm import DLRM
from adaptive_rec.errors import UsageError
from adaptive_rec.kernels.number_keys import FIRST_ID, INFREQUENT_ID, MISSING_ID
from adaptive_rec.offline.export import criteo
from adaptive_rec.offline.export.raw import looked_up, made_up_batches, write_tables_of_keys
from adaptive_rec.run.chosen_checkpoint import Chosen, chosen_checkpoint
from adaptive_rec.run.inputs import reads_criteo
from adaptive_rec.run.resume import runtime_of
from adaptive_rec.run.scoring import prepared_source, trained_columns
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.system.durable import new_folder
from adaptive_rec.system.version import __version__

LOADER = "model_values.py", "model_files.py", "model.py"
"""The parts of the loader, which stands alone in one file."""
CHECKED_ROWS = 10_000
"""Rows that are scored both ways."""
MOST_DIFFERENCE = {"float32": 1e-6, "float64": 1e-12}
"""The largest difference of two probabilities by the run's precision; a run of another one rounds otherwise than the loader."""
ONNX_OPSET = 18


@dataclass(frozen=True)
class Exported:
    """A folder with a model."""

    files: list[Path]
    step: int
    checked_rows: int
    made_up: bool
    """Whether the checked rows were made up; else they were held out."""
    largest_difference: float
    """Of the probabilities of the run and of the loader, over the checked rows."""
    chosen: Chosen
    """The checkpoint that was read."""


def export_model(
    run: Path, out: Path, onnx: bool = False, warn: Callable[[str], None] = lambda text: None, wanted: str | None = None
) -> Exported:
    """Write the model of a run's checkpoint to a new folder, as a whole or not at all; `wanted` and `warn` are those of
    `chosen_checkpoint`. Raises UsageError, DataError or CheckpointError."""
    if onnx:
        check_onnx()
    with chosen_checkpoint(run, wanted, warn) as chosen:
        generation = chosen.generation
        source, columns = trained_data(run, generation)
        runtime = runtime_of(run, generation, source)
        if not isinstance(runtime.dense.model, DLRM):
            raise UsageError(f"model.name must be dlrm to be exported, got {runtime.config.model.name}")
        facts = facts_of(runtime, columns)
        folder = prepared_origin(source)
        if reads_criteo(runtime.config.data) or (folder and folder.meta.job.format == "criteo"):
            criteo.note_reading(facts, columns)
        with new_folder(out, "--to") as draft:
            draft.mkdir()
            if isinstance(source, RawIds):
                write_tables_of_keys(facts["tables"], generation, draft, out)
            else:
                write_tables(facts["tables"], generation, draft / "tables", out / "tables")
                if folder is None:
                    criteo.write_criteo_values(facts, runtime.config, draft / "ids")
            if folder is not None:
                write_values(facts, folder, draft / "ids")
            kind, weights = getattr(torch, facts["precision"]), runtime.dense.model.state_dict()
            np.savez(draft / "dense.npz", **{name: each.detach().to(kind).cpu().numpy() for name, each in weights.items()})
            (draft / "model.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            (draft / "model.py").write_text(joined_loader(), encoding="utf-8")
            model = load_exported(draft)
            checked, difference = compare_scores(runtime, model, checked_batches(source, columns, model, runtime.config))
            if onnx:
                write_onnx(draft, source, columns)
            names = sorted(path.relative_to(draft) for path in draft.rglob("*") if path.is_file())
    made_up = isinstance(source, RawIds)
    return Exported([out / name for name in names], runtime.step_number, checked, made_up, difference, chosen)


def write_tables(tables: list[dict[str, Any]], generation: Path, draft: Path, out: Path) -> None:
    """Write the rows of each table to a folder, and note the files in `tables`."""
    draft.mkdir()
    saved = saved_tables_out(generation)
    for table, each, name in zip(tables, saved, file_names([each.name for each in saved]), strict=True):
        table["weights"] = f"{name}.npy"
        write_file(draft / table["weights"], out / table["weights"], {"weight": each.array()})


def trained_data(run: Path, generation: Path) -> tuple[Source, TrainedColumns]:
    """Return a source with the ids that a run was trained on, and the columns of its data. Raises UsageError where ids have no
    values that other programs could look up."""
    config = load_config(str(run / "config.toml"), {})
    if config.data.schema_file:
        columns = trained_columns(config, generation)
        return RawIds(KeyedRows(config, columns, (), labelled=False), config), columns
    if reads_criteo(config.data):
        return open_source(config), criteo_columns(config)
    source = prepared_source(config, run)
    columns = criteo.criteo_folder_columns(source.meta) if source.meta.columns_schema is None else folder_columns(source)
    return RawIds(source, config) if config.data.ids == "raw" else source, columns


def prepared_origin(source: Source) -> PreparedSource | None:
    """Return the prepared folder that numbers the values of a source, if there is one."""
    origin = source.origin if isinstance(source, RawIds) else source
    return origin if isinstance(origin, PreparedSource) else None


def facts_of(runtime: Runtime, columns: TrainedColumns) -> dict[str, Any]:
    """Return what ``model.json`` says: columns, transforms, tables."""
    schema, standard, space = columns.schema, columns.figures(), runtime.store.space
    measured = {x: (standard.mean_X[k], standard.deviation_X[k]) for k, x in enumerate(standard.columns)}
    dense = []
    for x, column in enumerate(schema.dense):
        mean, deviation = measured.get(x, (0.0, 1.0))
        figures: dict[str, Any] = {"mean": float(mean), "deviation": float(deviation)}
        if column.format:
            figures["format"] = [PATTERNS[column.format], POINTS[column.format]]
        dense.append({**column.model_dump(), **figures})
    sparse = [
        {
            "column": column.column,
            "feature": column.feature,
            "table": column.table_name,
            "type": column.type or "text",
            "separator": column.separator,
            "brackets": bool(column.list),
            "list": bag,
        }
        for column, bag in zip(schema.sparse, columns.bag_C, strict=True)
    ]
    return {
        "made_by": f"adaptive-rec {__version__}",
        "step": runtime.step_number,
        "precision": "float64" if runtime.config.run.precision == "float64" else "float32",
        "label": schema.label,
        "file": file_of(schema),
        "dense": dense,
        "sparse": sparse,
        "tables": [
            {"name": table.name, "rows": table.rows, "dim": table.dim, "map": space.dims.index(table.dim)}
            for table in space.tables
        ],
        "pooling": runtime.config.data.pooling,
        "raw": runtime.state.input.raw_ids is not None and prepared_origin(runtime.source) is None,
        "missing_id": MISSING_ID,
        "unknown_id": INFREQUENT_ID,
        "first_id": FIRST_ID,
    }


def file_of(schema: Schema) -> dict[str, Any]:
    """Return what ``model.py`` must know of how files are written; folders of a path give it no columns."""
    known = schema.file.model_dump(mode="json", exclude_defaults=True, exclude={"partitions"})
    return known | ({"label": schema.comparison.column} if "columns" in known else {})


def write_values(facts: dict[str, Any], source: PreparedSource, out: Path) -> None:
    """Write the values of each table's ids, one JSON value a line; line k is id k + `first_id`. Booleans are
    texts, and so are whole numbers of more than 64 bits with a sign. Those of Criteo files are whole numbers, 0 for missing
    ones."""
    out.mkdir(exist_ok=True)
    if source.meta.columns_schema is None:
        keys = folder_keys(source.meta, source.folder)
        for number, table in enumerate(facts["tables"]):
            table["ids"], table["missing_value"] = f"{Path(table['weights']).stem or number}.jsonl", MISSING_KEY
            (out / table["ids"]).write_text("".join(f"{key}\n" for key in keys[table["name"]].tolist()), encoding="utf-8")
        return
    values = folder_values(source)
    for each in facts["sparse"]:
        if "binary" in str(values[each["table"]].type):
            raise UsageError(f"columns must hold whole numbers or texts to be exported, {each['column']} holds bytes")
    for number, table in enumerate(facts["tables"]):
        table["ids"] = f"{Path(table['weights']).stem or number}.jsonl"
        as_texts = value_type(values[table["name"]]) in ("boolean", "whole")
        with (out / table["ids"]).open("w", encoding="utf-8") as lines:
            for chunk in values[table["name"]].all().chunks:
                chunk = chunk.cast("string") if as_texts else chunk
                lines.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in chunk.to_pylist())


def checked_batches(
    source: Source, columns: TrainedColumns, model: Any, config: Config
) -> Iterator[tuple[Batch, Batch]]:
    """Yield batches to compare both models by, with the ids of the run's and those of the exported one."""
    if isinstance(source, RawIds):
        for batch in made_up_batches(source, columns.bag_C, CHECKED_ROWS, config.eval.batch_size):
            yield source.looked_up(batch), looked_up(batch, source, model)
    else:
        for batch in source.test_batches(config.eval.batch_size, CHECKED_ROWS):
            yield batch, batch


def compare_scores(runtime: Runtime, model: Any, batches: Iterator[tuple[Batch, Batch]]) -> tuple[int, float]:
    """Score rows with the run's model and with the loader; return their number and the largest difference. Raises UsageError
    where it is too large."""
    rows, largest = 0, 0.0
    for batch, same in batches:
        ours = torch.sigmoid(torch.from_numpy(np.asarray(logits_of(batch, runtime.store, runtime.dense))).double())
        with torch.no_grad():
            ids = padded_ids(same, len(runtime.source.features))
            theirs = torch.sigmoid(model(torch.from_numpy(same.dense_BX), *ids).double())
        largest, rows = max(largest, float((ours - theirs).abs().max())), rows + batch.size
    most = MOST_DIFFERENCE.get(runtime.config.run.precision)
    if most is not None and largest > most:
        raise UsageError(f"an exported model must score rows as the run does, to {most}, they differ by {largest:.2g}")
    return rows, largest


def joined_loader() -> str:
    """Return the loader's parts as one module, which imports nothing of this package."""
    imports, bodies = set[str](), list[str]()
    for name in LOADER:
        introduction, end, rest = Path(__file__).with_name(name).read_text(encoding="utf-8").partition('"""\n\n')
        lines = rest.split("\n")
        first = next(number for number, line in enumerate(lines) if line and not line.startswith(("import ", "from ")))
        imports |= {line for line in lines[:first] if line and "adaptive_rec" not in line}
        bodies.append("\n".join(lines[first:]).strip("\n"))
    ordered = sorted(imports, key=lambda line: (line.split()[1] in ("numpy", "torch"), line.startswith("from"), line))
    return introduction + end + "\n".join(ordered) + "\n\n" + "\n\n\n".join(bodies) + "\n"


class WithoutBytecode(SourceFileLoader):
    """Loads a module and leaves no ``__pycache__`` beside it, which would count as a file of the model."""

    def set_data(self, *_: Any, **__: Any) -> None:
        """Write nothing."""


def load_exported(folder: Path) -> Any:
    """Return the model of an exported folder, by its own loader."""
    loader = WithoutBytecode("exported_model", str(folder / "model.py"))
    spec = importlib.util.spec_from_file_location(loader.name, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
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


def write_onnx(draft: Path, source: Source, columns: TrainedColumns) -> None:
    """Write ``model.onnx``: dense features (S, X) after their transforms, and ids (S, L) of each sparse column, to logits
    (S,)."""
    if isinstance(source, RawIds):
        batch = source.looked_up(next(made_up_batches(source, columns.bag_C, 2, 2)))
    else:
        batch = next(source.train_batches(Position(), 2))
    ids = padded_ids(batch, len(source.features))
    rows, names = torch.export.Dim("rows", min=1), [feature.name for feature in source.features]
    lengths = [torch.export.Dim(f"values_{f}", min=1) if ids_SL.shape[1] > 1 else None for f, ids_SL in enumerate(ids)]
    shapes = [{0: rows} if length is None else {0: rows, 1: length} for length in lengths]
    torch.onnx.export(
        load_exported(draft),
        (torch.from_numpy(batch.dense_BX), *ids),
        str(draft / "model.onnx"),
        input_names=["dense", *names],
        output_names=["logits"],
        opset_version=ONNX_OPSET,
        dynamo=True,
        dynamic_shapes={"dense": {0: rows}, "ids": tuple(shapes)},
        verbose=False,
    )
