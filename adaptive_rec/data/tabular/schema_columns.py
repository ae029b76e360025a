"""The columns that a schema names: dense and sparse ones, and those of times, of groups, and of items and users."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from adaptive_rec.config.knobs import Frozen
from adaptive_rec.data.tabular.calendar_numbers import Unit
from adaptive_rec.data.tabular.kinds import Rule

LATER_KEYS = frozenset(("format", "clip", "unit", "list", "escape", "columns", "partitions"))
"""Keys that older versions did not know."""
Clock = Literal["hour_sine", "hour_cosine", "weekday_sine", "weekday_cosine"]
CLOCKS: tuple[Clock, ...] = get_args(Clock)
"""The transforms of times."""


class SchemaPart(Frozen):
    """A part of the schema."""

    @model_serializer(mode="wrap")
    def _without_later_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what older versions did not know and the schema does not name: a hash of all keys finds folders."""
        values: dict[str, Any] = handler(self)
        return {name: value for name, value in values.items() if value or name not in LATER_KEYS}


class DenseColumn(SchemaPart):
    """A dense column of the schema: a number of each row."""

    column: str = Field(min_length=1)
    transform: Literal["none", "log", "standard", "log_standard", Clock] = "none"
    """log is log(1 + max(x, 0)), for counts. standard takes the mean off and divides by the standard deviation, both of the rows
    that are trained on. log_standard is standard of log. Sine and cosine of the hour are those of the time of day, in UTC, as an
    angle; those of the weekday of the time since Monday."""
    clip: tuple[float, ...] = Field((), strict=False)
    """The lowest and the highest number, before the transform: numbers beyond are taken for these. Empty: as they are."""
    missing: float = 0.0
    """The value of a missing number, after the transform."""
    unit: Unit = ""
    """Of a column of times, as that of `time`."""
    format: Literal["", "us", "eu"] = ""
    """How texts have numbers that are written for people: us as 1,234.5, eu as 1.234,5; both take signs of money and
    percent."""

    @field_validator("clip")
    @classmethod
    def _check_clip(cls, ends: tuple[float, ...]) -> tuple[float, ...]:
        if ends and not (len(ends) == 2 and ends[0] < ends[1] and all(map(math.isfinite, ends))):
            raise ValueError(f"must be two numbers, the lower one first, got {list(ends)}")
        return ends

    @model_validator(mode="after")
    def _check_settings(self) -> DenseColumn:
        if self.is_clock and (self.clip or self.format):
            raise ValueError(f"clip and format must not be set where transform is {self.transform}, {self.column} has one")
        if self.unit and not self.is_clock:
            raise ValueError(f"unit must be empty where transform is {self.transform}, {self.column} has {self.unit}")
        return self

    @property
    def is_clock(self) -> bool:
        """Whether the column holds times."""
        return self.transform in CLOCKS

    @property
    def feature(self) -> str:
        """The name of the dense feature; several may be of one column of times."""
        return f"{self.column}:{self.transform}" if self.is_clock else self.column

    @property
    def is_standard(self) -> bool:
        """Whether the column's mean and deviation are measured when a run starts."""
        return self.transform in ("standard", "log_standard")


class SparseColumnSchema(SchemaPart):
    """A sparse column of the schema: a category of each row, or a list of them."""

    column: str = Field(min_length=1)
    name: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$", max_length=100)
    """The name of the feature, by default that of the column."""
    table: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$", max_length=100)
    """The table, whose columns share its ids; by default a table with the feature's name."""
    type: Rule = ""
    """The type of the values, by default that of a Parquet column, and text in a CSV file. Values of one type are equal in
    whatever file they come. `integer`: whole numbers of 64 bits; `whole`: of any size; `boolean`: true or false in any spelling;
    `float`: numbers of 64 bits, for ids that were once written as floats."""
    separator: str = ""
    """Text that divides a text into several values, a bag; by default a text is one value."""
    list: Literal["", "brackets"] = ""
    """brackets: a text is a bag as JSON, Python or NumPy write one: [27, 9], ['a', 'b'], [27 9]."""

    @model_validator(mode="after")
    def _check_bag(self) -> SparseColumnSchema:
        if self.separator and self.list:
            raise ValueError(f"a column must have a separator or a list, {self.column} has both")
        return self

    @property
    def feature(self) -> str:
        return self.name or self.column

    @property
    def table_name(self) -> str:
        return self.table or self.feature


class TimeColumn(Frozen):
    """The column that says when each row was."""

    column: str = ""
    """Empty: rows have no time."""
    unit: Unit = ""
    """Of numbers, which count from 1970 on, or are dates such as yyyymmdd. By default they are seconds, and refused
    where they look like something else. Texts are ISO times, or written as a pattern of Python's strptime says, such as
    %d.%m.%Y %H:%M; by default of UTC."""

    @model_serializer(mode="wrap")
    def _by_older_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the default as older versions did: folders are found by a hash of all keys."""
        values: dict[str, Any] = handler(self)
        return values | {"unit": "s"} if values.get("unit") == "" else values

    @model_validator(mode="after")
    def _check_unit(self) -> TimeColumn:
        if self.unit not in ("", "s") and not self.column:
            raise ValueError(f"time.column must name the column whose unit is {self.unit}, got nothing")
        return self


class ImplicitPart(SchemaPart):
    """What makes a log of positives alone one to learn from: rows with label 0 are drawn while a run trains, with other items."""

    item: str = Field(min_length=1)
    """The sparse column of the items, as the file calls it."""
    user: str = ""
    """The sparse column of those who chose them: what a user has chosen is not drawn for the user, and held-out rows of a user
    are ranked together. Empty: each row stands for itself."""


class GroupColumn(SchemaPart):
    """The column of the groups within which samples are ranked, such as a user or a query."""

    column: str = ""
    """Empty: rows have no groups."""
    type: Rule = "text"
    """The type of its values, as sparse columns have it: equal values are one group, in whatever file they come."""
