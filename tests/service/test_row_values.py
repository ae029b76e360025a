"""Ids are shown as they were in the data, where the run's prepared folder has the values of its ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepared import value_files
from adaptive_rec.kernels import number_keys
from adaptive_rec.service import placement


def write_values(path: Path, values: list[Any]) -> None:
    """Write a file of values in batches of three, as `data prepare` writes one for each block."""
    with pa.ipc.new_file(path, pa.schema([("value", pa.array(values).type)])) as writer:
        for start in range(0, len(values), 3):
            writer.write_batch(pa.record_batch([pa.array(values[start : start + 3])], names=["value"]))


@pytest.fixture
def named_client(tmp_path: Path, make_run: Callable[..., Any], client_on: Callable[[Any], Any]) -> Any:
    """A run with three tables: texts, large numbers, and one whose file is gone."""
    run = make_run(tmp_path, ("user", 20, 4), ("item", 20, 4), ("old", 20, 4))
    write_values(tmp_path / "user_values.arrow", [f"user {n}" for n in range(17)] + ["x" * 1000])
    write_values(tmp_path / "item_values.arrow", [2**60 + n for n in range(18)])
    for table in run.tables:
        table["values"] = str(tmp_path / f"{table['name']}_values.arrow")
    return client_on(run)


def test_the_file_begins_with_the_id_that_the_data_gives_first() -> None:
    assert placement.FIRST_ID == number_keys.FIRST_ID


def test_rows_come_with_their_values(named_client: Any) -> None:
    row = named_client.get("/api/v1/placement/user/rows/5").json()
    assert (row["id"], row["value"]) == (5, "user 3")
    listed = named_client.post("/api/v1/placement/query", json={"table": "item", "ids": [0, 1, 2, 19]}).json()["rows"]
    assert [each["value"] for each in listed] == [None, None, str(2**60), str(2**60 + 17)]
    for wanted in ("hot", "cold"):
        for each in named_client.get(f"/api/v1/placement/user?class={wanted}").json()["rows"]:
            id, value = each["id"], each["value"]
            assert value == (None if id < 2 else "x" * placement.LONGEST if id == 19 else f"user {id - 2}")


def test_a_table_without_its_file_has_rows_without_values(named_client: Any, client: Any) -> None:
    assert named_client.get("/api/v1/placement/old/rows/5").json()["value"] is None
    assert client.get("/api/v1/placement/0/rows/5").json()["value"] is None


def test_a_run_names_the_files_of_tables_that_are_not_cut(tmp_path: Path) -> None:
    rows = [f"{n % 9},{n % 50},{n % 2}" for n in range(400)]
    (tmp_path / "rows.csv").write_text("\n".join(["user,item,label", *rows]) + "\n")
    words = ["data", "prepare", str(tmp_path / "rows.csv"), "--label", "label", "--out", str(tmp_path / "folder")]
    assert main(words) == 0
    settings = ["run.steps=2", f"data.source={tmp_path / 'folder'}"]
    small = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", "clicks_small", *small, "--no-serve", "--out", str(tmp_path / "run")]) == 0
    tables = json.loads((tmp_path / "run" / "run.json").read_text())["tables"]
    assert {table["name"]: table["values"] for table in tables} == {
        name: str(tmp_path / "folder" / f"{name}_values.arrow") for name in ("user", "item")
    }
    cut = open_source(load_config("clicks_small", {}, [*settings, "data.max_table_rows=20"]))
    assert value_files(cut).keys() == {"user"}
    assert value_files(open_source(load_config("tiny", {}))) == {}
