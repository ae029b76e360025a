"""System calls of a run on the files of its directory, as a log from which what a loss of power leaves can be made."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.sim_files import Node, SimFiles, Step, Tree

_CALLS = "open", "write", "pwrite", "fsync", "fdatasync", "posix_fallocate", "mkdir", "rename", "unlink", "rmdir"


class RecordedCalls:
    """Repeats in `SimFiles` what is done in some folders, which are looked at by their real paths."""

    def __init__(self, root: Path, folders: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = SimFiles()
        self._root, self._folders = root, folders
        self._nodes: dict[int, Node] = {}
        """By file descriptor."""
        self._lock = threading.RLock()
        for name in _CALLS:
            monkeypatch.setattr(os, name, self._recorded(getattr(os, name), getattr(self, f"_{name}")))
        monkeypatch.setattr(shutil, "rmtree", self._rmtree)

    def _recorded(self, call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def recorded(*arguments: Any, **options: Any) -> Any:
            with self._lock:  # so that the log has the order in which things were done
                result = call(*arguments, **options)
                note(result, *arguments)
                return result

        return recorded

    def _inside(self, path: Any) -> Path | None:
        """The path in `SimFiles`, or None of what is not looked at."""
        full = Path(os.path.abspath(path)) if isinstance(path, str | Path) else Path("/")
        if not full.is_relative_to(self._root):
            return None
        inside = full.relative_to(self._root)
        return Path("/") / inside if not inside.parts or inside.parts[0] in self._folders else None

    def _open(self, file: int, path: Any, flags: int, *_: Any) -> None:
        self._nodes.pop(file, None)
        if (inside := self._inside(path)) is not None:
            if flags & os.O_CREAT:
                self.files.create(inside)
            self._nodes[file] = self.files._node(inside)

    def _write(self, done: int, file: int, data: Any) -> None:
        if file in self._nodes:
            self._log_write(self._nodes[file], len(self._nodes[file].data), bytes(memoryview(data).cast("B")[:done]))

    def _pwrite(self, done: int, file: int, data: Any, start: int) -> None:
        if file in self._nodes:
            self._log_write(self._nodes[file], start, bytes(memoryview(data).cast("B")[:done]))

    def _posix_fallocate(self, _: None, file: int, start: int, size: int) -> None:
        if file in self._nodes:
            self._log_write(self._nodes[file], start, bytes(size))

    def _log_write(self, node: Node, start: int, data: bytes) -> None:
        node.data[start : start + len(data)] = data
        self.files.log.append(Step("write", node, start=start, data=data))

    def _fsync(self, _: None, file: int) -> None:
        if file in self._nodes:
            self.files.log.append(Step("sync", self._nodes[file]))

    _fdatasync = _fsync

    def _mkdir(self, _: None, path: Any, *__: Any) -> None:
        if (inside := self._inside(path)) is not None:
            self.files.make_folder(inside)

    def _rename(self, _: None, old: Any, new: Any) -> None:
        inside, target = self._inside(old), self._inside(new)
        if inside is not None and target is not None:
            self.files.rename(inside, target)

    def _unlink(self, _: None, path: Any) -> None:
        if (inside := self._inside(path)) is not None:
            self.files._change(self.files._folder(inside.parent), inside.name, "", None)

    _rmdir = _unlink

    def _rmtree(self, folder: Path, **_: Any) -> None:
        for path in sorted(folder.iterdir()):
            os.unlink(path)
        os.rmdir(folder)


def put_down(tree: Tree, folder: Path) -> None:
    """Make the files of a tree in an empty folder."""
    for name, value in tree.items():
        if isinstance(value, dict):
            (folder / name).mkdir()
            put_down(value, folder / name)
        else:
            (folder / name).write_bytes(value)


_SECTOR = 512
"""The least that is written at a time past the system's cache."""


class FailingCalls:
    """Has the k-th call on files of some folders fail, or that one and all later ones; a write takes a part first. Writes of
    `short` runs never take more than half of what they are given."""

    def __init__(self, root: Path, folders: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing, self.code, self.lasting, self.short = -1, 0, False, False
        self.done = 0
        self._prefixes = tuple(f"{root / folder}/" for folder in folders)
        self._lock = threading.Lock()
        for name in _CALLS:
            monkeypatch.setattr(os, name, self._meddled(name, getattr(os, name)))

    def _meddled(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def meddled(what: Any, *arguments: Any, **options: Any) -> Any:
            if not self._is_inside(what, options):
                return call(what, *arguments, **options)
            with self._lock:
                number, self.done = self.done, self.done + 1
            fails = number == self.failing or (self.lasting and number > self.failing >= 0)
            if name in ("write", "pwrite") and (fails or self.short):
                data = memoryview(arguments[0]).cast("B")
                unit = _SECTOR if name == "pwrite" else 1
                done = call(what, data[: -(-len(data) // 2 // unit) * unit], *arguments[1:])
                if not fails:
                    return done
            if fails:
                raise OSError(self.code, os.strerror(self.code))
            return call(what, *arguments, **options)

        return meddled

    def _is_inside(self, what: Any, options: dict[str, Any]) -> bool:
        folder = options.get("dir_fd")
        path = os.readlink(f"/proc/self/fd/{folder if folder is not None else what}") if (
            folder is not None or isinstance(what, int)
        ) else os.path.abspath(what)
        return f"{path}/".startswith(self._prefixes)
