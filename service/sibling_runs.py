"""The runs beside the one that is served: the directories in the folder that holds its own, one level."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from adaptive_rec.service.hello import Values
from adaptive_rec.service.metric_history import MetricHistory
from adaptive_rec.service.problems import ProblemError
from adaptive_rec.service.run_digest import RunDigest

MOST_ENTRIES = 20_000
"""Entries of the folder that are looked at."""
PART_BYTES, PAGE_BYTES = 16 << 20, 64 << 20
"""Most that is read of one file, and of all files, for one page of the list; the next request goes on from there."""
DIGESTS_KEPT, HISTORIES_KEPT = 4096, 12


class SiblingRuns:
    """Lists runs and reads their curves. Nothing outside the folder is read: links count as missing. Any thread may call it."""

    def __init__(self, own: Path) -> None:
        self._folder, self._own = own.parent, own.name
        self._lock = Lock()
        self._digests: OrderedDict[str, RunDigest] = OrderedDict()
        self._histories: OrderedDict[str, MetricHistory] = OrderedDict()

    def page(self, contains: str, offset: int, limit: int) -> Values:
        """Return some of the runs whose names contain a text, in upper or lower case; those started last come first."""
        names, cut = self._names(contains.casefold())
        with self._lock:
            runs, left = [], PAGE_BYTES
            for name in names[offset : offset + limit]:
                digest = self._digest(name)
                if left > 0:
                    left -= digest.look(PART_BYTES)
                runs.append({**digest.described(), "own": name == self._own})
        return {"runs": runs, "total": len(names), "cut": cut}

    def curves(self, name: str, read: Callable[[MetricHistory], Values]) -> Values:
        """Return what `read` makes of the curves of a run, up to now. Raises a problem if there is no such run."""
        if not is_name(name) or started_ns(self._folder / name) is None:
            raise ProblemError(404, f"name must be that of a run in the list, got {name[:100]!r}")
        with self._lock:
            history = self._histories.pop(name, None)
            if history is None or history.was_replaced():
                history = MetricHistory(self._folder / name, len(self._digest(name).about.tables), links=False)
            self._histories[name] = history
            while len(self._histories) > HISTORIES_KEPT:
                self._histories.popitem(last=False)
            history.refresh()
            return read(history)

    def table_curves(self, name: str, table: str, read: Callable[[MetricHistory, int], Values]) -> Values:
        """Return what `read` makes of the curves of a run and the index of a table. Raises a problem if there is none."""

        def read_table(history: MetricHistory) -> Values:
            tables = [each.name for each in self._digest(name).about.tables]
            if table not in tables:
                raise ProblemError(404, f"table must be the name of a table of the run, got {table[:100]!r}")
            return read(history, tables.index(table))

        return self.curves(name, read_table)

    def _digest(self, name: str) -> RunDigest:
        digest = self._digests.pop(name, None)
        if digest is None or digest.was_replaced():
            digest = RunDigest(self._folder / name)
        self._digests[name] = digest
        while len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)
        return digest

    def _names(self, contains: str) -> tuple[list[str], bool]:
        """Return the names of the runs, those started last first, and whether the folder has more entries than were looked at."""
        found: list[tuple[int, str]] = []
        cut = False
        try:
            with os.scandir(self._folder) as entries:
                for number, entry in enumerate(entries):
                    if number == MOST_ENTRIES:
                        cut = True
                        break
                    if is_name(entry.name) and contains in entry.name.casefold():
                        started = started_ns(self._folder / entry.name)
                        if started is not None:
                            found.append((-started, entry.name))
        except OSError:
            pass
        return [name for _, name in sorted(found)], cut


def is_name(name: str) -> bool:
    """Return whether a text may be the name of a run: that of one folder, not hidden, and text that a client can send."""
    return (
        not name.startswith(".")
        and not {"/", "\0"} & {*name}
        and not any("\ud800" <= each <= "\udfff" for each in name)
    )


def started_ns(run: Path) -> int | None:
    """Return when the description of a run was written; None where the path is no directory with such a file, or a link."""
    try:
        if not stat.S_ISDIR(os.lstat(run).st_mode):
            return None
        found = os.lstat(run / "run.json")
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None
