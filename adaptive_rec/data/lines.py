"""Blocks of whole lines of a text file, plain or packed (gzip, zstd, bzip2, xz, a zip archive of one file)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adaptive_rec.data.packed import CHUNK_BYTES, NotOneFile, packing, unpacked, unpacked_bytes
from adaptive_rec.errors import DataError

MAX_LINE_BYTES = 4 << 20
"""A longer line means that the file is not text in lines; reading on could fill the memory."""
SHOWN_BYTES = 40


def quote_field(field: bytes) -> str:
    """A field of a line as an error message quotes it."""
    return ascii(field[:SHOWN_BYTES].decode("latin-1")) + "..." * (len(field) > SHOWN_BYTES)


def line_blocks(path: Path, start_byte: int = 0) -> Iterator[bytes]:
    """Yield the decompressed file from `start_byte` on in blocks of whole lines; a missing last line feed is added."""
    rest = b""
    for chunk in chunks(path, start_byte):
        cut = chunk.rfind(b"\n") + 1
        line_bytes = len(rest) + (chunk.find(b"\n") if cut else len(chunk))
        if line_bytes > MAX_LINE_BYTES:
            raise DataError(f"{path}: a line must have at most {MAX_LINE_BYTES} bytes, got one of {line_bytes} or more")
        if cut:
            yield rest + chunk[:cut]
            rest = chunk[cut:]
        else:
            rest += chunk
    if rest:
        yield rest + b"\n"


def chunks(path: Path, start_byte: int = 0) -> Iterator[bytes]:
    """Yield the decompressed file from `start_byte` on, cut at the same bytes wherever it begins; a damaged file is a
    DataError."""
    try:
        how = packing(path)
        if how:
            yield from skipped(unpacked(path, how), start_byte)
            return
        with path.open("rb") as file:
            file.seek(start_byte)
            left = CHUNK_BYTES - start_byte % CHUNK_BYTES
            while chunk := file.read(left):
                yield chunk
                left = CHUNK_BYTES
    except OSError as error:
        raise DataError(f"{path} must be a complete plain file: {error}") from None
    except NotOneFile as other:
        raise DataError(f"{path} must be one file of rows, it is {other}; unpack it") from None


def skipped(stream: Iterator[bytes], skip_bytes: int) -> Iterator[bytes]:
    """Yield a stream of bytes without its first ones."""
    for chunk in stream:
        if skip_bytes < len(chunk):
            yield chunk[skip_bytes:]
        skip_bytes = max(skip_bytes - len(chunk), 0)


def plain_bytes(path: Path) -> int:
    """The size of a file after decompression: exact for a plain file, else estimated from its first megabyte. At least 1."""
    return unpacked_bytes(path)
