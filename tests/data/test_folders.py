"""Folders of files of rows, files without a header, and marks escaped by a backslash: no row is lost or merged in silence."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.data import lines as file_lines
from adaptive_rec.data.prepare.job import Request, make_job
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.delimited import DelimitedFile
from adaptive_rec.data.tabular.dialect import is_row
from adaptive_rec.data.tabular.file_rows import FileRows
from adaptive_rec.data.tabular.files import find_files
from adaptive_rec.data.tabular.first_rows import STRICT, Reading
from adaptive_rec.data.tabular.infer import Inferred, infer
from adaptive_rec.data.tabular.open_rows import with_rows
from adaptive_rec.data.tabular.schema import Schema, parse_schema
from adaptive_rec.data.tabular.schema_file import FileSchema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.offline.export.model_files import table_of

HEAD = "click,user,city\n"


def lines(count: int) -> str:
    return "".join(f"{n % 2},u{n % 7},c{n % 5}\n" for n in range(count))


def table(count: int, **more: Any) -> pa.Table:
    return pa.table({"click": [n % 2 for n in range(count)], "user": [n // 2 for n in range(count)], **more})


def written(folder: Path, files: dict[str, str | bytes | pa.Table]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pyarrow.parquet.write_table(content, path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def inferred_of(data: Path, label: str = "click", file: FileSchema | None = None) -> Inferred:
    found = find_files(data)
    file = (file or FileSchema()).model_copy(update={"partitions": found.partitions})
    return infer(found.files[0], label, STRICT, found.files[1:], file)


def rows_of(data: Path, schema: Schema | None = None) -> FileRows:
    return FileRows(find_files(data).files, schema or inferred_of(data).schema, False)


# Which files ----------------------------------------------------------------------------------------------------------


def test_hidden_names_are_left_out_and_told(tmp_path: Path) -> None:
    hidden = {".part-0.csv": HEAD, "_tmp.csv": HEAD, "_temporary/0/part-0.csv": HEAD, "part-1.csv._COPYING_": HEAD}
    marks = {"_SUCCESS": "", ".part-0.csv.crc": "x", "_committed_1": "x"}
    others = {"README.md": "x", "about.json": '{"a": 1}\n'}
    parts = {"part-0.csv": HEAD + lines(9), "b/part-10.csv": HEAD + lines(3), "part-2.csv": HEAD + lines(2), "empty.csv": ""}
    found = find_files(written(tmp_path, hidden | marks | others | parts))
    assert [str(path.relative_to(tmp_path)) for path in found.files] == ["b/part-10.csv", "part-0.csv", "part-2.csv"]
    assert found.left_out == (
        "4 hidden files (.part-0.csv, _temporary, _tmp.csv, part-1.csv._COPYING_), 2 other files (README.md, about.json), "
        "1 file without a byte"
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"_delta_log/0.json": "{}", "a.parquet": table(3)}, "is a Delta table, .*delta_scan"),
        ({"t/_delta_log/0.json": "{}", "t/a.parquet": table(3)}, "t is a Delta table"),
        ({"metadata/v1.metadata.json": "{}", "data/a.parquet": table(3)}, "is an Iceberg table, .*iceberg_scan"),
        ({".hoodie/hoodie.properties": "", "a.parquet": table(3)}, "is a Hudi table"),
        ({"a.csv": HEAD, "b.parquet": table(3)}, "has both"),
        ({"a.csv": HEAD, "b": table(3)}, "has both"),
        ({"a.orc": b"ORC\x0a\x01"}, "a.orc is an ORC file"),
        ({"a.txt": "x\n"}, "has none; it has a.txt"),
    ],
)
def test_folders_that_are_no_rows_are_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_files(written(tmp_path, files))


def test_files_of_other_names_are_found_by_what_they_hold(tmp_path: Path) -> None:
    assert len(rows_of(written(tmp_path / "a", {"part-00000": HEAD + lines(4), "000001_0": HEAD + lines(5)}))) == 9
    assert len(rows_of(written(tmp_path / "b", {"x": table(4), "y.pq": table(5)}))) == 9
    json = "".join(f'{{"click": {n % 2}, "user": {n % 3}}}\n' for n in range(6))
    assert len(rows_of(written(tmp_path / "c", {"part-0.json": json}))) == 6


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    written(tmp_path / "elsewhere", {"b.csv": HEAD + lines(2)})
    data = written(tmp_path / "log", {"a.csv": HEAD + lines(3)})
    (data / "linked").symlink_to(tmp_path / "elsewhere")
    (data / "loop").symlink_to(data)
    (data / "gone.csv").symlink_to(tmp_path / "none")
    found = find_files(data)
    assert ([path.name for path in found.files], found.left_out) == (["a.csv", "b.csv"], "1 other file (gone.csv)")


# Partitions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_folders_of_hive_give_a_column(tmp_path: Path, form: str) -> None:
    part = HEAD + lines(4) if form == "csv" else table(4)
    folders = ("kind=a%20b%2Fc", "kind=x", "kind=__HIVE_DEFAULT_PARTITION__")
    data = written(tmp_path / "k=v" / "log", {f"{folder}/hour={n:02}/part-0": part for n, folder in enumerate(folders)})
    inferred = inferred_of(data)
    assert inferred.schema.file.partitions == ("kind", "hour")
    rows = rows_of(data, parse_schema({"label": "click", "sparse": ["kind"], "file": {"partitions": ["kind"]}}, "s"))
    assert (len(rows), rows.columns[0].name) == (12, "kind")
    out = tmp_path / "out"
    request = Request(tuple(find_files(data).files), out, schema=inferred.schema)
    prepare_folder(request, lambda progress: None)
    assert [source.name for source in load_meta(out).sources] == [
        "kind=__HIVE_DEFAULT_PARTITION__.hour=02.part-0", "kind=a%20b%2Fc.hour=00.part-0", "kind=x.hour=01.part-0",
    ]  # fmt: skip
    values = pa.ipc.open_file(out / "kind_values.arrow").read_all()
    assert set(values[0].to_pylist()) == {"a b/c", "x"}


def test_folders_of_hive_are_looked_at_as_other_files_are(tmp_path: Path) -> None:
    """Without a header, and in another encoding where malformed rows are skipped: no row is lost in silence."""
    bare = written(tmp_path / "bare", {f"day={day}/part-0.csv": lines(40) for day in (1, 2)})
    with pytest.raises(DataError, match=r"line 1: must name the columns, .* looks like a row"):
        inferred_of(bare)
    latin = "".join(f"{n % 2},é{n % 7},ü{n % 5}\n" for n in range(40)).encode("latin-1")
    data = written(tmp_path / "latin", {f"day={day}/part-0.csv": HEAD.encode() + latin for day in (1, 2)})
    found = find_files(data)
    reading, file = Reading(skip_bad_rows=True), FileSchema(partitions=found.partitions)
    assert infer(found.files[0], "click", reading, found.files[1:], file).schema.file.encoding == "latin-1"


def test_a_column_that_only_a_folder_names_is_told(tmp_path: Path) -> None:
    data = written(tmp_path, {"day=1/a.csv": HEAD + lines(3)})
    schema = parse_schema({"label": "click", "sparse": ["user", "day"]}, "s")
    with pytest.raises(DataError, match=r'write partitions = \["day"\] under \[file\]'):
        rows_of(data, schema)


# Parts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("first", ["more", "less"])
def test_parts_with_other_columns_are_a_union(tmp_path: Path, form: str, first: str) -> None:
    more: Any = HEAD + lines(6) if form == "csv" else table(6, city=["c1", "c2"] * 3)
    less: Any = "user,click\nu1,0\nu2,1\n" if form == "csv" else table(2)
    parts = {"a": more, "b": less} if first == "more" else {"a": less, "b": more}
    data = written(tmp_path, {f"{name}.{form}": content for name, content in parts.items()})
    inferred = inferred_of(data)
    assert {column.column for column in inferred.schema.sparse} == {"city", "user"}
    assert inferred.notes == ["city is missing in 1 of 2 files: its values are missing there"]
    rows = rows_of(data, inferred.schema)
    city = [column.name for column in rows.columns].index("city")
    keys = np.concatenate([part.ids_BC[:, city] for part in rows.read(0)])
    missing = np.iinfo(np.int64).min
    lacks = keys[:2] if first == "less" else keys[6:]
    assert (len(keys), set(lacks.tolist()), np.count_nonzero(keys == missing)) == (8, {missing}, 2)


def test_types_that_differ_are_joined_or_told(tmp_path: Path) -> None:
    one = table(4, price=[1.5, 2.5, 3.5, 4.5], code=[1, 2, 3, 1], tags=[1, 2, 3, 4], none=pa.nulls(4))
    other = pa.table(
        {
            "click": pa.array([0, 1, 0, 1], pa.int8()),
            "user": pa.array([1, 2, 3, 1], pa.int32()),
            "price": pa.array([7, 8, 9, 7], pa.int32()),
            "code": ["1", "x", "x", "1"],
            "tags": [[1], [2], [3], []],
            "none": ["n", "n", "m", "m"],
        }
    )
    for folder, (a, b) in {"ab": (one, other), "ba": (other, one)}.items():
        data = written(tmp_path / folder, {"a.parquet": a, "b.parquet": b})
        inferred = inferred_of(data)
        types = {column.column: column.type for column in inferred.schema.sparse}
        assert types == {"user": "", "code": "text", "none": ""} | ({"price": ""} if "price" in types else {})
        assert "in one file and" in inferred.unused["tags"]
        rows = rows_of(data, inferred.schema)
        assert len(rows) == 8
    schema = parse_schema({"label": "click", "sparse": ["tags"]}, "s")
    with pytest.raises(DataError, match=r"tags has lists in .*a\.parquet and single values in .*b\.parquet"):
        rows_of(tmp_path / "ba", schema)


@pytest.mark.parametrize("empty", [b"", b"\n", b"\xef\xbb\xbf\n", gzip.compress(b""), bz2.compress(b" \n"), HEAD[:-1].encode()])
def test_parts_of_nothing_are_no_error(tmp_path: Path, empty: bytes) -> None:
    """Packed ones, and one with names alone whose line does not end, too."""
    data = written(tmp_path, {"0.csv": empty, "1.csv": HEAD + lines(5), "2.csv": empty})
    assert len(rows_of(data)) == 5
    with pytest.raises(DataError, match="must hold at least one row|must name the columns, it is empty|which is empty"):
        inferred_of(tmp_path / "0.csv")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_empty_parts_are_no_error(tmp_path: Path, form: str) -> None:
    empty: Any = HEAD if form == "csv" else table(0)
    full: Any = HEAD + lines(5) if form == "csv" else table(5)
    data = written(tmp_path / "log", {f"0.{form}": empty, f"1.{form}": full, f"2.{form}": "", f"3.{form}": empty})
    inferred = inferred_of(data)
    assert len(rows_of(data, inferred.schema)) == 5
    files = with_rows(find_files(data).files, inferred.schema.file)
    assert [path.name for path in files] == [f"1.{form}"]
    prepare_folder(Request(tuple(files), tmp_path / "out", schema=inferred.schema), lambda progress: None)
    assert load_meta(tmp_path / "out").rows == 5


def test_a_part_without_the_label_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path, {"a.csv": HEAD + lines(4), "b.csv": "user,city\nu1,c1\n"})
    with pytest.raises(DataError, match=r"b\.csv must have the column click of the schema"):
        rows_of(data)


def test_left_out_rows_are_counted_by_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("click,user,price\n1,u,2\n7,u,1\n0,u\n1,u,x\n0,u,y\n7,u,z\n1,u,1\n")
    schema = parse_schema({"label": "click", "sparse": ["user"], "dense": ["price"]}, "s")
    prepare_folder(Request((path,), tmp_path / "out", schema=schema, on_bad_row="skip"), lambda progress: None)
    meta = load_meta(tmp_path / "out")
    assert (meta.rows, meta.bad_rows, dict(meta.sources[0].bad_of)) == (2, 5, {"row": 1, "click": 2, "price": 2})
    assert meta.left_out == ", 5 malformed left out (2 by click, 2 by price, 1 by their fields)"


def test_the_sum_of_a_schema_is_that_of_older_versions(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEAD + lines(2))
    of = {}
    for name, more in {"plain": {}, "escape": {"escape": "\\"}, "columns": {"columns": ["click", "user", "city"]}}.items():
        schema = parse_schema({"label": "click", "sparse": ["user"], "file": more}, "s")
        of[name] = make_job(Request((path,), tmp_path / "out", schema=schema)).schema_sha256
    assert len(set(of.values())) == 3
    assert of["plain"] == "c07389a5cabaef91b9134854a2bc4a5841e5a72030b6c1e0001604c36a50a5c1"  # of commit b5e6efeb


# Headers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_header"),
    [
        ("1,17,41\n0,3,2\n1,4,5\n0,2,2\n", False),
        ("1,1,41\n0,3,2\n1,4,5\n0,2,2\n", False),
        ("0\tu3\t2024-01-01\n1\tu3\t2024-01-02\n0\tu3\t2024-02-01\n", False),
        ("1,a3f9c2e1,true\n0,b3f9c2e7,false\n1,c3f9c2e8,true\n", False),
        ("1,Toy Story,41\n0,Heat,2\n1,Sabrina,5\n", False),
        ("click,title,city\n0,Heat,b\n1,Sabrina,c\n", True),
        ("label,0,1,2\n0,3.5,2,1\n1,4.5,5,1\n", True),
        ("0,1,2\n3,3.5,2\n4,4.5,5\n", True),
        (",click,user\n0,1,3\n1,0,4\n2,1,5\n", True),
        ("click,user\na,b\nc,d\ne,f\n", True),
        ("click,user\n1,b\n", True),
        ("user_id:token\tlabel:float\nu\t1.0\nv\t0.0\n", True),
    ],
)
def test_a_first_line_that_is_a_row_is_found_out(tmp_path: Path, text: str, is_header: bool) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    fields, *rows = [line.split("\t" if "\t" in text else ",") for line in text.splitlines()]
    assert is_row(fields, list(zip(*rows, strict=True))) is (not is_header) or len(rows) < 2
    if not is_header:
        with pytest.raises(DataError, match=r'a\.csv, line 1: must name the columns, .*columns = \["label"'):
            infer(path, fields[0])


def test_columns_of_the_schema_name_the_fields_of_a_file_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(lines(9))
    file = FileSchema(columns=("click", "user", "city"))
    schema = infer(path, "click", file=file).schema
    assert 'columns = ["click", "user", "city"]' in schema_toml(schema)
    assert len(FileRows([path], schema, False)) == 9
    with_head = written(tmp_path, {"b.csv": HEAD + lines(9)}) / "b.csv"
    assert len(FileRows([with_head], schema, False)) == 9
    with pytest.raises(DataError, match="must have the 2 fields that columns names under .file. of the schema, got 3"):
        DelimitedFile(path, FileSchema(columns=("click", "user")), False)
    path.write_text("u1,c1\nu2,c2\n")
    assert DelimitedFile(path, file, False, label="click").names == ("user", "city")


# Marks that are escaped -----------------------------------------------------------------------------------------------

ESCAPED = '"24\\""'
STANDARD = ('"C:\\"', '"{""a"": ""x\\""y""}"', '"plain ""one"""')


