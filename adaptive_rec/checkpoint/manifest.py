"""``MANIFEST.json`` of a generation: its files, with a checksum of each chunk, and a checksum of the manifest itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from zlib import crc32

from pydantic import FailFast, Field, PrivateAttr, ValidationError, field_validator, model_validator

from adaptive_rec.checkpoint.limited_json import JsonLimits, check_limits, render_json
from adaptive_rec.config.faults import rule_broken_by
from adaptive_rec.config.knobs import Frozen
from adaptive_rec.embedding.disk.saved_segments import pool_folder, segment_path
from adaptive_rec.errors import CheckpointError

FORMAT = 3
MANIFEST = "MANIFEST.json"
CHUNK_BYTES = 4 << 20
FILE_NAME = r"^[a-z0-9][a-z0-9_-]{0,63}\.(safetensors|json)$"

_LIMITS = JsonLimits(size_bytes=16 << 20, brackets=150_000, commas=1_000_000)
"""Limits that are enough for 3 TiB. Reporting a broken rule takes more memory than reading the file."""

_SEAL = re.compile(rb', "crc32": "([0-9a-f]{8})"}\n')
_SEAL_BYTES = len(b', "crc32": "01234567"}\n')
_MOST_FAULTS = 20


Count = Annotated[int, Field(ge=0, lt=1 << 32)]


class FileEntry(Frozen):
    """A file of a generation."""

    name: str = Field(pattern=FILE_NAME)
    size_bytes: int = Field(ge=0, lt=1 << 62)
    crc32: str = Field(pattern=r"^[0-9a-f]*$")
    """Eight digits for each chunk, in order."""

    @model_validator(mode="after")
    def _check_chunks(self) -> FileEntry:
        chunks = -(-self.size_bytes // CHUNK_BYTES)
        if len(self.crc32) != 8 * chunks:
            raise ValueError(
                f"crc32 of {self.name} must have 8 digits for each of {chunks} chunks, got {len(self.crc32)}"
            )
        return self


GENERATION_NAME = r"^step-([0-9]{9,15})(?:\.([1-9][0-9]{0,5}))?$"


class Since(Frozen):
    """The generation in the same folder that a generation of changes builds on."""

    name: str = Field(pattern=GENERATION_NAME)
    crc32: str = Field(pattern=r"^[0-9a-f]{8}$")
    """Checksum of its manifest."""


class DiskPool(Frozen):
    """The rows of one pool that lie on a disk."""

    first_row: int = Field(ge=0, lt=1 << 62)
    """First row in the joint row space."""
    rows: int = Field(ge=0, lt=1 << 40)
    weight: str = Field(pattern=r"^(F64|F32|F16|BF16)$")
    dim: int = Field(ge=1, lt=1 << 24)
    optimizer_state: str = Field(pattern=r"^(F64|F32)$")
    width: int = Field(ge=0, lt=1 << 26)
    page_bytes: int = Field(ge=1, lt=1 << 31)
    page_rows: int = Field(ge=1, lt=1 << 31)
    """Rows of a page."""
    segment_pages: int = Field(ge=1, lt=1 << 32)
    """Pages of a whole segment."""
    segments: Annotated[tuple[tuple[Count, Count, Count], ...], FailFast()]
    """Number, place and pages of each segment."""


class DiskEntry(Frozen):
    """The rows of a process that lie on a disk outside of the generation. Its shards have their addresses."""

    folder: str = Field(min_length=1, max_length=4096)
    """Seen from the run's directory."""
    pools: tuple[DiskPool, ...]
    homes: tuple[Annotated[int, Field(ge=-1, lt=1 << 32)], ...] = ()
    """The rank that owns each table whole, -1 for one whose rows are dealt out; empty: all are."""

    def path(self, generation: Path) -> Path:
        """Return the folder of the rows of a generation."""
        return generation.resolve().parent.parent / self.folder

    def segments(self, generation: Path) -> Iterator[tuple[Path, int]]:
        """Yield the file of each segment, and how many of its bytes are needed."""
        rows = self.path(generation)
        for number, pool in enumerate(self.pools):
            for segment, _, pages in pool.segments:
                yield segment_path(pool_folder(rows, number), segment), pages * pool.page_bytes


class Manifest(Frozen):
    """The contents of the file except its own crc32, which is at its end."""

    format: Literal[3] = 3
    since: Since | None = None
    """The generation since which rows changed; None where the generation has all rows."""
    disk: Annotated[tuple[DiskEntry, ...] | None, FailFast()] = None
    """Rows on a disk, those of each rank that has written them; None where shards have them."""
    step: int = Field(ge=0, lt=10**15)
    chunk_bytes: Literal[4194304] = 4194304
    description: dict[str, Any]
    """Values for people and tools: version, policy, hash of the configuration."""
    files: Annotated[tuple[FileEntry, ...], FailFast()]
    """Files of the generation. Only the first fault is reported, as finding all faults of a forged list takes seconds."""
    _crc32: str = PrivateAttr("")

    @field_validator("description")
    @classmethod
    def _check_numbers(cls, description: dict[str, Any]) -> dict[str, Any]:
        json.dumps(description, allow_nan=False)
        return description

    @field_validator("files")
    @classmethod
    def _check_names(cls, files: tuple[FileEntry, ...]) -> tuple[FileEntry, ...]:
        if len({file.name for file in files}) != len(files):
            raise ValueError("each file must be named once")
        return files

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def kind(self) -> Literal["full", "changes"]:
        return "changes" if self.since else "full"

    @property
    def crc32(self) -> str:
        """The checksum at the end of the file that the manifest was read from."""
        return self._crc32


def sealed(manifest: Manifest, path: Path) -> bytes:
    """Return a manifest as JSON that ends with a crc32 of everything before it."""
    body = render_json(manifest.model_dump(), path, _LIMITS).removesuffix(b"}")
    return body + f', "crc32": "{crc32(body):08x}"}}\n'.encode()


def unsealed(data: bytes, path: Path) -> Manifest:
    """Read a sealed manifest. Raises CheckpointError; the JSON is parsed only if its crc32 is right."""
    body, seal = data[:-_SEAL_BYTES], _SEAL.fullmatch(data[-_SEAL_BYTES:])
    if seal is None:
        raise CheckpointError(f"{path} must end with its crc32: it was cut off, or is another kind of file")
    if int(seal[1], 16) != crc32(body):
        raise CheckpointError(f"{path} is damaged: crc32 must be {seal[1].decode()}, got {crc32(body):08x}")
    check_limits(body, path, _LIMITS)
    try:
        manifest = Manifest.model_validate_json(body + b"}")
    except ValidationError as error:
        raise CheckpointError(f"{path} breaks the rules of its format: {_first_fault(error)}") from None
    manifest._crc32 = seal[1].decode()
    return manifest


def _first_fault(error: ValidationError) -> str:
    """Return the broken rule as a short, printable text: the quoted value may come from anywhere."""
    if error.error_count() > _MOST_FAULTS:
        return f"{error.error_count()} faults"
    fault = error.errors(include_url=False)[0]
    name, rule, value = ".".join(map(str, fault["loc"])), rule_broken_by(fault), fault["input"]
    value = value[:40] if isinstance(value, str) else value
    got = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return f"{name} {rule}, got {got}"[:400].encode("unicode_escape").decode()
