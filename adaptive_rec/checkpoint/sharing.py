"""Sharing of a generation between two runs: its files, and its rows on a disk, get a second name in the other run's directory.

A file of a generation never changes, and neither does a page of a segment once it was written; a run appends pages to its newest
segment only, behind all that any checkpoint names. So both runs read one file, and what one of them removes the other one keeps.
Where the file system refuses a second name (hard link), files are copied. Loads nothing heavy.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from adaptive_rec.checkpoint.files import Files, os_errors
from adaptive_rec.checkpoint.history import ChainedGeneration
from adaptive_rec.checkpoint.manifest import MANIFEST, DiskEntry, Since, sealed, unsealed
from adaptive_rec.errors import CheckpointError
from adaptive_rec.system.durable import make_folders, sync_folder, write_new
from adaptive_rec.system.regular_files import open_regular

REFUSALS = (
    errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP,
)  # fmt: skip
"""Answers of the system to a link that it does not make, though it may make a copy."""

COPIED_BYTES = 4 << 20
"""Bytes copied at a time."""


@dataclass
class SharedFiles:
    """The files that a run got from another one."""

    linked: int = 0
    linked_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    refusal: str = ""
    """Why files were copied; empty where none were."""
    folders: set[Path] = field(default_factory=set)
    """Folders that have got files, and those above them."""
    since: dict[str, Since] = field(default_factory=dict)
    """How a generation that builds on one of these refers to it, by the names of those that were shared."""
    segments: set[Path] = field(default_factory=set)
    """The files of rows on a disk that the run has got."""

    def add(self, source: Path, target: Path, size_bytes: int) -> None:
        """Link a file, of which `size_bytes` are needed, or copy these. Raises CheckpointError, also for a symbolic link: it may
        lead to any file of the user's."""
        self.folders |= {target.parent, target.parent.parent}
        try:
            os.link(source, target, follow_symlinks=False)
            if not target.is_file() or target.is_symlink():
                target.unlink()
                raise CheckpointError(f"{source} must be a regular file")
        except OSError as error:
            if error.errno not in REFUSALS:
                with os_errors("linking", source):
                    raise
            self._copy(source, target, size_bytes, error.strerror or str(error))
        else:
            self.linked, self.linked_bytes = self.linked + 1, self.linked_bytes + size_bytes

    def _copy(self, source: Path, target: Path, size_bytes: int, refusal: str) -> None:
        left = size_bytes
        with os_errors("copying", source), open_regular(source, links=False) as old, open(target, "xb") as new:
            while left and (part := old.read(min(left, COPIED_BYTES))):
                new.write(part)
                left -= len(part)
            new.flush()
            os.fsync(new.fileno())
        if left:
            raise CheckpointError(f"{source} must have {size_bytes} bytes or more, got {size_bytes - left}")
        self.copied, self.copied_bytes = self.copied + 1, self.copied_bytes + size_bytes
        self.refusal = self.refusal or refusal

    def sync(self) -> None:
        """Return when the names of all files are on the disk."""
        for folder in self.folders:
            with os_errors("sync", folder):
                sync_folder(folder)


@dataclass(frozen=True)
class NewHome:
    """Where the run that gets files has its directory and its rows on a disk."""

    run: Path
    """The run directory as it will be called."""
    draft: Path
    """The same directory, as it is called while it is filled."""
    rows: Path
    """The folder of its rows on a disk, inside of `run` or elsewhere."""

    @property
    def rows_now(self) -> Path:
        """The folder of its rows, as it is called while the directory is filled."""
        rows, run = self.rows.resolve(), self.run.resolve()
        return self.draft / rows.relative_to(run) if rows.is_relative_to(run) else rows

    def folder_of(self, entry: DiskEntry, link: ChainedGeneration) -> Path:
        """Return the folder, within those of all rows, of the rows of one entry of a generation's manifest."""
        entries, path = link.manifest.disk or (), entry.path(link.path)
        return Path(path.name) if len(entries) > 1 else Path()

    def moved(self, entry: DiskEntry, link: ChainedGeneration) -> DiskEntry:
        """Return an entry of a manifest as it is when its rows are here."""
        folder, run = self.rows.resolve() / self.folder_of(entry, link), self.run.resolve()
        inside = folder.is_relative_to(run)
        return entry.model_copy(update={"folder": os.path.relpath(folder, run) if inside else str(folder)})


def share(files: Files, links: list[ChainedGeneration], home: NewHome, shared: SharedFiles) -> None:
    """Give another run a generation and those it builds on (`history.chain`), which are held and whole, and its rows on a disk.
    `shared` has what was done, also where this fails with a CheckpointError; of several generations the newest must come first,
    as segments grow."""
    since: Since | None = None
    for link in links:
        if (done := shared.since.get(link.path.name)) is not None:
            since = done
            continue
        folder = home.draft / "checkpoints" / link.path.name
        with os_errors("creation", folder):
            folder.mkdir(parents=True)
        for entry in link.manifest.files:
            shared.add(link.path / entry.name, folder / entry.name, entry.size_bytes)
        since = shared.since[link.path.name] = _share_manifest(files, link, folder / MANIFEST, home, since, shared)
    _share_rows(links[-1], home, shared)
    shared.sync()


def _share_manifest(
    files: Files, link: ChainedGeneration, target: Path, home: NewHome, since: Since | None, shared: SharedFiles
) -> Since:
    """Share a manifest, or write it anew where rows on a disk are in a folder of another name. `since`: the generation before it.
    Returns how the next one refers to it."""
    old = link.manifest
    disk = None if old.disk is None else tuple(home.moved(entry, link) for entry in old.disk)
    if (disk, since) == (old.disk, old.since):
        source = link.path / MANIFEST
        with os_errors("reading", source):
            size_bytes = files.size_bytes(source)
        shared.add(source, target, size_bytes)
        return link.since
    data = sealed(old.model_copy(update={"disk": disk, "since": since}), target)
    with os_errors("writing", target):
        write_new(target, data)
    return Since(name=link.path.name, crc32=unsealed(data, target).crc32)


def _share_rows(link: ChainedGeneration, home: NewHome, shared: SharedFiles) -> None:
    """Share the segments that a generation has rows in."""
    for entry in link.manifest.disk or ():
        old = entry.path(link.path)
        new = home.rows_now / home.folder_of(entry, link)
        for path, needed_bytes in entry.segments(link.path):
            target = new / path.relative_to(old)
            if target in shared.segments:
                continue
            shared.segments.add(target)
            with os_errors("creation", target.parent):
                make_folders(target.parent)
            shared.add(path, target, needed_bytes)
