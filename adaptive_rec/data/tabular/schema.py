"""The schema of a CSV, TSV or Parquet file: its label, its dense and its sparse columns, as a TOML file has them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from adaptive_rec.config.faults import describe_faults
from adaptive_rec.config.knobs import Frozen
from adaptive_rec.data.tabular.label import Label, parse_label
from adaptive_rec.data.tabular.schema_columns import (
    DenseColumn,
    GroupColumn,
    ImplicitPart,
    SparseColumnSchema,
    TimeColumn,
)
from adaptive_rec.data.tabular.schema_file import FileSchema
from adaptive_rec.errors import UsageError
from adaptive_rec.system.regular_files import read_regular

CONSTANT = "constant"
"""Name of the single dense feature of a schema without dense columns."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
"""The names of features and tables, which are parts of the names of files."""
ClassWeight = dict[Literal["0", "1"], float]
"""How much rows of each label count."""
LARGEST_WEIGHT = 1e38
"""The largest weight of a class: it fits 32 bits."""


class Schema(Frozen):
    """The TOML file that names the label, the dense and the sparse columns. Without dense columns a sample has one dense
    feature, the constant 1."""

    label: str = ""
    """A column of 0 and 1, or of booleans; or a comparison, ``rating >= 4``, ``answer == yes``. Empty where `implicit` is there:
    every row has label 1."""
    dense: tuple[DenseColumn, ...] = Field((), strict=False)
    sparse: tuple[SparseColumnSchema, ...] = Field(min_length=1, strict=False)
    min_count: int = Field(1, ge=1)
    """Values that occur less often share one row, which values that are new to the model read too."""
    time: TimeColumn = TimeColumn()
    """When each row was, for `data.order = "time"`; it may be a feature besides."""
    weight: str = ""
    """The column that says how much each row counts: a number of at least 0. Empty: all count alike."""
    class_weight: ClassWeight = {}
    """How much rows with label 0 and with label 1 count, times the value of `weight`; 1 for a label that is left out."""
    group: GroupColumn = GroupColumn()
    """The groups within which rows are ranked; the column may be a feature besides."""
    implicit: ImplicitPart | None = None
    """Of a log of positives alone, which has no label."""
    file: FileSchema = FileSchema()

    @model_serializer(mode="wrap")
    def _without_later_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what older versions did not know and the schema does not name, as `SchemaPart` does."""
        values: dict[str, Any] = handler(self)
        kept = {"weight": bool(self.weight), "class_weight": bool(self.class_weight), "group": bool(self.group.column)}
        kept["implicit"] = self.implicit is not None
        return {name: value for name, value in values.items() if kept.get(name, True)}

    @field_validator("class_weight")
    @classmethod
    def _check_class_weight(cls, weights: ClassWeight) -> ClassWeight:
        if not all(0 <= weight <= LARGEST_WEIGHT for weight in weights.values()) or (weights and not any(weights.values())):
            raise ValueError(f"must be finite numbers of at least 0, not all of them 0, got {weights}")
        return weights

    @field_validator("time", "group", mode="before")
    @classmethod
    def _read_time(cls, column: Any) -> Any:
        """A text is a column with the default unit."""
        return {"column": column} if isinstance(column, str) else column

    @field_validator("dense", "sparse", mode="before")
    @classmethod
    def _read_names(cls, columns: Any) -> Any:
        """A text is a column with all settings at their defaults."""
        if isinstance(columns, (list, tuple)):
            return [{"column": column} if isinstance(column, str) else column for column in columns]
        return columns

    @model_validator(mode="after")
    def _check_names(self) -> Schema:
        names = [column.feature for column in self.sparse]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"sparse columns must have different names, two are called {twice}")
        for column in self.sparse:
            if not column.name and not PLAIN_NAME.fullmatch(column.column):
                raise ValueError(
                    f"sparse column {column.column!r} needs a name of letters, digits, _, . and -, at most 100"
                )
        features = [column.feature for column in self.dense]
        twice = next((name for name in features if features.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"dense columns must be different, {twice} is listed twice")
        dense = [column.column for column in self.dense]
        if self.implicit is None and not self.label:
            raise ValueError("label must name a column, got nothing; a log of positives alone has a part [implicit] instead")
        for kind, columns in (("dense", dense), ("sparse", [column.column for column in self.sparse])):
            if self.label in columns or self.comparison.column in columns:
                raise ValueError(
                    f"the label must not be a feature: a model would read its answer from it. {kind} lists "
                    f"{self.comparison.column}"
                )
        if self.weight and self.weight in (self.comparison.column, self.time.column):
            raise ValueError(f"weight must be another column than the label and the time, got {self.weight!r}")
        if self.group.column and self.group.column == self.comparison.column:
            raise ValueError(f"group must be another column than the label, got {self.group.column!r}")
        return self

    @model_validator(mode="after")
    def _check_implicit(self) -> Schema:
        if self.implicit is None:
            return self
        if self.label:
            raise ValueError(f"label must be empty beside [implicit], whose rows all have label 1, got {self.label!r}")
        for name, column in (("item", self.implicit.item), ("user", self.implicit.user)):
            found = next((each for each in self.sparse if each.column == column), None)
            if column and (found is None or found.separator or found.list):
                what = "which is one of lists" if found else f"the columns are {', '.join(each.column for each in self.sparse)}"
                raise ValueError(f"implicit.{name} must be a sparse column of single values, got {column!r}; {what}")
        if self.implicit.item == self.implicit.user:
            raise ValueError(f"implicit.user must be another column than implicit.item, got {self.implicit.user!r} for both")
        return self

    @property
    def is_weighted(self) -> bool:
        """Whether rows count differently."""
        return bool(self.weight or self.class_weight)

    @property
    def comparison(self) -> Label:
        """The label, with the comparison read from its text; its column is empty where there is none."""
        return parse_label(self.label)

    @property
    def choice(self) -> tuple[str, str]:
        """The features of items and users of a log of positives alone; each empty where there is none."""
        feature_of = {column.column: column.feature for column in self.sparse}
        part = self.implicit
        return ("", "") if part is None else (feature_of[part.item], feature_of.get(part.user, ""))

    @property
    def columns(self) -> list[str]:
        """The columns of the file that are read, each once."""
        features = [*(column.column for column in self.dense), *(column.column for column in self.sparse)]
        beside = [name for name in (self.time.column, self.weight, self.group.column) if name]
        label = [self.comparison.column] if self.label else []
        return list(dict.fromkeys([*label, *features, *beside]))

    @property
    def standard_columns(self) -> tuple[int, ...]:
        """The dense columns whose mean and deviation are measured, by number."""
        return tuple(x for x, column in enumerate(self.dense) if column.is_standard)

    @property
    def standard_missing(self) -> tuple[float, ...]:
        """What a missing number of each of them becomes."""
        return tuple(self.dense[x].missing for x in self.standard_columns)

    def with_types(self, kind_of: Mapping[str, str], bag_C: Sequence[bool]) -> Schema:
        """Return the schema with the types of its tables' values, by table, where it gives none itself, for files of whatever
        kind that are scored, whose rows need no time. `bag_C` says which columns are bags: texts have them in brackets, unless
        there is a separator."""
        columns = []
        for column, bag in zip(self.sparse, bag_C, strict=True):
            texts = {"list": "brackets"} if bag and not column.separator else {}
            columns.append(column.model_copy(update={"type": column.type or kind_of.get(column.table_name, ""), **texts}))
        return self.model_copy(update={"sparse": tuple(columns), "time": TimeColumn()})

    def without_weights(self, class_weight: bool = True) -> Schema:
        """Return the schema without its column of weights, and without weights of the classes unless `class_weight` is false."""
        return self.model_copy(update={"weight": "", **({"class_weight": {}} if class_weight else {})})

    def without_groups(self) -> Schema:
        """Return the schema without its column of groups."""
        return self.model_copy(update={"group": GroupColumn()})


def load_schema(path: Path, option: str = "--schema") -> Schema:
    """Read a schema that an option names; raises UsageError for what breaks its rules."""
    try:
        data = path.read_bytes() if option == "--schema" else read_regular(path)  # a configuration may be a stranger's
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror}") from None
    return schema_of_toml(data, f"{option} {path}")


def schema_of_toml(data: bytes, named: str) -> Schema:
    """Read a schema's TOML; raises UsageError, which begins with `named`."""
    try:
        return parse_schema(tomllib.loads(data.decode()), named)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{named} is not valid TOML: {error}") from None


def parse_schema(values: Mapping[str, Any], named: str) -> Schema:
    """Check the values of a schema; raises UsageError, which begins with `named`."""
    try:
        return Schema.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{named}: {describe_faults(error)}") from None
