"""A disk that outlives processes, and the thread of one that writes to it, let go step by step or not held back at all."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaptive_rec.checkpoint.writing import Writing
from tests.checkpoint.sim_files import SimFiles, Tree, disk_after, state


class Writer(threading.Thread):
    """Writes a checkpoint. Unless it is `free`, it stands still before every touch of the disk and after every slice of rows,
    until `step` resumes it, so the caller decides the order of events."""

    def __init__(self, writing: Writing, free: bool) -> None:
        super().__init__(daemon=True)
        self.writing, self.free = writing, free
        self.is_done = False
        self.waits = 0
        """How often somebody who changes rows waited for it."""
        self._stepping = threading.Lock()
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        if not free:
            writing._rows._changing = _Changing(self)
        self.start()

    def run(self) -> None:
        if not self.free:
            self._go.acquire()
        try:
            self.writing.write()
        finally:
            self.is_done = True
            self._stands.release()

    def stand(self) -> None:
        """Called by the thread itself."""
        if not self.free:
            self._stands.release()
            self._go.acquire()

    def step(self, count: int = 1) -> None:
        while count and not self.free and not self.is_done:
            with self._stepping:  # who waits for it may be another thread
                if not self.is_done:
                    self._go.release()
                    assert self._stands.acquire(timeout=300), "a checkpoint must come to an end"
            count -= 1

    def finish(self) -> None:
        self.step(-1)
        self.join(60)
        assert not self.is_alive(), "a checkpoint must come to an end"


class _Changing(threading.Condition):
    """The condition of a snapshot; a wait on it lets the writer make one step."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self._writer = writer

    def wait(self, timeout: float | None = None) -> bool:
        assert not self._writer.is_done, "nobody waits for a writer that has gone"
        self._writer.waits += 1
        self.release()
        self._writer.step()
        self.acquire()
        return True


class SnapshotClock:
    """In place of `time` in `embedding/snapshot.py`."""

    perf_counter = staticmethod(time.perf_counter)

    @staticmethod
    def sleep(seconds: float) -> None:
        thread = threading.current_thread()
        if isinstance(thread, Writer) and not thread.free:
            thread.stand()
        else:
            time.sleep(seconds)


class Life:
    """`Files` of one process. When it has ended nothing reaches the disk any more; now and then the disk is full for a moment."""

    def __init__(self, files: SimFiles) -> None:
        self._files = files
        self.has_ended = False
        self.failing_in = -1
        """Touches of the disk until one fails; below 0 none does."""
        self.failures = 0

    def create(self, path: Path) -> Any:
        self._touch()
        return _Output(self._files.create(path), self._touch)

    def __getattr__(self, operation: str) -> Any:
        method = getattr(self._files, operation)

        def call(*arguments: Any) -> Any:
            self._touch()
            return method(*arguments)

        return call

    def _touch(self) -> None:
        thread = threading.current_thread()
        if isinstance(thread, Writer):
            thread.stand()
        if self.has_ended:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.failing_in -= self.failing_in >= 0
        if self.failing_in == 0:
            self.failing_in = -1
            self.failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Output:
    def __init__(self, out: Any, touch: Callable[[], None]) -> None:
        self._out, self._touch = out, touch

    def write(self, data: Any) -> None:
        try:
            self._touch()
        except OSError as error:
            if error.errno == errno.ENOSPC:  # a full disk takes a part
                self._out.write(memoryview(data).cast("B")[: len(data) // 2])
            raise
        self._out.write(data)

    def sync(self) -> None:
        self._touch()
        self._out.sync()

    def close(self) -> None:
        self._out.close()


def after_power_loss(files: SimFiles, dice: random.Random) -> SimFiles:
    """Return the disk after a power loss, with nothing, all or any part of what was not synced."""
    disk = disk_after(files.log, files.root)
    share = dice.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    found = SimFiles()
    _write_synced(found, Path("/"), state(disk, files.root, [dice.random() < share for _ in disk.late]))
    return found


def _write_synced(files: SimFiles, folder: Path, tree: Tree) -> None:
    for name, value in tree.items():
        if isinstance(value, dict):
            files.make_folder(folder / name)
            _write_synced(files, folder / name, value)
        else:
            out = files.create(folder / name)
            out.write(value)
            out.sync()
    files.sync_folder(folder)
