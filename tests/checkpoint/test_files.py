"""The disk follows the same rules as the file system in memory, and partial reads and writes are completed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.checkpoint.files import DISK, SMALL_FILE_BYTES, Files
from tests.checkpoint.histories import CHECKPOINTS, LAST, STEPS, found_step, name_of, write, write_history
from tests.checkpoint.sim_files import SimFiles


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_files_in_memory_and_on_disk_keep_the_same_rules(tmp_path: Path, kind: str) -> None:
    files: Files = DISK if kind == "disk" else SimFiles()
    root = tmp_path if kind == "disk" else Path("/")
    files.make_folder(root / "folder")
    out = files.create(root / "folder" / "file")
    out.write(memoryview(np.arange(6, dtype=np.uint16)))
    out.write(b"end")
    out.sync()
    out.close()
    whole = np.arange(6, dtype=np.uint16).tobytes() + b"end"
    assert files.size_bytes(root / "folder/file") == len(whole)
    assert files.read(root / "folder/file") == whole
    assert [bytes(chunk) for chunk in files.chunks(root / "folder/file", 6)] == [whole[:6], whole[6:12], whole[12:]]
    assert [bytes(chunk) for chunk in files.chunks(root / "folder/file", 5)] == [whole[:5], whole[5:10], whole[10:]]
    assert files.read_part(root / "folder/file", 13, 50) == whole[13:]
    with pytest.raises(FileExistsError):
        files.create(root / "folder" / "file")
    with pytest.raises(FileExistsError):
        files.make_folder(root / "folder")
    with pytest.raises(FileNotFoundError):
        files.read(root / "absent")
    with pytest.raises(FileNotFoundError):
        files.names(root / "absent")
    with pytest.raises(NotADirectoryError):
        files.names(root / "folder" / "file")
    files.make_folder(root / "full")
    files.create(root / "full" / "b").close()
    files.create(root / "full" / "a").close()
    assert list(files.chunks(root / "full" / "a", 6)) == []
    assert files.names(root / "full") == ["a", "b"]
    with pytest.raises(OSError, match="not empty"):
        files.rename(root / "folder", root / "full")
    files.rename(root / "folder", root / "other")
    files.sync_folder(root)
    files.remove_folder(root / "full")
    assert files.names(root) == ["other"]
    assert files.read(root / "other" / "file") == whole


def test_a_history_is_the_same_in_memory_and_on_disk(tmp_path: Path) -> None:
    memory = SimFiles()
    write_history(memory, memory.log)
    for step in STEPS:
        write(DISK, step, tmp_path / "checkpoints")
    for step in LAST:
        folder = tmp_path / "checkpoints" / name_of(step)
        names = memory.names(CHECKPOINTS / folder.name)
        assert [path.name for path in sorted(folder.iterdir())] == names
        for name in names:
            assert (folder / name).read_bytes() == memory.read(CHECKPOINTS / folder.name / name)


def test_partial_reads_and_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write or read may take a part of what it is given; a signal alone is enough for that."""
    real_write, real_readv, real_pread = os.write, os.readv, os.pread
    monkeypatch.setattr(os, "write", lambda file, data: real_write(file, data[:1000]))
    monkeypatch.setattr(os, "readv", lambda file, buffers: real_readv(file, [buffers[0][:700]]))
    monkeypatch.setattr(os, "pread", lambda file, size, start: real_pread(file, min(size, 600), start))
    write(DISK, 7, tmp_path)
    monkeypatch.setattr(os, "write", real_write)
    assert found_step(DISK, tmp_path) == 7


def test_reads_are_limited_to_the_size_of_a_small_file(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb") as file:
        file.truncate(SMALL_FILE_BYTES + 1)
    with pytest.raises(OSError, match=f"must have {SMALL_FILE_BYTES} bytes or fewer"):
        DISK.read(tmp_path / "x")


def test_synced_files_are_read_back_from_the_disk(tmp_path: Path) -> None:
    """Reading a file again then reads the disk. A disk in memory reports no reads."""

    def read_from_disk() -> int:
        [line] = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("read_bytes")]
        return int(line.split()[1])

    path, data = tmp_path / "file", os.urandom(8 << 20)
    out = DISK.create(path)
    out.write(data)
    out.sync()
    out.close()
    before = read_from_disk()
    assert b"".join(bytes(chunk) for chunk in DISK.chunks(path, 1 << 20)) == data
    if read_from_disk() == before:
        os.posix_fadvise(file := os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
        DISK.read_part(path, 0, 1 << 20)
        if read_from_disk() == before:
            pytest.skip("this disk reports no reads")
    assert read_from_disk() - before >= len(data)
