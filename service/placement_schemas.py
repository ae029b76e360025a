"""Models of the answers on the placement, by table and by row, for the API's description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr

from adaptive_rec.service.documented import Answer, example


class TablePlacement(Answer):
    """Rows of one table by class. Stale rows are hot rows too; those in host memory, on the disk and never written are cold."""

    index: int
    table: str
    rows: int
    dim: int
    hot: int
    stale: int
    cold: int
    memory: Annotated[
        int | None, Field(description="Cold rows in host memory; null unless hot rows are on a device and others on a disk")
    ]
    disk: Annotated[int | None, Field(description="Cold rows on the disk; null where all are in memory, or the run has ended")]
    unwritten: Annotated[
        int | None, Field(description="Cold rows that were never written, which have their first value; null as disk")
    ]
    device_bytes: int
    hot_lookup_ratio: float


class Placement(Answer):
    version: int
    step: int
    device_bytes: Annotated[int, Field(description="Device memory taken, including free slots")]
    budget_bytes: Annotated[int, Field(description="Budget that the policy in effect requests")]
    known: Annotated[bool, Field(description="Whether single rows are known: while it trains, then from its newest checkpoint")]
    checkpoint: Annotated[str | None, Field(description="The checkpoint that rows are of; null while the run trains")]
    raw_ids: Annotated[bool, Field(description="Whether ids are raw: /placement/{table}/keys/{key} finds the row of one")]
    tables: list[TablePlacement]


RowClass = Annotated[
    Literal["hot", "stale", "cold", "memory", "disk", "unwritten"],
    Field(
        alias="class",
        description="Where cold rows lie on a disk, a cold row is there, or was never written and has its first value, or, in a "
        "run on a device, is in host memory",
    ),
]


class Row(Answer):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"id": 7, "class": "hot", "slot": 3, "estimate": 12.5, "movement": 0.0004, "value": "item 17"}
            ]
        }
    )
    id: int
    class_: RowClass
    slot: int | None
    estimate: Annotated[float, Field(description="Lookups estimated by the sketch when the last window ended")]
    movement: Annotated[float | None, Field(description="Last measured movement of a hot row; null if it is not known")]
    value: Annotated[
        str | None,
        Field(
            description="What the id was in the data (at most 200 characters); null where the run's data has no values of ids, "
            "and for id 0, missing values, and id 1, all rare ones"
        ),
    ]


class RowPage(Answer):
    index: int
    table: str
    version: int
    rows: list[Row]


class RowList(RowPage):
    pass


class PlacementPage(RowPage):
    class_: RowClass
    cursor: str | None


class ClassChange(BaseModel):
    """A change between memory and elsewhere: rows on a disk and those never written are cold here."""

    step: int
    from_: Annotated[Literal["hot", "stale", "cold"], Field(alias="from")]
    to: Literal["hot", "stale", "cold"]


class RowDetail(Row):
    index: int
    table: str
    last_change: ClassChange | None
    why: Annotated[str, Field(description="Why it is hot, stale or cold, in a sentence for people")]


class KeyDetail(RowDetail):
    """A row by a raw id. `id` is the row's number; the other facts are the row's."""

    key: Annotated[str, Field(description="The raw id as text: JSON readers may round numbers of 64 bits")]
    own_row: Annotated[bool, Field(description="Whether the row is this id's own; otherwise other ids read it too")]
    counted: Annotated[
        int,
        Field(description="Lookups while the id had no row of its own, as the sketch remembers them; 0 at knobs.admit_after=1"),
    ]


def whole(value: Any) -> Any:
    """Turn 3.0 into 3: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[StrictInt, BeforeValidator(whole)]


class RowQuery(BaseModel):
    """Rows of one table, by id."""

    model_config = ConfigDict(extra="forbid", **example(table=0, ids=[0, 1]))
    table: Annotated[Whole | StrictStr, Field(description="Index of the table, or its exact name")]
    ids: Annotated[list[Annotated[Whole, Field(ge=0, le=2**53)]], Field(max_length=4096)]
