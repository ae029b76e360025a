"""What a file holds, by its first bytes, whatever its name: how it is packed, and in which format its rows are.

Formats that are not read are named, with the shortest way from them to Parquet.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import lru_cache
from itertools import islice
from pathlib import Path

from adaptive_rec.data.packed import PACKED_NAMES, NotOneFile, packing, unpacked
from adaptive_rec.errors import DataError

START_BYTES = 1 << 16
LEAST_TAR_BYTES = 262
TEXT, PARQUET, ARROW, ARROW_STREAM, JSON_LINES = "text", "parquet", "arrow", "arrow stream", "json lines"
BINARY = (PARQUET, ARROW, ARROW_STREAM)
NAMES = {PARQUET: "a Parquet file", ARROW: "an Arrow file", ARROW_STREAM: "an Arrow stream", JSON_LINES: "a JSON Lines file"}
"""Formats that are read, but for CSV and TSV, as they are called in messages."""
PANDAS = "python -c \"import pandas; pandas.{read}.to_parquet('{out}')\""
ARROW_ONE = "python -c \"from pyarrow import {module} as x, parquet; parquet.write_table({read}, '{out}')\""
DUCKDB = "duckdb -c \"COPY (FROM {read}) TO '{out}'\""
WAYS_OUT = {
    "an ORC file": ARROW_ONE.format(module="orc", read="x.read_table('{path}')", out="{out}"),
    "an Avro file": DUCKDB.format(read="read_avro('{path}')", out="{out}"),
    "a Feather V1 file": ARROW_ONE.format(module="feather", read="x.read_table('{path}')", out="{out}"),
    "a NumPy file (.npy)": PANDAS.format(read="DataFrame(__import__('numpy').load('{path}')).rename(columns=str)", out="{out}"),
    "a NumPy archive (.npz)": PANDAS.format(read="DataFrame(dict(__import__('numpy').load('{path}')))", out="{out}"),
    "a pickle": PANDAS.format(read="read_pickle('{path}')", out="{out}") + ", if you trust its source: a pickle can run code",
    "an HDF5 file": PANDAS.format(read="read_hdf('{path}')", out="{out}"),
    "an SQLite database": "duckdb '{path}' -c \"COPY (FROM TABLE_NAME) TO '{out}'\"",
    "an Excel file": PANDAS.format(read="read_excel('{path}')", out="{out}"),
    "a JSON array": DUCKDB.format(read="read_json('{path}')", out="{out}"),
    "a JSON document over several lines": DUCKDB.format(read="read_json('{path}')", out="{out}"),
    "a libsvm file": PANDAS.format(
        read="DataFrame.from_records([dict([('label', w[0]), *(p.split(':') for p in w[1:])]) "
        "for w in map(str.split, open('{path}'))])",
        out="{out}",
    ),
    "a libsvm file of ids": PANDAS.format(
        read="DataFrame([(float(w[0]), [int(p.split(':')[0]) for p in w[1:]]) "
        "for w in map(str.split, open('{path}'))], columns=['label', 'ids'])",
        out="{out}",
    ),
    "a libffm file": PANDAS.format(
        read="DataFrame.from_records([dict([('label', w[0]), *(p.split(':')[:2] for p in w[1:])]) "
        "for w in map(str.split, open('{path}'))])",
        out="{out}",
    ),
    "a TFRecord file": "python -c \"import pandas, tensorflow as tf; pandas.DataFrame([{{k: "
    "list(getattr(f, f.WhichOneof('kind')).value)[0] for k, f in "
    "tf.train.Example.FromString(r.numpy()).features.feature.items()}} for r in tf.data.TFRecordDataset('{path}')])"
    ".to_parquet('{out}')\"",
    "an LZ4 file": "lz4 -d '{path}'",
    "a Snappy file": "python -m snappy -d '{path}' '{out}'",
    "a 7z archive": "7z x '{path}'",
    "a RAR archive": "unrar x '{path}'",
    "a tar archive": "tar xf '{path}', then give the folder or a file of it",
    "a file of compress (.Z)": "uncompress '{path}'",
    "an HTML page": "download the file itself: a server has sent a page in its place",
    "a pointer of Git LFS": "fetch the file itself: git lfs pull",
    "a PDF file": "write its rows as CSV or Parquet",
}
"""What is not read, and the way out. `path` is the file, `out` one beside it that ends in .parquet."""
MAGIC = (
    (b"Obj\x01", "an Avro file"),
    (b"FEA1", "a Feather V1 file"),
    (b"\x93NUMPY", "a NumPy file (.npy)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel file"),
    (b"\x04\x22\x4d\x18", "an LZ4 file"),
    (b"\xff\x06\x00\x00sNaPpY", "a Snappy file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x1f\x9d", "a file of compress (.Z)"),
    (b"version https://git-lfs.github.com/spec/", "a pointer of Git LFS"),
    (b"%PDF-", "a PDF file"),
)
PAIRS = rb"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?(?:[ \t]+qid:[0-9]+)?(?:[ \t]+%s)%s[ \t]*(?:#.*)?"
LIBSVM = re.compile(PAIRS % (rb"[0-9]+:[-+0-9.eE]+", b"*"))
ONES = re.compile(PAIRS % (rb"[0-9]+:1(?:\.0*)?", b"+"))
"""Rows whose values are all 1, as libfm's are: a list of ids each, where a column for each id would be thousands."""
LIBFFM = re.compile(PAIRS % (rb"[0-9]+:[0-9]+:[-+0-9.eE]+", b"*"))
LOOKED_AT_LINES = 20


