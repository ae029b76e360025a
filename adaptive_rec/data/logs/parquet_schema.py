"""The TOML file that says which columns of a Parquet file are what."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from adaptive_rec.config.knobs import Frozen, describe
from adaptive_rec.errors import UsageError


class DenseColumn(Frozen):
    """A number of a row."""

    column: str = Field(min_length=1)
    transform: Literal["none", "log"] = "none"
    """log is log(1 + max(x, 0)), for counts."""
    missing: float = 0.0
    """What a null becomes, after the transform."""


class SparseSchema(Frozen):
    """A category of a row, or a list of them."""

    column: str = Field(min_length=1)
    name: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$")
    """The feature's name; by default the column's."""
    table: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$")
    """Columns of one table share its ids; by default a column has a table of its name."""

    @property
    def feature(self) -> str:
        return self.name or self.column


class Schema(Frozen):
    """Label, dense and sparse columns. Without dense columns a sample gets a single dense feature, the constant 1."""

    label: str = Field(min_length=1)
    """A column of 0 and 1, or of booleans."""
    dense: tuple[DenseColumn, ...] = Field((), strict=False)
    sparse: tuple[SparseSchema, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="after")
    def _check_names(self) -> Schema:
        names = [column.feature for column in self.sparse]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"sparse columns must have names of their own, two are called {twice}")
        for column in self.sparse:
            if not column.name and not all(c.isalnum() or c in "_.-" for c in column.column):
                raise ValueError(f"sparse column {column.column!r} needs a name of letters, digits, _, . and -")
        return self


def load_schema(path: Path) -> Schema:
    """Read a schema; raises UsageError for what breaks its rules."""
    try:
        return Schema.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"--schema {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--schema {path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise UsageError(f"--schema {path}: {describe(error)}") from None