def texts(path: Path, file: FileSchema) -> list[list[str]]:
    opened = DelimitedFile(path, file, False)
    return [list(row.values()) for batch in opened.batches(opened.names) for row in batch.to_pylist()]


def rows_with(count: int, at: Sequence[int], text: str) -> str:
    return "click,t,age\n" + "".join(f"{n % 2},{text if n in at else 'plain'},{n % 50}\n" for n in range(count))


@pytest.mark.parametrize("at", [[5], [0, 9], [99], [3, 4, 50], list(range(100))])
@pytest.mark.parametrize("text", [ESCAPED, '"say \\"hi\\", you"', '"\\"\\n"', '"a,\\"\nb"'])
def test_escapes_by_a_backslash_are_found_out(tmp_path: Path, at: list[int], text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(rows_with(100, at, text))
    inferred = infer(path, "click")
    assert inferred.schema.file.escape == "\\"
    assert 'escape = "\\\\"' in schema_toml(inferred.schema)
    found = texts(path, inferred.schema.file)
    assert len(found) == 100
    assert {row[1] for row in found} <= {"plain", text[1:-1].replace('\\"', '"')}


@pytest.mark.parametrize("text", STANDARD)
def test_texts_with_backslashes_and_doubled_marks_are_read_as_before(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(rows_with(100, [1, 50, 99], text))
    inferred = infer(path, "click")
    assert inferred.schema.file.escape == ""
    for escape in ("", '"'):
        found = texts(path, FileSchema(escape=escape))
        assert (len(found), found[1][1]) == (100, text[1:-1].replace('""', '"'))


@pytest.mark.parametrize("at", [[200], [200, 210], [200, 280]])
def test_an_escape_behind_the_first_rows_is_refused_with_row_and_remedy(
    tmp_path: Path, at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 1000)
    path = tmp_path / "a.csv"
    path.write_text(rows_with(300, at, ESCAPED))
    with pytest.raises(DataError, match='write escape = "') as caught:
        texts(path, FileSchema())
    assert len(at) == 1 or "row 201:" in str(caught.value)
    assert len(texts(path, FileSchema(escape="\\"))) == 300


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.sampled_from('ab"\\,\n '), max_size=5), min_size=1, max_size=12))
def test_no_row_of_spark_is_lost_or_merged_in_silence(fields: list[str]) -> None:
    quoted = ['"' + field.replace("\\", "\\\\").replace('"', '\\"') + '"' for field in fields]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text("click,t,age\n" + "".join(f"1,{field},2\n" for field in quoted), newline="")
        try:
            found = texts(path, FileSchema())
        except DataError as error:
            assert "escape" in str(error)  # noqa: PT017
        else:
            assert len(found) == len(fields)
        assert [row[1] for row in texts(path, FileSchema(escape="\\"))] == fields


