"""The generations of a run: chains of them, the newest whole one, and the removal of old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from adaptive_rec.checkpoint.files import Files, UnreadableError, os_errors
from adaptive_rec.checkpoint.generation import (
    generations,
    names_in,
    newest_of_step,
    read_manifest,
    remove_generations,
    remove_leftovers,
    step_of,
    verify_generation,
    verify_sizes,
)
from adaptive_rec.checkpoint.manifest import Manifest, Since
from adaptive_rec.errors import CheckpointError

KEEP_AT_LEAST = 2

MOST_LINKS = 100
"""Limit of a chain's length; a run makes far shorter ones."""


@dataclass
class Found:
    """Result of the search for the newest whole generation."""

    generation: Path | None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(name, reason) of newer generations, or of all if none is whole."""


@dataclass(frozen=True)
class ChainedGeneration:
    """A generation of a chain, which is a generation of all rows and those of changes that build on it."""

    path: Path
    manifest: Manifest

    @property
    def since(self) -> Since:
        """Return how a generation that builds on this one refers to it."""
        return Since(name=self.path.name, crc32=self.manifest.crc32)


def chain(files: Files, generation: Path, known: dict[Path, Manifest] | None = None) -> list[ChainedGeneration]:
    """Return a generation and those it builds on, the one of all rows first. Only manifests are read, those that are `known` not
    again. Raises CheckpointError where one is missing or has been replaced."""
    known = {} if known is None else known
    links = [ChainedGeneration(generation, _manifest(files, generation, known))]
    while (since := links[0].manifest.since) is not None:
        if len(links) == MOST_LINKS:
            raise CheckpointError(f"{generation} must build on fewer than {MOST_LINKS} generations")
        newer = links[0].path
        try:
            links.insert(0, ChainedGeneration(newer.parent / since.name, read_older(files, newer, since, known)))
        except UnreadableError:
            raise
        except CheckpointError as error:
            context = "" if newer == generation else f"{generation} builds on {newer.name}: "
            raise CheckpointError(f"{context}{error}") from None
    return links


def _manifest(files: Files, generation: Path, known: dict[Path, Manifest]) -> Manifest:
    if generation not in known:
        known[generation] = read_manifest(files, generation)
    return known[generation]


def read_older(files: Files, newer: Path, since: Since, known: dict[Path, Manifest]) -> Manifest:
    """Read the manifest of the generation that another one builds on."""
    path = newer.parent / since.name
    if since.name == newer.name or generations([since.name, newer.name])[0] != since.name:
        raise CheckpointError(f"{newer} must build on an older generation, got {since.name}")
    try:
        manifest = _manifest(files, path, known)
    except UnreadableError:
        raise
    except CheckpointError as error:
        raise CheckpointError(f"{newer} builds on {since.name}, which cannot be used: {error}") from None
    if manifest.crc32 != since.crc32:
        raise CheckpointError(
            f"{newer} builds on another {since.name}, whose manifest had crc32 {since.crc32}, got one with {manifest.crc32}"
        )
    return manifest


def verify_all(files: Files, generation: Path) -> None:
    """Read every byte of a generation and of those it builds on. Raises CheckpointError where one has changed. Of rows on a disk
    only the sizes of files are checked: each page is checked when it is read."""
    links = chain(files, generation)
    for link in links:
        verify_generation(files, link.path)
    _check_disk(files, links[-1])


def _check_disk(files: Files, link: ChainedGeneration) -> None:
    """Raise CheckpointError where a segment is missing, cut off or no regular file."""
    for path, needed in (each for entry in link.manifest.disk or () for each in entry.segments(link.path)):
        with os_errors("reading", path):
            size_bytes = files.size_bytes(path)
        if size_bytes < needed:
            raise CheckpointError(f"{path} must have {needed} bytes or more, got {size_bytes}")


def newest_names(files: Files, folder: Path, keep: int) -> list[str]:
    """Return the names of the newest generations of a folder: a run can be resumed from these."""
    return generations(names_in(files, folder))[-keep:]


def names_in_use(files: Files, folder: Path, keep: int, best: Sequence[int] = ()) -> list[str]:
    """Return the newest names, those of the `best` steps that they need, those of generations that are being read, and where the
    newest build on the same one, the newest that does not: as `prune` keeps it."""
    verified, names = Verified(files, folder), generations(names_in(files, folder))
    newest, older = names[-keep:], names[:-keep]
    bases = verified.bases(newest)
    used = [name for name in older if len(bases) == 1 and verified.bases([name]) != bases][-1:]
    used += [name for name in of_best(older, best, [*used, *newest]) if name not in used]
    for name in older:
        if name in used:
            continue
        with os_errors("locking", folder / name), files.unread(folder / name) as unread:
            used += [] if unread else [name]
    return used + newest


class Verified:
    """Damage of the generations of a folder. Each generation is read once."""

    def __init__(self, files: Files, folder: Path, by_sizes: bool = False) -> None:
        """`by_sizes`: files are not read, only their sizes are compared with the manifests."""
        self._files, self._folder, self._by_sizes = files, folder, by_sizes
        self._known: dict[Path, Manifest] = {}
        self._own: dict[str, str] = {}
        self._chains: dict[str, tuple[list[ChainedGeneration], str]] = {}

    def manifest(self, name: str) -> Manifest:
        return _manifest(self._files, self._folder / name, self._known)

    def damage(self, name: str) -> str:
        """Return what is wrong with a generation or one that it builds on, or nothing."""
        links, why = self._chain(name)
        for link in reversed(links):
            if damage := self.own(link.path.name):
                return damage if link is links[-1] else f"{self._folder / name} builds on {link.path.name}: {damage}"
        if links and not why:
            try:
                _check_disk(self._files, links[-1])
            except CheckpointError as error:
                return str(error)
        return why

    def own(self, name: str) -> str:
        """Return what is wrong with a generation itself, or nothing."""
        if name not in self._own:
            try:
                if self._by_sizes:
                    verify_sizes(self._files, self._folder / name, self.manifest(name))
                else:
                    verify_generation(self._files, self._folder / name)
                self._own[name] = ""
            except UnreadableError:
                raise
            except CheckpointError as error:
                self._own[name] = str(error)
        return self._own[name]

    def needed(self, names: list[str]) -> set[str]:
        """Return these generations and those they build on, as far as manifests can be read."""
        return {*names, *(link.path.name for name in names for link in self._chain(name)[0])}

    def bases(self, names: list[str]) -> set[str]:
        """Return the generations of all rows that these build on or are, as far as manifests can be read."""
        return {links[0].path.name for links, _ in map(self._chain, names) if links}

    def _chain(self, name: str) -> tuple[list[ChainedGeneration], str]:
        """Return a chain, or the reason why there is none."""
        if name not in self._chains:
            try:
                self._chains[name] = chain(self._files, self._folder / name, self._known), ""
            except UnreadableError:
                raise
            except CheckpointError as error:
                self._chains[name] = [], str(error)
        return self._chains[name]


def newest_valid(files: Files, folder: Path) -> Found:
    """Find the newest generation of a folder whose checksums are all right, and those of the generations it builds on."""
    with newest_held(files, folder) as found:
        return found


@contextmanager
def newest_held(files: Files, folder: Path) -> Iterator[Found]:
    """Find the newest whole generation, as `newest_valid` does. In the body of a ``with``, the run that wrote it removes neither
    it nor what it builds on."""
    with ExitStack() as holding:
        while (found := _search(files, folder, holding)) is None:
            pass
        yield found


@contextmanager
def hold_generation(files: Files, generation: Path) -> Iterator[None]:
    """In the body of a ``with``, the run that wrote a generation removes neither it nor what it builds on. Raises CheckpointError
    where it is gone."""
    with ExitStack() as holding:
        try:
            with os_errors("reading", generation):
                holding.enter_context(files.reading(generation))
        except CheckpointError:
            if generation.name not in names_in(files, generation.parent):
                raise CheckpointError(
                    f"{generation} was removed by its run meanwhile, newer ones have taken its place"
                ) from None
        yield


def _search(files: Files, folder: Path, holding: ExitStack) -> Found | None:
    """Find the newest whole generation and hold it. None where the run has removed one of the folder meanwhile."""
    found, verified = Found(None), Verified(files, folder)
    for name in reversed(generations(names_in(files, folder))):
        with ExitStack() as this:
            try:
                this.enter_context(hold_generation(files, folder / name))
            except CheckpointError:
                return None
            why = verified.damage(name)
            if not why:
                found.generation = folder / name
                holding.push(this.pop_all())
                break
        found.skipped.append((name, why))
    return found


def of_best(older: list[str], best: Sequence[int], kept: list[str]) -> list[str]:
    """Return, for each generation that is kept, the older one of the best model by then. `best`: the steps of all evaluations
    that were the best when they were made, in order."""
    steps = {max((step for step in best if step <= step_of(name)), default=None) for name in kept}
    return [name for step in sorted(step for step in steps if step is not None) for name in newest_of_step(older, step)]


def prune(files: Files, folder: Path, keep: int, best: Sequence[int] = ()) -> list[str]:
    """Remove old generations, all drafts and the rest of removed generations. Returns the names of what was removed.

    The newest `keep` whole generations stay, and those that they build on. Where all of these build on the same generation, the
    newest one that does not stays too, so that no single damage takes all. So does, for each of these, the one of the best
    model by then: `best` has the steps of all evaluations that were the best when they were made. A generation is removed
    only after `keep` newer ones were read again and found whole; damaged ones among these stay. Raises CheckpointError
    where the newest one is damaged, which is so known as soon as it is written.
    """
    if keep < KEEP_AT_LEAST:
        raise CheckpointError(f"generations to keep must be {KEEP_AT_LEAST} or more, got {keep}")
    names = names_in(files, folder)
    removed = remove_leftovers(files, folder, names)
    ordered, verified = generations(names), Verified(files, folder)
    if not ordered:
        return removed
    nothing_to_go = len(ordered) <= keep or (
        verified.bases(ordered[-1:]) and not _needless(verified, ordered, len(ordered) - keep, lambda name: True, best)
    )
    if nothing_to_go:
        _raise(verified.own(ordered[-1]))
        return removed
    whole = 0
    for place in range(len(ordered) - 1, -1, -1):
        whole += not verified.damage(ordered[place])
        if whole == keep:
            needless = _needless(verified, ordered, place, lambda name: not verified.damage(name), best)
            removed += remove_generations(files, folder, needless)
            break
    _raise(verified.damage(ordered[-1]))
    return removed


def _needless(
    verified: Verified, ordered: list[str], place: int, is_whole: Callable[[str], bool], best: Sequence[int]
) -> list[str]:
    """Return the generations before a place that may be removed; those of the `best` steps that the others need may not."""
    older, kept = ordered[:place], ordered[place:]
    bases = verified.bases([name for name in kept if is_whole(name)])
    if len(bases) == 1:
        others = [name for name in reversed(older) if verified.bases([name]) != bases]
        whole = [name for name in others if is_whole(name)][:1]
        if others and not whole:  # or they cannot be read at this moment
            return []
        kept += whole
    needed = verified.needed([*kept, *of_best(older, best, kept)])
    return [name for name in older if name not in needed]


def _raise(damage: str) -> None:
    if damage:
        raise CheckpointError(damage)