def kind_of(path: Path) -> str:
    """Return in which format the rows of a file are: one of those that are read. Raises DataError for others, by name, and where
    the file cannot be read. An empty file is text."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"a source must be a readable file, got {str(path)!r}: {error.strerror}") from None
    kind, fault = _judged(str(path), status.st_size, status.st_mtime_ns, status.st_ino)
    if fault:
        raise DataError(fault)
    return kind


def is_served(path: Path) -> bool:
    """Whether a file is of a format that is read."""
    try:
        kind_of(path)
    except DataError:
        return False
    return True


@lru_cache(maxsize=4096)
def _judged(name: str, size: int, changed_ns: int, inode: int) -> tuple[str, str]:
    """Return the format of a file that is read, and an empty text; or why it is not."""
    path = Path(name)
    try:
        with path.open("rb") as file:
            start = file.read(START_BYTES)
            file.seek(max(0, size - 8))
            end = file.read(8)
    except OSError as error:
        return "", f"a source must be a readable file, got {name!r}: {error.strerror}"
    how = "" if kind_of_bytes(start, end) != TEXT else packing(path)
    try:
        if how:
            start, end = b"".join(islice(unpacked(path, how), 1))[:START_BYTES], b""
    except NotOneFile as other:
        return "", _refused(path, str(other))
    except DataError as error:
        return "", str(error)
    found = PARQUET if _is_half_of_parquet(path, start) else kind_of_bytes(start, end)
    if how and found in BINARY:
        return "", f"{path} must be unpacked first: it is {NAMES[found]} within {PACKED_NAMES[how]}"
    if found in NAMES or found == TEXT:
        return found, ""
    return "", _refused(path, found, is_packed=bool(how))


def _refused(path: Path, what: str, is_packed: bool = False) -> str:
    out = path.with_name(path.name + ".parquet")
    quoted = {name: str(value).replace("'", "'\\''") for name, value in (("path", path), ("out", out))}
    first = "unpack it, then " if is_packed and what not in ("a tar archive", "an HTML page") else ""
    way = first + WAYS_OUT.get(what, "unpack it, and give one file, or the folder").format(**quoted)
    return f"--data must be CSV, TSV, Parquet, Arrow or JSON Lines, {shlex.quote(str(path))} is {what}; the way out: {way}"


def _is_half_of_parquet(path: Path, start: bytes) -> bool:
    """Whether a file begins as a Parquet file and is called so, whatever its end is."""
    return path.suffix in (".parquet", ".pq") and start.startswith(b"PAR1")


def kind_of_bytes(start: bytes, end: bytes = b"") -> str:
    """Return the format of a file by its first bytes and its last ones; text where nothing else is recognised."""
    if start[:4] in (b"PAR1", b"PARE") and (end[-4:] == start[:4] or not start[4:5].decode("latin-1").isprintable()):
        return PARQUET
    if start.startswith(b"ARROW1\0\0"):
        return ARROW
    if start[:4] == b"\xff\xff\xff\xff" and len(start) >= 16:
        return ARROW_STREAM
    if start.startswith(b"ORC") and (end[-4:-1] == b"ORC" or not start[3:4].isascii() or start[3:4] < b" "):
        return "an ORC file"
    found = next((name for magic, name in MAGIC if start.startswith(magic)), "")
    if found:
        return found
    if len(start) >= LEAST_TAR_BYTES and start[257:262] == b"ustar":
        return "a tar archive"
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a pickle"
    if is_tf_record(start):
        return "a TFRecord file"
    return _kind_of_text(start.removeprefix(b"\xef\xbb\xbf"))


def _kind_of_text(start: bytes) -> str:
    """Return what a text is: rows of fields, unless it is something else by its first lines."""
    if re.match(rb"\s*<(!doctype html|html|\?xml)", start[:200], re.IGNORECASE):
        return "an HTML page"
    first = start.lstrip()[:2]
    if first[:1] == b"{":
        return _kind_of_json(start.lstrip())
    if re.match(rb"\[\s*(\{|\[|\r|\n)", start.lstrip()[:100]):
        return "a JSON array"
    lines = start.splitlines()[: LOOKED_AT_LINES + 1]
    lines = [line for line in (lines[:-1] if len(lines) > 1 and not start.endswith((b"\n", b"\r")) else lines) if line.strip()]
    for rule, name, mark in ((LIBSVM, "a libsvm file", 1), (LIBFFM, "a libffm file", 2)):
        if lines and any(line.count(b":") >= mark for line in lines) and all(rule.fullmatch(line.strip()) for line in lines):
            return "a libsvm file of ids" if mark == 1 and all(ONES.fullmatch(line.strip()) for line in lines) else name
    return TEXT


def _kind_of_json(start: bytes) -> str:
    """Return what a text is that begins with a brace: an object a line, or objects over several lines."""
    line, end, _ = start.partition(b"\n")
    try:
        found = json.loads(line)
    except ValueError:
        if not end and len(start) >= START_BYTES // 2:  # the line is longer than what was read
            return JSON_LINES
        return "a JSON document over several lines" if re.match(rb'\{\s*("|\}|$)', start[:100]) else TEXT
    return JSON_LINES if isinstance(found, dict) else TEXT


def is_tf_record(start: bytes) -> bool:
    """Whether a file begins with a record's length and the checksum of that, as TensorFlow writes them."""
    if len(start) < 12:
        return False
    crc = _crc32c(start[:8])
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return int.from_bytes(start[8:12], "little") == masked


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def is_plain_text(path: Path) -> bool:
    """Whether a file, which may be gone, is text that is not packed, or has no byte yet."""
    try:
        with path.open("rb") as file:
            start = file.read(START_BYTES)
        is_packed = bool(packing(path))
    except OSError:
        return False
    return not (is_packed or _is_half_of_parquet(path, start)) and kind_of_bytes(start) == TEXT