@pytest.mark.parametrize("text", [*STANDARD, ESCAPED, '"say \\"hi\\", you"', '"a\\\\",'.rstrip(",")])
@pytest.mark.parametrize("escape", ["", "\\"])
def test_an_exported_model_reads_the_same_fields(tmp_path: Path, text: str, escape: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(rows_with(40, [1, 20], text))
    if escape and text in STANDARD:
        return
    found = texts(path, FileSchema(escape=escape))
    assert [list(row) for row in zip(*table_of(str(path), escape=escape).values(), strict=True)] == found


@pytest.mark.parametrize("known", ["\t", ";", ","])
@pytest.mark.parametrize("mark", ["\t", ";", ",", "|"])
@pytest.mark.parametrize("names", [(), ("user", "click", "city")])
def test_a_file_may_have_another_delimiter_than_those_that_were_trained_on(
    tmp_path: Path, known: str, mark: str, names: tuple[str, ...]
) -> None:
    """The delimiter of the first files stands in an inferred schema."""
    path, schema = tmp_path / "a.csv", FileSchema(delimiter=known, columns=names)
    path.write_text("".join(mark.join(row) + "\n" for row in [*[("user", "click", "city")] * (not names), ("u1", "0", "c1")]))
    assert texts(path, schema) == [["u1", "0", "c1"]]
    assert table_of(str(path), known, columns=names)["city"] == ["c1"]


def test_an_exported_model_reads_files_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    names = ("user", "click", "city")
    path.write_text("u1,0,c1\nu2,1,c2\n")
    assert list(table_of(str(path), columns=names, label="click")) == list(names)
    path.write_text("u1,c1\nu2,c2\n")
    assert table_of(str(path), columns=names, label="click") == {"user": ["u1", "u2"], "city": ["c1", "c2"]}
    path.write_text("user,click,city\nu1,0,c1\n")
    assert table_of(str(path), columns=names, label="click")["user"] == ["u1"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"escape": "a"}, "file.escape: must be a sign of ASCII"),
        ({"escape": ";", "delimiter": ";"}, "another character than file.delimiter"),
        ({"columns": ["a", "a"]}, "file.columns: must have different names, a is listed twice"),
    ],
)
def test_parts_of_a_schema_that_cannot_be(part: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_schema({"label": "click", "sparse": ["user"], "file": part}, "s")
