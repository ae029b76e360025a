"""A file system in memory that logs all operations, and lists what a disk may hold after a loss of power at any moment.

What is on the disk for certain: bytes of a file written before its last sync, and names in a folder that were made, changed or
removed before the last sync of that folder. Of all that came later any part may be there, in any order: each page of 4 KiB for
itself, the file's new length or not, each name for itself. A name that is moved within a folder is moved whole.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptive_rec.checkpoint.files import SMALL_FILE_BYTES, Output

PAGE_BYTES = 4096

Tree = dict[str, Any]
"""Names with what they stand for: bytes of a file, or the tree of a folder."""


@dataclass
class Node:
    """A file or folder, whatever its name is."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, Node] | None = None
    """None of a file."""


@dataclass(frozen=True)
class Step:
    """One entry of the log."""

    kind: str
    node: Node
    """The file that is written or synced, the folder whose names change or are synced."""
    names: tuple[str, str] = ("", "")
    """(old, new) of a change of names, empty where there is none."""
    child: Node | None = None
    start: int = 0
    data: bytes = b""


class SimFiles:
    """`Files` in memory. The root is on the disk from the beginning."""

    def __init__(self, tree: Tree | None = None) -> None:
        self._numbers = itertools.count()
        self.log: list[Step] = []
        self.root = self._grown(tree or {})

    def create(self, path: Path) -> Output:
        return SimOutput(self, self._new(path, Node(next(self._numbers))))

    def make_folder(self, path: Path) -> None:
        self._new(path, Node(next(self._numbers), names={}))

    def sync_folder(self, path: Path) -> None:
        self.log.append(Step("sync", self._folder(path)))

    def rename(self, old: Path, new: Path) -> None:
        folder, _ = self._folder(old.parent), self._node(old)
        assert old.parent == new.parent
        if new.name in self._names(folder):
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        self._change(folder, old.name, new.name, self._names(folder)[old.name])

    def remove_folder(self, path: Path) -> None:
        self.remove_files(path, len(self.names(path)))
        self._change(self._folder(path.parent), path.name, "", None)

    def remove_files(self, path: Path, count: int) -> None:
        for name in self.names(path)[:count]:
            self._change(self._folder(path), name, "", None)

    def reading(self, path: Path) -> AbstractContextManager[None]:
        self._folder(path)
        return nullcontext()

    def unread(self, path: Path) -> AbstractContextManager[bool]:
        self._folder(path)
        return nullcontext(True)

    def names(self, folder: Path) -> list[str]:
        return sorted(self._names(self._folder(folder)))

    def size_bytes(self, path: Path) -> int:
        return len(self._file(path).data)

    def read(self, path: Path) -> bytes:
        assert self.size_bytes(path) <= SMALL_FILE_BYTES
        return bytes(self._file(path).data)

    def read_part(self, path: Path, start_byte: int, size_bytes: int) -> bytes:
        return bytes(self._file(path).data[start_byte : start_byte + size_bytes])

    def chunks(self, path: Path, size_bytes: int) -> Iterator[memoryview]:
        data = self._file(path).data
        for start in range(0, len(data), size_bytes):
            yield memoryview(bytes(data[start : start + size_bytes]))

    def _new(self, path: Path, node: Node) -> Node:
        folder = self._folder(path.parent)
        if path.name in self._names(folder):
            raise FileExistsError(errno.EEXIST, "File exists")
        self._change(folder, "", path.name, node)
        return node

    def _change(self, folder: Node, old: str, new: str, child: Node | None) -> None:
        step = Step("names", folder, (old, new), child)
        apply_names(self._names(folder), step)
        self.log.append(step)

    def _node(self, path: Path) -> Node:
        node = self.root
        for name in path.parts[1:]:
            node = self._names(node).get(name)  # type: ignore[assignment]
            if node is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return node

    def _folder(self, path: Path) -> Node:
        self._names(node := self._node(path))
        return node

    def _file(self, path: Path) -> Node:
        if (node := self._node(path)).names is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        return node

    def _names(self, node: Node) -> dict[str, Node]:
        if node.names is None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        return node.names

    def _grown(self, tree: Tree) -> Node:
        node = Node(next(self._numbers), names={})
        for name, value in tree.items():
            leaf = not isinstance(value, dict)
            self._names(node)[name] = Node(next(self._numbers), bytearray(value)) if leaf else self._grown(value)
        return node


class SimOutput:
    def __init__(self, files: SimFiles, node: Node) -> None:
        self._files, self._node = files, node

    def write(self, data: Any) -> None:
        added = bytes(memoryview(data).cast("B"))
        self._files.log.append(Step("write", self._node, start=len(self._node.data), data=added))
        self._node.data += added

    def sync(self) -> None:
        self._files.log.append(Step("sync", self._node))

    def close(self) -> None:
        pass


def apply_names(names: dict[str, Any], step: Step) -> None:
    """Take a name out, put one in, or both."""
    old, new = step.names
    names.pop(old, None)
    if new:
        names[new] = step.child


# Losses of power -----------------------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """What is on the disk for certain after the first steps of a log, and what may be there besides."""

    data: dict[int, bytes]
    """Contents of files, by the number of their node."""
    names: dict[int, dict[str, Node]]
    late: list[tuple[str, int, Any]]
    """What may be there or not: ("page", number of a file, page), ("length", file, bytes), ("names", number of folder, step)."""
    written: dict[int, bytes]
    """Contents of files as they would be without the loss."""


