"""Blocks of whole lines of a text file, plain or compressed (.gz, .zst)."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from adaptive_rec.errors import DataError

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError

CHUNK_BYTES = 1 << 20
COMPRESSED_BYTES = 1 << 12
"""Compressed bytes that are decompressed at once: to at most 128 MiB, since zstd's smallest block of 4 bytes stands for at most
128 KiB."""
MAX_LINE_BYTES = 4 << 20
"""A longer line means that the file is no file of lines; reading on could fill the memory."""
PROBE_BYTES = 1 << 20
SHOWN_BYTES = 40


def shown(field: bytes) -> str:
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
        if path.suffix == ".gz":
            yield from skipped(_gzip_chunks(path), start_byte)
        elif path.suffix == ".zst":
            yield from skipped(_zstd_chunks(path), start_byte)
        else:
            with path.open("rb") as file:
                file.seek(start_byte)
                left = CHUNK_BYTES - start_byte % CHUNK_BYTES
                while chunk := file.read(left):
                    yield chunk
                    left = CHUNK_BYTES
    except (EOFError, OSError, zlib.error, ZstdError) as error:
        raise DataError(f"{path} must be a complete {path.suffix.lstrip('.') or 'plain'} file: {error}") from None


def skipped(stream: Iterator[bytes], skip_bytes: int) -> Iterator[bytes]:
    """Yield a stream of bytes without its first ones."""
    for chunk in stream:
        if skip_bytes < len(chunk):
            yield chunk[skip_bytes:]
        skip_bytes = max(skip_bytes - len(chunk), 0)


def _gzip_chunks(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _zstd_chunks(path: Path) -> Iterator[bytes]:
    """Decompress frame by frame; a file that ends inside a frame is damaged."""
    frame = ZstdDecompressor()
    inside = True
    pieces: list[bytes] = []
    with path.open("rb") as file:
        while data := file.read(COMPRESSED_BYTES):
            while data:
                inside = True
                pieces.append(frame.decompress(data))
                data = b""
                if frame.eof:
                    data, inside = frame.unused_data, False
                    frame = ZstdDecompressor()
            if sum(map(len, pieces)) >= CHUNK_BYTES:
                yield b"".join(pieces)
                pieces = []
    if pieces:
        yield b"".join(pieces)
    if inside:
        raise EOFError("compressed file ended before the end of its last frame")


def plain_bytes(path: Path) -> int:
    """The size of a file after decompression: exact for a plain file, else estimated from its first megabyte. At least 1."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(PROBE_BYTES) if path.suffix in (".gz", ".zst") else b""
    try:
        if path.suffix == ".gz":
            size = size * len(zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(start)) // max(1, len(start))
        elif path.suffix == ".zst":
            size = size * len(ZstdDecompressor().decompress(start)) // max(1, len(start))
    except (zlib.error, ZstdError, gzip.BadGzipFile):
        pass  # reading the damaged file raises the error
    return max(1, size)
