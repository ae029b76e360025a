"""Files that are packed: gzip, zstd, bzip2, xz, and zip archives of one file, recognised by their first bytes."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adaptive_rec.errors import DataError

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError

CHUNK_BYTES = 1 << 20
COMPRESSED_BYTES = 1 << 12
"""Compressed bytes that are decompressed at once: to at most 128 MiB, since zstd's smallest block of 4 bytes stands for at most
128 KiB."""
PROBE_BYTES, PLAIN_BYTES = 1 << 20, 1 << 10
XZ_MEMORY_BYTES = 256 << 20
"""The most memory that an xz file may ask for."""
ENDINGS = (".gz", ".zst", ".bz2", ".xz", ".zip")
"""How the names of packed files end as a rule."""
PACKED_NAMES = {"gz": "a gzip file", "zst": "a zstd file", "bz2": "a bzip2 file", "xz": "an xz file", "zip": "a zip archive"}
BZIP2_BLOCKS = (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90")
"""How the first block of a bzip2 file begins, and the end of one without any."""
FAULTS = (EOFError, OSError, ValueError, zlib.error, ZstdError, lzma.LZMAError, zipfile.BadZipFile, RuntimeError)


class NotOneFile(Exception):
    """A zip archive holds something else than one file of rows; its text says what the archive is."""


def packing_of_bytes(start: bytes) -> str:
    """Return how a file is packed that begins so: gz, zst, bz2, xz or zip; empty where it is not."""
    if start.startswith(b"\x1f\x8b"):
        return "gz"
    if start.startswith(b"\x28\xb5\x2f\xfd") or (start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F):
        return "zst"
    if start.startswith(b"BZh") and start[3:4].isdigit() and start[4:10] in BZIP2_BLOCKS:
        return "bz2"
    if start.startswith(b"\xfd7zXZ\0"):
        return "xz"
    return "zip" if start.startswith((b"PK\x03\x04", b"PK\x05\x06")) else ""


def packing(path: Path) -> str:
    """Return how a file is packed, empty where it is not: by its first bytes, and where these are no text, by its name, as it is
    damaged then. Raises OSError."""
    with path.open("rb") as file:
        start = file.read(PLAIN_BYTES)
    how = packing_of_bytes(start)
    return path.suffix[1:] if not how and path.suffix in ENDINGS and not _is_text(start) else how


def _is_text(start: bytes) -> bool:
    """Whether a file that begins so may be text in UTF-8; it may be cut inside a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return b"\0" not in start


def unpacked(path: Path, how: str) -> Iterator[bytes]:
    """Yield the content of a packed file. Raises DataError where it is damaged or packed in a way that is not read, NotOneFile
    where it is a zip archive of something else."""
    try:
        yield from STREAMS[how](path)
    except FAULTS as error:
        raise DataError(f"{path} must be a complete {how} file: {error or 'it ends too early'}") from None


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


def _streams(path: Path, begin: Callable[[], Any]) -> Iterator[bytes]:
    """Decompress one stream after another, a bounded number of bytes at once; zero bytes between them are padding."""
    stream = begin()
    inside = True
    with path.open("rb") as file:
        while data := file.read(COMPRESSED_BYTES):
            while data:
                piece = stream.decompress(data, CHUNK_BYTES)
                while piece:
                    yield piece
                    piece = b"" if stream.eof or stream.needs_input else stream.decompress(b"", CHUNK_BYTES)
                data, inside = b"", not stream.eof
                if stream.eof:
                    data, stream = stream.unused_data.lstrip(b"\0"), begin()
    if inside:
        raise EOFError("compressed file ended before the end of its last stream")


def _bz2_chunks(path: Path) -> Iterator[bytes]:
    return _streams(path, bz2.BZ2Decompressor)


def _xz_chunks(path: Path) -> Iterator[bytes]:
    return _streams(path, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY_BYTES))


def _zip_chunks(path: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(path) as archive, archive.open(_member(archive)) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _member(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return the only file of an archive. Raises NotOneFile for another archive."""
    files = [each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX/")]
    names = [each.filename for each in files]
    if any(name.startswith("xl/") for name in names):
        raise NotOneFile("an Excel file")
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        raise NotOneFile("a pickle")
    if names and all(name.endswith(".npy") for name in names):
        raise NotOneFile("a NumPy archive (.npz)")
    if len(files) != 1:
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        raise NotOneFile(f"a zip archive of {len(files)} files{f' ({shown})' if names else ''} instead of one")
    if files[0].flag_bits & 1:
        raise NotOneFile("a zip archive with a password")
    return files[0]


STREAMS = {"gz": _gzip_chunks, "zst": _zstd_chunks, "bz2": _bz2_chunks, "xz": _xz_chunks, "zip": _zip_chunks}


def unpacked_bytes(path: Path) -> int:
    """Return the size of a file after unpacking: exact for a plain file, else estimated from its first megabyte. At least 1."""
    size, how = path.stat().st_size, packing(path)
    if not how:
        return max(1, size)
    with path.open("rb") as file:
        start = file.read(PROBE_BYTES)
    try:
        if how == "zip":
            with zipfile.ZipFile(path) as archive:
                return max(1, _member(archive).file_size)
        found = len(_first_decompressor(how).decompress(start)) if how in ("gz", "zst") else _ratio_of_streams(how, start)
        size = size * found // max(1, len(start))
    except (NotOneFile, *FAULTS):
        pass  # reading the damaged file raises the error
    return max(1, size)


def _first_decompressor(how: str) -> Any:
    return zlib.decompressobj(16 + zlib.MAX_WBITS) if how == "gz" else ZstdDecompressor()


def _ratio_of_streams(how: str, start: bytes) -> int:
    """Return how many bytes a first megabyte unpacks to, at most 64 times as many."""
    stream = bz2.BZ2Decompressor() if how == "bz2" else lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY_BYTES)
    return len(stream.decompress(start, 64 * PROBE_BYTES))
