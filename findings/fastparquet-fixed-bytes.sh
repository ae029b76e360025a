#!/usr/bin/env bash
# fastparquet 2026.9.0: bytes of a fixed length come back without the zero bytes at their end, so one UUID in 256 is too short.
#
# Guess before the run: a Parquet column of FIXED_LEN_BYTE_ARRAY(16), as pyarrow writes binary(16) and DuckDB a UUID, is read as
# 16 bytes a value by every reader. Seen: fastparquet reads it into NumPy's type S16, which drops zero bytes at the end of a
# value: a UUID that ends in 00 has 15 bytes, the UUID of zeros is empty, and a file that is written from the frame has them
# as byte arrays of varying length. Byte arrays without a fixed length keep their zeros. pyarrow and DuckDB read 16 bytes.
# What it means for whoever joins by such keys: pad to the length of the column, or read with another library.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet fastparquet==2026.9.0 pyarrow==26.0.1 duckdb==2.0.1 pandas==3.1.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

import duckdb
import fastparquet
import pyarrow as pa
import pyarrow.parquet as pq

folder = Path(sys.argv[1])
values = [bytes(range(1, 17)), bytes(range(1, 16)) + b"\0", bytes(range(1, 15)) + b"\0\0", bytes(16)]
table = pa.table({"fixed": pa.array(values, pa.binary(16)), "free": pa.array(values, pa.binary())})
for dictionary in (True, False):
    pq.write_table(table, folder / "keys.parquet", use_dictionary=dictionary)
    frame = fastparquet.ParquetFile(str(folder / "keys.parquet")).to_pandas()
    read = {name: [len(value) for value in frame[name]] for name in frame}
    print(f"dictionary pages {dictionary}: bytes a value as fastparquet reads them: {read}")
    assert read == {"fixed": [16, 15, 14, 0], "free": [16] * 4}, read
    fastparquet.write(str(folder / "again.parquet"), frame)
    again = pq.read_table(folder / "again.parquet")
    print(f"written again: {again.schema.field('fixed').type}, {[len(each.as_py()) for each in again['fixed']]}")
    assert [len(each.as_py()) for each in again["fixed"]] == [16, 15, 14, 0]
    others = pq.read_table(folder / "keys.parquet")["fixed"].to_pylist()
    assert others == values
    assert [row[0] for row in duckdb.sql(f"select fixed from '{folder}/keys.parquet'").fetchall()] == values

duckdb.sql(f"copy (select uuid '00112233-4455-6677-8899-aabbccddee00' as key) to '{folder}/uuid.parquet'")
key = fastparquet.ParquetFile(str(folder / "uuid.parquet")).to_pandas()["key"][0]
print(f"a UUID of DuckDB that ends in 00: {len(key)} bytes")
assert len(key) == 15
PYTHON
