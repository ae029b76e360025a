"""Weights and groups of samples: from the columns of a file, through folders, streams, ranks and policies, into batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, join_batches, take
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.new_rows import KeyedRows, NumberedRows
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare.job import Request, make_job
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.tabular.follow import FollowedSource
from adaptive_rec.data.tabular.handed_on import decode_batch, encode_batch
from adaptive_rec.data.tabular.schema import Schema, parse_schema, schema_of_toml
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.data.tabular.stream import TabularSource
from adaptive_rec.data.weights import WeightFacts, weights_of
from adaptive_rec.errors import ConfigError, DataError, UsageError
from adaptive_rec.policy.batches import repack
from adaptive_rec.runtime.parts import PartOfBatches
from adaptive_rec.runtime.rank_checks import check_data
from adaptive_rec.system.group import ALONE, Group
from tests.doubles.late_threads import LateThreads
from tests.kernels.reference.hash_texts import hash_text

PLAIN: dict[str, Any] = {"label": "label", "dense": ["n"], "sparse": ["user", {"column": "tags", "separator": "|"}]}
BESIDE = {"time": "when", "weight": "w", "class_weight": {"0": 0.5, "1": 4.0}, "group": "q"}
ROWS = 5_000


def table(rows: int = ROWS) -> pa.Table:
    n = np.arange(rows)
    values = {
        "label": n % 2, "n": n, "user": [f"u{k % 7}" for k in n], "tags": ["|".join("abc"[: k % 4]) for k in n],
        "when": (n * 7919) % rows, "w": n % 5, "q": n // 3,
    }  # fmt: skip
    return pa.table(values)


def file_of(path: Path, rows: pa.Table | None = None) -> Path:
    rows = table() if rows is None else rows
    if path.suffix == ".parquet":
        pa.parquet.write_table(rows, path, row_group_size=700)
    else:
        pa.csv.write_csv(rows, path)
    return path


def schema_file(folder: Path) -> Path:
    path = folder / "schema.toml"
    path.write_text(schema_toml(parse_schema(PLAIN | BESIDE, "schema")))
    return path


def made(out: Path, *sources: Path, values: dict[str, Any] | None = None) -> Path:
    schema = parse_schema(PLAIN | BESIDE if values is None else values, "schema")
    prepare_folder(Request(sources, out, schema=schema), lambda progress: None)
    return out


def check(batches: Iterable[Batch]) -> NDArray[np.int64]:
    """Check the weight and group of each sample by its number, which is its dense feature. Returns the numbers."""
    seen = []
    for batch in batches:
        n = batch.dense_BX[:, 0].astype(np.int64)
        assert batch.weights_B is not None
        assert batch.groups_B is not None
        assert batch.weights_B.dtype == np.float32
        assert batch.weights_B.tolist() == (n % 5 * np.where(n % 2, 4.0, 0.5)).tolist()
        keys = {q: hash_text(str(q).encode()) for q in set((n // 3).tolist())}
        assert batch.groups_B.view(np.uint64).tolist() == [keys[q] for q in (n // 3).tolist()]
        seen.append(n)
    return np.concatenate(seen)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_weights_and_groups_stay_with_their_samples(tmp_path: Path, ending: str) -> None:
    path, position = file_of(tmp_path / f"a.{ending}"), Position(0, 1, 0)
    folder = made(tmp_path / "folder", path)
    prepared, whole = f"data.source={folder}", "data.train_range=[0.0,0.9]"
    for settings in ([prepared], [prepared, "data.order=time", "data.shuffle=false"]):
        source = open_source(load_config(None, {}, [*settings, whole]))
        numbers = check(source.train_batches(position, 777))
        assert len(numbers) == 4_500
        assert (np.diff(numbers) != 1).any()
        assert len(check(source.test_batches(300))) == 500
    raw = [f"data.source={path}", f"data.schema_file={schema_file(tmp_path)}", "data.ids=raw", "data.max_table_rows=50", whole]
    source = open_source(load_config(None, {}, raw))
    assert check(source.train_batches(position, 777)).tolist() == list(range(4_500))
    assert check(source.test_batches(300)).tolist() == list(range(4_500, 5_000))
    if ending == "csv":
        followed = FollowedSource(load_config(None, {}, [*raw, "data.follow=true", "data.follow_idle_seconds=0.01"]))
        passed = (decode_batch(encode_batch(batch)) for batch in followed.train_batches(Position(), 777))
        assert check(passed).tolist() == list(range(5_000))


def test_policies_and_ranks_take_join_and_repack_them(tmp_path: Path) -> None:
    raw = ["data.ids=raw", "data.max_table_rows=50", "data.train_range=[0.0,0.9]"]
    named = [f"data.source={file_of(tmp_path / 'a.csv')}", f"data.schema_file={schema_file(tmp_path)}"]
    source = TabularSource(load_config(None, {}, [*named, *raw]))
    batches = list(source.train_batches(Position(), 500))
    assert check([take(batches[2], np.array([7, 3, 300]))]).tolist() == [1007, 1003, 1300]
    assert len(check([join_batches(batches[:3])])) == 1500
    odd = repack(batches, 128, lambda batch: batch.dense_BX[:, 0] % 2 == 1)
    assert check(odd).tolist() == list(range(1, 4_500, 2))
    assert join_batches([batches[0], replace(batches[1], weights_B=None)]).weights_B is None
    part = next(PartOfBatches(source, ALONE).train_batches(Position(), 500))
    assert part.weight_of_all_ranks == float(batches[0].weights_B.sum(dtype=np.float64))
    assert take(part, np.array([1])).weight_of_all_ranks == part.weight_of_all_ranks
    assert replace(batches[0], weights_B=None).weight_of_all_ranks == 500


def test_rows_to_be_scored_have_those_that_the_file_has(tmp_path: Path) -> None:
    path, folder = file_of(tmp_path / "a.csv"), tmp_path / "folder"
    source = PreparedSource(load_config(None, {}, [f"data.source={made(folder, path)}"]))
    more = table(100)
    for columns in ([], ["w"], ["q"], ["w", "q"]):
        new = file_of(tmp_path / "new.parquet", more.drop_columns([*columns, "when"]))
        rows = NumberedRows(source, [new], labelled=True)
        (batch,) = rows.test_batches(1000)
        assert [note.split()[2] for note in rows.lacking] == columns
        assert batch.weights_B is not None
        weights = np.where(np.arange(100) % 2, 4.0, 0.5) * (1 if "w" in columns else np.arange(100) % 5)
        assert batch.weights_B.tolist() == weights.tolist()
        assert (batch.groups_B is None) == ("q" in columns)
    (batch,) = NumberedRows(source, [new], labelled=False).test_batches(1000)
    assert batch.weights_B is None
    assert batch.groups_B is None
    named = [f"data.source={path}", f"data.schema_file={schema_file(tmp_path)}", "data.ids=raw", "data.max_table_rows=50"]
    config = load_config(None, {}, named)
    columns_ = TabularSource(config).trained_columns()
    for labelled in (True, False):
        rows_ = KeyedRows(config, columns_, [path], labelled)
        batch = next(rows_.test_batches(100))
        if labelled:
            check([batch])
        assert (batch.weights_B is None, rows_.lacking) == (not labelled, [])


def test_a_schema_without_them_has_the_same_text_and_job(tmp_path: Path) -> None:
    schema = parse_schema(PLAIN, "schema")
    assert not set(schema.model_dump()) & {"weight", "class_weight", "group"}
    with_them = parse_schema(PLAIN | BESIDE, "schema")
    assert schema_of_toml(schema_toml(with_them).encode(), "text") == with_them
    again = Schema.model_validate_json(with_them.model_dump_json())
    assert (again.weight, again.class_weight, again.group) == (with_them.weight, with_them.class_weight, with_them.group)
    path = file_of(tmp_path / "a.csv")
    jobs = [make_job(Request((path,), tmp_path / "out", schema=each)) for each in (schema, with_them)]
    assert jobs[0].schema_sha256 != jobs[1].schema_sha256
    meta = load_meta(made(tmp_path / "plain", path, values=PLAIN))
    assert meta.beside == ()
    assert [file.name for file in meta.sources[0].files if "weights" in file.name or "groups" in file.name] == []
    assert '"weight"' not in (tmp_path / "plain" / "meta.json").read_text()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"weight": "label"}, "weight must be another column"),
        ({"class_weight": {"0": -1.0}}, "must be finite numbers of at least 0"),
        ({"class_weight": {"0": 0.0, "1": 0.0}}, "not all of them 0"),
        ({"class_weight": {"0": float("nan")}}, "must be a finite number"),
        ({"class_weight": {"2": 1.0}}, "class_weight"),
        ({"group": {"column": "q", "type": "date"}}, "group.type"),
        ({"group": "label"}, "group must be another column"),
    ],
)
def test_bad_schemas_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_schema(PLAIN | values, "schema")


@pytest.mark.parametrize("bad", ["-1", "", "nan", "inf", "many", "1e39"])
def test_a_weight_that_is_none_makes_a_row_malformed(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"label,n,user,tags,w\n0,1,u,a,2\n1,2,u,a,{bad}\n1,3,u,b,0\n")
    with pytest.raises(DataError, match=r"row 2, column w: must be a number of at least 0, finite in 32 bits"):
        made(tmp_path / "folder", path, values=PLAIN | {"weight": "w"})
    schema = parse_schema(PLAIN | {"weight": "w"}, "schema")
    request = Request((path,), tmp_path / "skips", schema=schema, on_bad_row="skip")
    meta = prepare_folder(request, lambda progress: None)
    assert (meta.rows, meta.sources[0].bad_of) == (2, {"w": 1})


def test_options_name_the_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path / "a.csv", table(400))
    options = ["--label", "label", "--weight", "w", "--group", "user", "--json"]
    assert main(["data", "prepare", str(path), "--out", str(tmp_path / "out"), *options]) == 0
    text = (tmp_path / "out.schema.toml").read_text()
    assert 'weight = "w"' in text
    assert 'group = "user"' in text
    assert "#   w: the weight of the rows (--weight)" in text
    assert '"user",' in text
    meta = load_meta(tmp_path / "out")
    assert meta.beside == ("weights_B", "groups_B")
    assert "w" not in meta.dense_names
    capsys.readouterr()
    for words, option in (
        ("--weight must be a column of", ["--weight", "ww"]),
        ("--group must be a column of", ["--group", "nobody"]),
        ("--weight must be another column than the label", ["--weight", "label"]),
        ("--group must be another column than the label", ["--group", "label"]),
    ):
        out = tmp_path / f"not-{option[1]}"
        assert main(["data", "prepare", str(path), "--out", str(out), "--label", "label", *option]) == 2
        assert words in capsys.readouterr().err


def test_a_source_has_the_facts_of_its_training_weights(tmp_path: Path) -> None:
    path, numbers = file_of(tmp_path / "a.csv"), np.arange(4_500)
    weights_B = numbers % 5 * np.where(numbers % 2, 4.0, 0.5)
    shuffled, halved = f"data.source={made(tmp_path / 'folder', path)}", "data.train_range=[0.0,0.9]"
    raw = [f"data.source={path}", f"data.schema_file={schema_file(tmp_path)}", "data.ids=raw", "data.max_table_rows=50"]
    for settings in ([shuffled], raw):
        found = weights_of(open_source(load_config(None, {}, [*settings, halved])))
        assert found is not None
        assert (found.samples, found.sum, found.low, found.high) == (4_500, weights_B.sum(), 0.0, 16.0)
        assert found.text == "column w, label 0 x 0.5, label 1 x 4: 20,250 over 4,500 training rows, from 0 to 16"
    followed = open_source(load_config(None, {}, [*raw, "data.follow=true"]), trains=True)
    assert weights_of(followed) == WeightFacts("w", {"0": 0.5, "1": 4.0})
    assert weights_of(followed).figures() == {"column": "w", "classes": {"0": 0.5, "1": 4.0}}  # type: ignore[union-attr]
    plain = open_source(load_config(None, {}, [f"data.source={made(tmp_path / 'plain', path, values=PLAIN)}"]))
    assert weights_of(plain) is None


def test_weights_that_are_all_0_are_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.csv", table(400).append_column("none", pa.array(np.zeros(400))))
    folder = made(tmp_path / "folder", path, values=PLAIN | {"weight": "none"})
    with pytest.raises(DataError, match=r"weights must not be 0 for all training rows, those of column none are"):
        open_source(load_config(None, {}, [f"data.source={folder}"]))
    weights_R = np.memmap(folder / "a_weights.npy", np.float32, "r+", 128)
    weights_R[7] = -1
    weights_R.flush()
    with pytest.raises(DataError, match="weights must be finite and at least 0"):
        open_source(load_config(None, {}, [f"data.source={folder}"]))


def test_ranks_with_other_weights_are_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "folder", file_of(tmp_path / "a.csv"))
    config = load_config(None, {}, [f"data.source={folder}"])

    def of_rank(group: Group) -> None:
        source = open_source(config)
        if group.rank:
            change = source.train_batches
            source.train_batches = lambda *place: (  # type: ignore[method-assign]
                replace(batch, weights_B=batch.weights_B + np.float32(1)) for batch in change(*place)
            )
        check_data(group, source, config)

    with pytest.raises(ConfigError, match="the sum of the first batch's weights must be the same on all ranks"):
        LateThreads.train(2, of_rank, seed=1)
