"""``checkpoint verify``: reads every byte of checkpoints again."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.checkpoint_import import show_activity
from adaptive_rec.cli.checkpoint_paths import checkpoints_at, is_of_run
from adaptive_rec.cli.output import columns, print_json, say, show
from adaptive_rec.errors import CheckpointError
from adaptive_rec.units import size, whole

if TYPE_CHECKING:
    from adaptive_rec.checkpoint.manifest import FileEntry, Manifest

TIMED_FROM_BYTES = 1 << 20
"""Least size of a file whose reading speed is printed."""

ROWS_ON_DISK, RAW_IDS = "rows on the disk", "raw ids"


def verify(args: argparse.Namespace) -> int:
    """Print every file and its reading speed. The error at the end names damaged checkpoints and those that build on them."""
    show_activity(f"reading {args.path} ...")
    from adaptive_rec.checkpoint.files import DISK, UnreadableError
    from adaptive_rec.checkpoint.generation import read_manifest, verify_names
    from adaptive_rec.checkpoint.history import KEEP_AT_LEAST

    lines: list[dict[str, Any]] = []
    found = checkpoints_at(args.path)
    paths = with_older(found)
    show_activity("")
    before = {path: identity(path) for path in paths}
    for path in paths:
        try:
            manifest = read_manifest(DISK, path)
            verify_names(DISK, path, manifest)
        except UnreadableError:
            raise
        except CheckpointError as error:
            lines.append(line(path, "", str(error)))
            continue
        lines += [verified(path, entry) for entry in manifest.files]
        if not any(entry["error"] for entry in lines if entry["checkpoint"] == path.name):
            lines += verified_keys(path, manifest)
        if manifest.disk and path in found[-KEEP_AT_LEAST:]:  # older ones may have let their rows go
            lines.append(verified_rows(path, manifest))
    wrong = {entry["checkpoint"] for entry in lines if entry["error"]}
    broken = [line(path, "", why) for path in paths if path.name not in wrong and (why := broken_chain(path, wrong))]
    if is_of_run(found, args.path):  # the run may have removed some of them, which is no damage
        gone = [path.name for path in paths if identity(path) != before[path] or before[path] is None]
        paths = [path for path in paths if path.name not in gone]
        lines, broken = ([entry for entry in part if entry["checkpoint"] not in gone] for part in (lines, broken))
        for name in gone:
            say(f"note: {name} was removed in the meantime", sys.stderr)
    damaged, others = ([path for path in paths if (path.name in wrong) == is_wrong] for is_wrong in (True, False))
    lost = [entry["checkpoint"] for entry in broken]
    if args.json:
        print_json({"files": lines + broken, "damaged": [path.name for path in damaged], "lost_with_them": lost})
    else:
        show(columns(("checkpoint", "file", "size>", "speed>", ""), map(verified_cells, lines + broken)))
        read = ", ".join(filter(None, (size(sum(entry["size_bytes"] for entry in lines)), speed(*lines))))
        print(f"{len(others) - len(lost)} of {len(paths)} whole ({read})")
    faults = ("damaged", [path.name for path in damaged]), ("build on one that cannot be used", lost)
    if summary := [
        f"{len(names)} of {len(paths)} checkpoints {what}: {', '.join(names)}" for what, names in faults if names
    ]:
        raise CheckpointError("; ".join(summary), faq="damaged-checkpoint")
    return 0


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a checkpoint from another one that its run writes under the same name after a rollback; None where it is
    gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def with_older(paths: list[Path]) -> list[Path]:
    """Return one checkpoint with those that it builds on, as far as they can be read; of a run, all are listed already."""
    from adaptive_rec.checkpoint.files import DISK
    from adaptive_rec.checkpoint.history import chain

    try:
        return [link.path for link in chain(DISK, paths[0])] if len(paths) == 1 else paths
    except CheckpointError:
        return paths


def broken_chain(path: Path, damaged: set[str]) -> str:
    """Return why a checkpoint that is whole by itself cannot be used, or an empty string."""
    from adaptive_rec.checkpoint.files import DISK
    from adaptive_rec.checkpoint.history import chain

    try:
        on = [link.path.name for link in chain(DISK, path) if link.path.name in damaged]
    except CheckpointError as error:
        return str(error).replace(f"{path.parent}/", "")
    return f"builds on {on[-1]}, which is damaged" if on else ""


def line(path: Path, name: str, error: str | None, size_bytes: int = 0, seconds: float = 0.0) -> dict[str, Any]:
    return {"checkpoint": path.name, "file": name, "size_bytes": size_bytes, "seconds": seconds, "error": error}


def verified(path: Path, entry: FileEntry) -> dict[str, Any]:
    """Return a file's size, the time to read it, and its error."""
    from adaptive_rec.checkpoint.files import DISK, UnreadableError
    from adaptive_rec.checkpoint.generation import verify_file

    show_activity(f"{path.name}/{entry.name} ...")
    started, error = time.perf_counter(), None
    try:
        verify_file(DISK, path / entry.name, entry)
    except UnreadableError:
        raise
    except CheckpointError as raised:
        error = str(raised)
    show_activity("")
    return line(path, entry.name, error, entry.size_bytes, time.perf_counter() - started)


def verified_rows(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the size of a checkpoint's rows on the disk, the time to read them, and their error."""
    from adaptive_rec.checkpoint.disk_entry import saved_logs
    from adaptive_rec.checkpoint.saved_log import verify_segments

    show_activity(f"{path.name}: {ROWS_ON_DISK} ...")
    started, error, size_bytes = time.perf_counter(), None, 0
    try:
        size_bytes = verify_segments(saved_logs(manifest, path))
    except CheckpointError as raised:
        error = str(raised)
    show_activity("")
    return line(path, ROWS_ON_DISK, error, size_bytes, time.perf_counter() - started)


def verified_keys(path: Path, manifest: Manifest) -> list[dict[str, Any]]:
    """Return how many raw ids a checkpoint has (`ids`), and their error; nothing where ids are rows."""
    from adaptive_rec.checkpoint.files import DISK
    from adaptive_rec.checkpoint.rows import STATE, saved_tables
    from adaptive_rec.checkpoint.saved_keys import saved_keys

    if STATE not in {entry.name for entry in manifest.files}:
        return []
    try:
        if (keys := saved_keys(path, saved_tables(DISK, path))) is None:
            return []
        ids = sum(len(keys.table(index)) for index in range(len(keys.tables)))
    except CheckpointError as error:
        return [line(path, RAW_IDS, str(error))]
    return [line(path, RAW_IDS, None) | {"ids": ids}]


def verified_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    shown_size = size(entry["size_bytes"]) if entry["size_bytes"] else ""
    note = f"{whole(entry['ids'])} of them, distinct in each table" if "ids" in entry else "whole"
    return entry["checkpoint"], entry["file"], shown_size, speed(entry), entry["error"] or note


def speed(*entries: dict[str, Any]) -> str:
    """Return the speed of reading files, where they are large enough to measure it."""
    size_bytes, seconds = (sum(entry[key] for entry in entries) for key in ("size_bytes", "seconds"))
    return f"{size_bytes / seconds / 1e9:.2f} GB/s" if size_bytes >= TIMED_FROM_BYTES else ""
