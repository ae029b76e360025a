"""What a model that was trained on a user's own files must know of their columns to score other files. A checkpoint keeps it, so
the files that were trained on need not be there."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_rec.data.standard import Standard
from adaptive_rec.data.tabular.schema import Schema, parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.errors import CheckpointError, UsageError
from adaptive_rec.saved import Saved


@dataclass(frozen=True)
class TrainedColumns:
    """The columns of the training data."""

    schema: Schema
    """Its sparse columns have the type of the values that were trained on."""
    bag_C: tuple[bool, ...]
    """Which sparse columns have lists of values."""
    standard: Standard | None
    """None where dense columns are measured on rows of which none was read yet."""

    def figures(self) -> Standard:
        """Return how dense columns are scaled. Raises UsageError where that is not known."""
        if self.standard is not None:
            return self.standard
        if names := ", ".join(self.schema.dense[x].column for x in self.schema.standard_columns):
            raise UsageError(f"the run must have read rows, by which {names} is scaled, it has read none")
        return Standard.of((), (), ())

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        standard = self.standard
        figures = None if standard is None else {"mean": standard.mean_X, "deviation": standard.deviation_X}
        bag_C = np.array(self.bag_C, dtype=np.int64)
        return {"schema": schema_toml(self.schema), "bags": bag_C, "standard": figures}

    @staticmethod
    def saved(found: Saved) -> TrainedColumns:
        """Read what `state` returned. Raises CheckpointError."""
        try:
            schema = parse_schema(tomllib.loads(found.text("schema")), "schema")
        except (tomllib.TOMLDecodeError, UsageError) as error:
            raise CheckpointError(f"the columns of a checkpoint must have a schema: {error}") from None
        bag_C = found.array("bags", np.int64, len(schema.sparse))
        columns, figures = schema.standard_columns, found.maybe("standard")
        if figures is None:
            return TrainedColumns(schema, tuple(bag_C.astype(bool).tolist()), None)
        mean_X, deviation_X = (figures.array(name, np.float64, len(columns)) for name in ("mean", "deviation"))
        standard = Standard(columns, mean_X, deviation_X, np.array(schema.standard_missing, dtype=np.float32))
        return TrainedColumns(schema, tuple(bag_C.astype(bool).tolist()), standard)
