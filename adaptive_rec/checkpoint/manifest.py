"""``MANIFEST.json`` of a generation: what there is, with a checksum of each chunk, and of itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from zlib import crc32

from pydantic import FailFast, Field, PrivateAttr, ValidationError, field_validator, model_validator

from adaptive_rec.checkpoint.plain_json import JsonLimits, check_limits, to_json
from adaptive_rec.config.knobs import Frozen
from adaptive_rec.errors import CheckpointError

FORMAT = 3
MANIFEST = "MANIFEST.json"
CHUNK_BYTES = 4 << 20
FILE_NAME = r"^[a-z0-9][a-z0-9_-]{0,63}\.(safetensors|json)$"

_LIMITS = JsonLimits(size_bytes=16 << 20, brackets=150_000, commas=1_000_000)
"""Enough for 3 TiB. What breaks a rule takes more memory to tell than to read."""

_SEAL = re.compile(rb', "crc32": "([0-9a-f]{8})"}\n')
_SEAL_BYTES = len(b', "crc32": "01234567"}\n')
_TOLD_FAULTS = 20


class FileEntry(Frozen):
    name: str = Field(pattern=FILE_NAME)
    size_bytes: int = Field(ge=0, lt=1 << 62)
    crc32: str = Field(pattern=r"^[0-9a-f]*$")
    """Eight digits for each chunk, one after another."""

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
    """The generation that one of changes builds on, which stands beside it."""

    name: str = Field(pattern=GENERATION_NAME)
    crc32: str = Field(pattern=r"^[0-9a-f]{8}$")
    """Of its manifest."""


class Manifest(Frozen):
    """All of the file but its own crc32, which stands at the end."""

    format: Literal[3] = 3
    since: Since | None = None
    """None where all rows are in it; else those that changed since that one are."""
    step: int = Field(ge=0, lt=10**15)
    chunk_bytes: Literal[4194304] = 4194304
    description: dict[str, Any]
    """What of, and for whom: the hash of the configuration and the like."""
    files: Annotated[tuple[FileEntry, ...], FailFast()]
    """The first that is wrong is told: to make out all faults of a made-up list takes seconds."""
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
        """Of all of it, as it stands at the end of the file that it was read from."""
        return self._crc32


def sealed(manifest: Manifest, path: Path) -> bytes:
    """A manifest as JSON, with a crc32 of all that precedes it at its end."""
    body = to_json(manifest.model_dump(), path, _LIMITS).removesuffix(b"}")
    return body + f', "crc32": "{crc32(body):08x}"}}\n'.encode()


def unsealed(data: bytes, path: Path) -> Manifest:
    """What was sealed. Raises CheckpointError; JSON is not looked at before its crc32 is right."""
    body, seal = data[:-_SEAL_BYTES], _SEAL.fullmatch(data[-_SEAL_BYTES:])
    if seal is None:
        raise CheckpointError(f"{path} must end with its crc32: it was cut off, or is none of ours")
    if int(seal[1], 16) != crc32(body):
        raise CheckpointError(f"{path} is damaged: crc32 must be {seal[1].decode()}, got {crc32(body):08x}")
    check_limits(body, path, _LIMITS)
    try:
        manifest = Manifest.model_validate_json(body + b"}")
    except ValidationError as error:
        raise CheckpointError(f"{path} breaks the rules of its format: {_told(error)}") from None
    manifest._crc32 = seal[1].decode()
    return manifest


def _told(error: ValidationError) -> str:
    """What is wrong, shortly: a stranger may be quoted in it."""
    if error.error_count() > _TOLD_FAULTS:
        return f"{error.error_count()} faults"
    fault = error.errors(include_url=False)[0]
    name, rule, value = ".".join(map(str, fault["loc"])), fault["msg"], fault["input"]
    rule = rule.removeprefix("Value error, ").removeprefix("Input ")
    got = (
        repr(value[:40])
        if isinstance(value, str)
        else repr(value)
        if isinstance(value, int | float)
        else type(value).__name__
    )
    return f"{name} {rule}, got {got}"[:400].encode("unicode_escape").decode()