def disk_after(log: list[Step], root: Node) -> Disk:
    """The disk as a loss of power behind the last step of `log` finds it; before the first it held an empty root."""
    data: dict[int, bytes] = {}
    written: dict[int, bytearray] = {}
    names: dict[int, dict[str, Node]] = {root.number: {}}
    since: dict[int, list[Step]] = {}
    for step in log:
        number = step.node.number
        since.setdefault(number, [])
        if step.child is not None and step.child.names is not None:
            names.setdefault(step.child.number, {})
        if step.kind == "write":
            content = written.setdefault(number, bytearray())
            content.extend(bytes(max(0, step.start - len(content))))
            content[step.start : step.start + len(step.data)] = step.data
        if step.kind != "sync":
            since[number].append(step)
        elif step.node.names is None:
            data[number], since[number] = bytes(written.get(number, b"")), []
        else:
            for change in since[number]:
                apply_names(names[number], change)
            since[number] = []
    late: list[tuple[str, int, Any]] = []
    for number in reachable(root, names, since):
        steps = since.get(number, [])
        late += [("names", number, step) for step in steps if step.kind == "names"]
        if writes := [step for step in steps if step.kind == "write"]:
            pages = {
                page
                for step in writes
                for page in range(step.start // PAGE_BYTES, -(-(step.start + len(step.data)) // PAGE_BYTES))
            }
            late += [("page", number, page) for page in sorted(pages)]
            late.append(("length", number, len(written[number])))
    return Disk(data, names, late, {number: bytes(content) for number, content in written.items()})


def reachable(root: Node, names: dict[int, dict[str, Node]], since: dict[int, list[Step]]) -> list[int]:
    """Numbers of the files and folders that have a name, or may have one."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        if node.number not in found:
            found.append(node.number)
            waiting += names.get(node.number, {}).values()
            waiting += [step.child for step in since.get(node.number, []) if step.child is not None]
    return found


def state(disk: Disk, root: Node, kept: list[bool]) -> Tree:
    """The tree that is found when of all that may be there only what is `kept` is."""
    data = {number: bytearray(content) for number, content in disk.data.items()}
    names = {number: dict(entries) for number, entries in disk.names.items()}
    for (kind, number, what), is_kept in zip(disk.late, kept, strict=True):
        if not is_kept:
            continue
        if kind == "names":
            apply_names(names[number], what)
            continue
        content, whole = data.setdefault(number, bytearray()), disk.written[number]
        start, end = (what * PAGE_BYTES, min((what + 1) * PAGE_BYTES, len(whole))) if kind == "page" else (what, what)
        content.extend(bytes(max(0, end - len(content))))
        content[start:end] = whole[start:end]

    def tree(node: Node) -> Tree:
        return {
            name: bytes(data.get(child.number, b"")) if child.names is None else tree(child)
            for name, child in names[node.number].items()
        }

    return tree(root)


def choices(count: int, most: int, rng: random.Random) -> Iterator[list[bool]]:
    """Every choice of what is kept of `count` things, or where there are more than `most`, the ends and a sample."""
    if 2**count <= most:
        yield from (list(kept) for kept in itertools.product((False, True), repeat=count))
        return
    yield from ([False] * count, [True] * count)
    for one in range(count):
        yield [place == one for place in range(count)]
        yield [place != one for place in range(count)]
    for _ in range(most - 2 - 2 * count):
        yield [rng.random() < 0.5 for _ in range(count)]


def frozen(tree: Tree) -> Any:
    """A tree as something that can be hashed: equal for equal states."""
    return tuple(
        (name, frozen(value) if isinstance(value, dict) else hash(value)) for name, value in sorted(tree.items())
    )


# Faults --------------------------------------------------------------------------------------------------------------------


class Meddling:
    """`Files` whose every call passes through `meddle(operation, path)`; True lets it happen, False leaves it out."""

    def __init__(self, files: SimFiles, meddle: Callable[[str, Path], bool]) -> None:
        self._files, self._meddle = files, meddle

    def create(self, path: Path) -> Output:
        self._meddle("create", path)
        return MeddlingOutput(self._files.create(path), self._meddle, path)

    def remove_folder(self, path: Path) -> None:
        try:
            self._meddle("remove_folder", path)
        except OSError:
            self._files.remove_files(path, 2)
            raise
        self._files.remove_folder(path)

    def __getattr__(self, operation: str) -> Any:
        method = getattr(self._files, operation)

        def call(path: Path, *arguments: Any) -> Any:
            return method(path, *arguments) if self._meddle(operation, path) else None

        return call


class MeddlingOutput:
    def __init__(self, out: Output, meddle: Callable[[str, Path], bool], path: Path) -> None:
        self._out, self._meddle, self._path = out, meddle, path

    def write(self, data: Any) -> None:
        try:
            self._meddle("write", self._path)
        except OSError:
            self._out.write(memoryview(data).cast("B")[: len(data) // 2])  # a full disk takes a part
            raise
        self._out.write(data)

    def sync(self) -> None:
        if self._meddle("sync", self._path):
            self._out.sync()

    def close(self) -> None:
        self._meddle("close", self._path)
        self._out.close()


class Failing:
    """Has the k-th operation fail, or that one and all later ones; usable as `meddle`."""

    def __init__(self, failing: int, code: int, lasting: bool) -> None:
        self.failing, self.code, self.lasting = failing, code, lasting
        self.done: list[tuple[str, Path]] = []

    def __call__(self, operation: str, path: Path) -> bool:
        number = len(self.done)
        self.done.append((operation, path))
        if number == self.failing or (self.lasting and number > self.failing):
            raise OSError(self.code, os.strerror(self.code))
        return True
