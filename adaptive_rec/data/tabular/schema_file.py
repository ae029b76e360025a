"""The part [file] of a schema: how CSV and TSV files are written, and what the folders of files say."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from adaptive_rec.config.faults import describe_faults
from adaptive_rec.data.tabular.schema_columns import SchemaPart
from adaptive_rec.errors import UsageError


class FileSchema(SchemaPart):
    """How CSV and TSV files are written, and what the folders of files say."""

    delimiter: str = Field("", max_length=1)
    """The character between two fields; by default, and where the first line lacks it, the one that this line has most often, of
    comma, tab, semicolon and bar."""
    encoding: str = "utf-8"
    """Name of the encoding, as Python knows it."""
    escape: str = Field("", max_length=1)
    """The character before a quotation mark that is a part of a quoted field: a backslash as Spark writes it, or a quotation mark
    where marks are doubled. By default found out from each file, where both can be told apart."""
    columns: tuple[str, ...] = Field((), strict=False)
    """The names of the columns of CSV and TSV files whose first line is a row."""
    partitions: tuple[str, ...] = Field((), strict=False)
    """The columns that the names of folders give: of ``day=2024-01-01/part-0.parquet`` it is day."""

    @field_validator("escape")
    @classmethod
    def _check_escape(cls, mark: str) -> str:
        if mark and not (mark.isascii() and mark.isprintable() and not mark.isalnum()):
            raise ValueError(f"must be a sign of ASCII, such as a backslash or a quotation mark, got {mark!r}")
        return mark

    @field_validator("columns", "partitions")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None or (names and not any(names)):
            raise ValueError(f"must have different names, {twice} is listed twice" if twice else "must name columns")
        return names

    @model_validator(mode="after")
    def _check_marks(self) -> FileSchema:
        if self.escape and self.escape == self.delimiter:
            raise ValueError(f"file.escape must be another character than file.delimiter, got {self.escape!r} for both")
        return self

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, name: str) -> str:
        try:
            "".encode(name)
        except LookupError:
            raise ValueError(f"must be an encoding that Python knows, such as utf-8 or latin-1, got {name!r}") from None
        return name


def parse_file_part(values: Any, named: str) -> FileSchema:
    """Check the part [file] of a schema; raises UsageError, which begins with `named`."""
    try:
        return FileSchema.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{named}: {describe_faults(error)}") from None
