"""Forged manifests, headers and values are refused with a named error, quickly and with little memory."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.checkpoint.draft import Draft
from adaptive_rec.checkpoint.files import DISK, SMALL_FILE_BYTES
from adaptive_rec.checkpoint.generation import read_json_file, verify_generation
from adaptive_rec.checkpoint.manifest import unsealed
from adaptive_rec.checkpoint.safetensors_file import HEADER_BYTES, ArraysFile, read_header
from adaptive_rec.errors import CheckpointError
from tests.checkpoint.sim_files import SimFiles
from tests.quickest import quickest

PATH = Path("/MANIFEST.json")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
GOOD = {
    "format": 3, "since": {"name": "step-000000003", "crc32": "0123abcd"}, "step": 7,
    "chunk_bytes": 4 << 20, "description": {"config_hash": "x"},
    "files": [{"name": "state.json", "size_bytes": 2, "crc32": "a3a6bf43"}],
}  # fmt: skip


def seal(text: bytes) -> bytes:
    """What a stranger who knows the format makes of any text: its crc32 is right."""
    body = text.removesuffix(b"}")
    return body + f', "crc32": "{crc32(body):08x}"}}\n'.encode()


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, or what its CheckpointError says; other errors are none that may happen."""
    try:
        return call(), ""
    except CheckpointError as error:
        return None, str(error)


def test_a_good_manifest_is_accepted() -> None:
    assert unsealed(seal(json.dumps(GOOD).encode()), PATH).step == 7


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=150, deadline=None)
def test_garbage_is_no_manifest(data: bytes, sealing: bool) -> None:
    with pytest.raises(CheckpointError, match=r"MANIFEST\.json"):
        unsealed(seal(data) if sealing else data, PATH)


@given(st.sampled_from([*GOOD, "name", "size_bytes", "crc32", "other"]), JSON)
@settings(max_examples=150, deadline=None)
def test_a_manifest_with_any_value_changed_is_refused_or_valid(key: str, value: Any) -> None:
    changed = json.loads(json.dumps(GOOD))
    (changed if key in GOOD or key == "other" else changed["files"][0])[key] = value
    data = seal(json.dumps(changed).encode())
    manifest, said = outcome(lambda: unsealed(data, PATH))
    if manifest is None:
        assert "MANIFEST.json" in said
        assert len(said) < 2000
        assert said.isascii()
        assert said.isprintable()
    else:
        assert json.loads(json.dumps(manifest.model_dump(mode="json"))) == {"disk": None} | changed  # which older ones lack


BAD_NAMES = ["../state.json", "/etc/passwd.json", "a/b.json", "a\\b.json", "..", "", "MANIFEST.json", "state.json\n",
             "x" * 200 + ".json", "step.json.json", "état.json", "a\0.json"]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    changed = GOOD | {"files": [GOOD["files"][0] | {"name": name}]}  # type: ignore[index]
    with pytest.raises(CheckpointError, match=r"files\.0\.name"):
        unsealed(seal(json.dumps(changed).encode()), PATH)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": 2}, "format must be 3, got 2"),
        ({"since": "step-000000003"}, "since must be a section with keys, got 'step-000000003'"),
        ({"since": {"name": "step-000000003"}}, "since.crc32 must be given"),
        ({"since": {"name": "step-000000003", "crc32": "0123ABCD"}}, "since.crc32 must match"),
        ({"since": {"name": "../step-000000003", "crc32": "0123abcd"}}, "since.name must match"),
        ({"since": {"name": "step-000000003\n", "crc32": "0123abcd"}}, "since.name must match"),
        ({"since": {"name": "step-000000003.0", "crc32": "0123abcd"}}, "since.name must match"),
        ({"chunk_bytes": 1}, "chunk_bytes"),
        ({"files": GOOD["files"] * 2}, "each file must be named once"),  # type: ignore[operator]
        ({"files": [{"name": "state.json", "size_bytes": 1 << 60, "crc32": "a3a6bf43"}]}, "8 digits for each of"),
        ({"files": [{"name": "state.json", "size_bytes": 2, "crc32": "xxxxxxxx"}]}, "crc32"),
        ({"extra": 1}, "extra"),
    ],
)
def test_the_rule_that_a_manifest_breaks_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        unsealed(seal(json.dumps(GOOD | changes).encode()), PATH)


# Sizes and depths ------------------------------------------------------------------------------------------------------


def header(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def shape(values: list[int]) -> bytes:
    return header(json.dumps({"w": {"dtype": "F32", "shape": values, "data_offsets": [0, 4]}}).encode()) + bytes(4)


HUGE: dict[str, Callable[[], bytes]] = {
    "a deep list": lambda: b"[" * 100_000 + b"]" * 100_000,
    "a deep object": lambda: b'{"a":' * 90_000 + b"1" + b"}" * 90_000,
    "many lists": lambda: b'{"a": [' + b"[]," * 5_000_000 + b"1]}",
    "many numbers": lambda: b"[" + b"1," * 7_000_000 + b"1]",
    "many names": lambda: b"{" + b",".join(b'"%x":1' % number for number in range(40_000)) + b"}",
    "many files": lambda: b'{"files": [' + b"{}," * 149_990 + b"{}]}",
    "a long text": lambda: b'{"a": "' + b"x" * (7 << 20) + b'"}',
    "a long number": lambda: b'{"format": ' + b"9" * (7 << 20) + b"}",
    "too many bytes": lambda: b" " * (SMALL_FILE_BYTES + 1),
    "zeros": lambda: bytes(7 << 20),
}
HEADERS: dict[str, Callable[[], bytes]] = {
    "100 MB of header claimed": lambda: header(b"{}", 100 << 20),
    "all the memory there is claimed": lambda: header(b"{}", (1 << 64) - 1),
    "a header too long": lambda: header(b"{}" + b" " * HEADER_BYTES),
    "a negative length": lambda: header(b"{}", (1 << 63) + 5),
    "no header": lambda: b"",
    "half a length": lambda: b"\x01\x00\x00",
    "a list": lambda: header(b"[]"),
    "a deep header": lambda: header(b'{"a":' * 90_000 + b"1" + b"}" * 90_000),
    "a million dimensions": lambda: shape([1 << 61] * 400_000),
    "a product beyond all numbers": lambda: shape([1 << 61] * 32),
    "dimensions that are no numbers": lambda: shape([True]),
    "dimensions below zero": lambda: shape([-1, -1]),
    "no such type": lambda: header(b'{"w":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}}') + bytes(4),
    "a type that is a list": lambda: header(b'{"w":{"dtype":[],"shape":[1],"data_offsets":[0,4]}}') + bytes(4),
    "bytes that nobody owns": lambda: header(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}') + bytes(5),
    "bytes that are not there": lambda: header(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}') + bytes(3),
    "a hole": lambda: header(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}') + bytes(8),
    "the same bytes twice": lambda: header(
        b'{"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    ) + bytes(4),
    "no offsets": lambda: header(b'{"w":{"dtype":"F32","shape":[1]}}') + bytes(4),
    "three offsets": lambda: header(b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}') + bytes(4),
}  # fmt: skip


def refused_cheaply(call: Callable[[], object], given_bytes: int) -> None:
    """A CheckpointError within a second of work, and with 64 MB of memory beside what was given."""

    def refused() -> str:
        with pytest.raises(CheckpointError) as error:
            call()
        return str(error.value)

    assert quickest(refused) < 1.0
    assert len(refused()) < 2000
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            call()
        assert tracemalloc.get_traced_memory()[1] < given_bytes + (64 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", HUGE)
def test_a_huge_manifest_is_refused_quickly_and_with_little_memory(tmp_path: Path, kind: str) -> None:
    generation = tmp_path / "step-000000007"
    generation.mkdir()
    data = seal(HUGE[kind]())
    (generation / "MANIFEST.json").write_bytes(data)
    refused_cheaply(lambda: verify_generation(DISK, generation), 2 * len(data))


@pytest.mark.parametrize("kind", [kind for kind in HUGE if kind not in ("a long text", "many names", "many files")])
def test_huge_values_are_refused_quickly_and_with_little_memory(tmp_path: Path, kind: str) -> None:
    data = HUGE[kind]()
    (tmp_path / "state.json").write_bytes(data)
    refused_cheaply(lambda: read_json_file(DISK, tmp_path / "state.json"), 2 * len(data))


@pytest.mark.parametrize("kind", HEADERS)
def test_a_forged_header_is_refused_quickly_and_with_little_memory(tmp_path: Path, kind: str) -> None:
    data = HEADERS[kind]()
    (tmp_path / "x.safetensors").write_bytes(data)
    refused_cheaply(lambda: read_header(DISK, tmp_path / "x.safetensors"), 2 * len(data))


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=150, deadline=None)
def test_garbage_is_no_header(data: bytes, framed: bool) -> None:
    data = header(data) if framed else data
    arrays, said = outcome(lambda: read_header(SimFiles({"x.safetensors": data}), Path("/x.safetensors")))
    if arrays is None:
        assert "x.safetensors" in said
    else:
        assert arrays == {}
        assert json.loads(data[8:]) == {}, "an empty header is one"


@given(st.sampled_from(["dtype", "shape", "data_offsets", "more"]), JSON | st.lists(st.integers(-2, 12), max_size=3))
@settings(max_examples=150, deadline=None)
def test_a_header_with_any_value_changed_is_refused_or_covers_the_file(key: str, value: Any) -> None:
    entry: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"w": entry | {key: value}}).encode()
    files = SimFiles({"x.safetensors": header(text) + bytes(range(8))})
    file, said = outcome(lambda: ArraysFile(files, Path("/x.safetensors")))
    if file is None:
        assert "x.safetensors" in said
    else:
        assert file.rows("w").tobytes() == bytes(range(8))


def test_values_too_large_to_be_read_back_are_refused_when_they_are_written() -> None:
    for value in ([[]] * 100_001, list(range(1_000_002)), "x" * SMALL_FILE_BYTES):
        files = SimFiles()
        with pytest.raises(CheckpointError, match=r"state\.json must have \d+ .* or fewer"):
            Draft(files, Path("/checkpoints"), 7).json("state.json", {"value": value})
    many = {f"{'x' * 20_000}{number}": np.zeros(1) for number in range(210)}
    with pytest.raises(CheckpointError, match="names and shapes of arrays must take"):
        Draft(SimFiles(), Path("/checkpoints"), 7).arrays("state.safetensors", many)
