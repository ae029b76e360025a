"""The runtime file of a run, which tells shell clients where the run is served and with which tokens.

``$XDG_RUNTIME_DIR/adaptive-rec``, or without that variable ``adaptive-rec-UID`` in the folder for temporary files, holds a
file PID.json for every run that is served. Only its owner may read it: the folder has mode 0700, a file 0600, links are never
followed. A run removes its file at its end; the file of a run that died is removed by the next process that lists the folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from adaptive_rec.errors import AdaptiveRecError, UsageError, did_you_mean
from adaptive_rec.live.life import OVER, holder, state_of_directory
from adaptive_rec.live.sign_in_code import new_code
from adaptive_rec.system.regular_files import parse_json

MAX_FILE_BYTES = 1 << 16
NAME = re.compile(r"([1-9][0-9]{0,9})\.json")
DRAFT = re.compile(r"\.([1-9][0-9]{0,9})\.[0-9a-f]{16}")
START_TIME_FIELD = 22
"""Number of the field in /proc/PID/stat, counted from 1, that holds the start time of a process in clock ticks."""


@dataclass(frozen=True)
class RuntimeFile:
    """How a client reaches a run that is served. `run` is its directory, absolute; `started` is in unix seconds."""

    pid: int
    run: str
    url: str
    socket: str | None
    control_token: str = field(repr=False)
    read_token: str = field(repr=False)
    started: float
    process_start: int | None = None
    """Start time of the process, which distinguishes it from a later one with the same id. `write` fills it in."""

    @property
    def age_seconds(self) -> float:
        """How long the process has lived, whatever became of the wall clock; since `started` where the system does not say."""
        if self.process_start is None:
            return max(0.0, time.time() - self.started)
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.process_start / os.sysconf("SC_CLK_TCK")

    @property
    def name(self) -> str:
        return Path(self.run).name

    @property
    def dashboard_url(self) -> str:
        """A link that signs a browser in once, within minutes. The code is in its fragment, which browsers never send."""
        return f"{self.url}/#c={new_code(self.control_token)}"


def folder() -> Path:
    """Return the folder of the runtime files, which may not exist yet."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and os.path.isdir(own):
        return Path(own) / "adaptive-rec"
    return Path(tempfile.gettempdir()) / f"adaptive-rec-{os.getuid()}"


def socket_path(pid: int) -> Path:
    """Return the path of a run's Unix socket, in the same folder."""
    return folder() / f"{pid}.sock"


def make_runtime_folder() -> Path:
    """Make the folder if it does not exist. Raises AdaptiveRecError if other users could read or write it."""
    path = folder()
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise AdaptiveRecError(f"{path}, the folder for runtime files, cannot be made: {error.strerror}") from None
    with _opened(path):
        return path


def write_runtime_file(file: RuntimeFile) -> Path:
    """Write, or replace, the file of a run, and return its path."""
    path = make_runtime_folder()
    values = asdict(replace(file, process_start=_process_start(file.pid)))
    draft = f".{file.pid}.{secrets.token_hex(8)}"
    with _opened(path) as directory:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(draft, flags, 0o600, dir_fd=directory), "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o600)
            json.dump(values, stream)
        os.rename(draft, f"{file.pid}.json", src_dir_fd=directory, dst_dir_fd=directory)
    return path / f"{file.pid}.json"


def remove(pid: int) -> None:
    """Remove a run's file and socket from the folder, if they are there."""
    with suppress(FileNotFoundError), _opened(folder()) as directory:
        _unlink(directory, pid)


def under_way() -> list[RuntimeFile]:
    """Return the runs that are served now, oldest first, and remove the files of processes that have ended."""
    return scanned()[0]


def scanned() -> tuple[list[RuntimeFile], list[str]]:
    """Return the runs that are served now, and what is wrong with the files of other processes that are alive. What processes
    that have ended have left is removed."""
    found, damaged = [], []
    with suppress(FileNotFoundError), _opened(folder()) as directory:
        for name in sorted(os.listdir(directory)):
            if (draft := DRAFT.fullmatch(name)) and not is_alive(int(draft[1]), None):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
            if named := NAME.fullmatch(name):
                pid, file, fault = int(named[1]), None, ""
                try:
                    file = _read(directory, name)
                except FileNotFoundError:
                    continue  # the run has just ended
                except (OSError, ValueError, TypeError, LookupError) as error:
                    fault = f"{folder() / name} of process {pid} is damaged or open to others: {error}"
                if not is_alive(pid, file.process_start if file else None):
                    _unlink(directory, pid)
                elif file is not None and file.pid == pid:
                    found.append(file)
                else:
                    damaged.append(fault or f"{folder() / name} names another process, {file.pid if file else None}")
    return sorted(found, key=lambda file: (file.process_start or 0, file.started, file.pid)), damaged


def find_run(run: str | None) -> RuntimeFile:
    """Return the run with this process id, run directory or name; for None, the only run there is."""
    files, damaged = scanned()
    passed_over = "".join(f"\npassed over: {each}" for each in damaged)
    if not files:
        named = _not_served(run) if run else ""
        raise UsageError(f"no run is under way (adaptive-rec train starts one){named}{passed_over}", faq="no-run-under-way")
    if run is None:
        if len(files) > 1:
            raise UsageError(f"{len(files)} runs are under way; say which one:\n{_choices(files)}", faq="several-runs")
        return files[0]
    # What a user typed may be a path as well as a name, and a directory may be named like a process id.
    directory = os.path.realpath(run)
    for means in (
        [file for file in files if str(file.pid) == run],
        [file for file in files if os.path.realpath(file.run) == directory],
        [file for file in files if file.name == run],
    ):
        if len(means) == 1:
            return means[0]
        if means:
            raise UsageError(f"{len(means)} runs are named {run}; say which one:\n{_choices(means)}")
    hint = _not_served(run) or did_you_mean(run, [file.name for file in files])
    raise UsageError(f"no run {run} is under way{hint}; these are:\n{_choices(files)}{passed_over}", faq="no-run-under-way")


def is_alive(pid: int, process_start: int | None) -> bool:
    """Return whether a process with this id is alive and, if both times are known, has this start time."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    fields = stat_fields(pid)
    if not fields:
        return True
    ended = fields[0] in "ZX"
    return not ended and (process_start is None or int(fields[START_TIME_FIELD - 3]) == process_start)


def parent_process(pid: int) -> int | None:
    """Return the process that has started this one; None if the system does not say."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None


def _not_served(run: str) -> str:
    """Say what the run in a directory is doing, or what became of it, where a client names one that is not served."""
    state = state_of_directory(Path(run))
    if state is None:
        return ""
    if state == "starting":
        return f"; the run in {run} is starting"
    if state not in (*OVER, "branched"):
        ends = f", kill {process} ends it with a checkpoint" if (process := holder(Path(run))) else ""
        without = f"without a service (--no-serve): adaptive-rec serve {run} shows it{ends}"
        return f"; the run in {run} is {state.replace('_', ' ')} {without}"
    goes_on = "" if state == "finished" else f", adaptive-rec train --resume --out {run} goes on"
    return f"; the run in {run} {'was' if state == 'killed' else 'is'} {state}, see adaptive-rec serve {run}{goes_on}"


def _choices(files: list[RuntimeFile]) -> str:
    return "\n".join(f"  --run {file.pid}   {file.run}" for file in files)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the folder. Raises AdaptiveRecError unless it is a directory of this user, closed to others."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AdaptiveRecError(f"{path} must be a directory of yours, and no link: {error.strerror}") from None
    try:
        about = os.fstat(directory)
        mode = stat.S_IMODE(about.st_mode)
        if about.st_uid != os.geteuid():
            raise AdaptiveRecError(f"{path} must be owned by you (user {os.geteuid()}), its owner is {about.st_uid}")
        if mode & 0o077:
            raise AdaptiveRecError(f"{path} must have mode 700, it has {mode:o}; others could meet your tokens there")
        yield directory
    finally:
        os.close(directory)


def _read(directory: int, name: str) -> RuntimeFile:
    """Read a runtime file. Raises OSError, ValueError, TypeError or LookupError where it is missing, damaged or open to
    others."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=directory), encoding="utf-8") as stream:
        about = os.fstat(stream.fileno())
        if not (stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077):
            raise ValueError("it must be a plain file of yours with mode 600")
        values = parse_json(stream.read(MAX_FILE_BYTES))
    for key, fits in _FITS.items():
        if not fits(values.get(key) if key in _OPTIONAL else values[key]):
            raise ValueError(f"{key} does not fit")
    return RuntimeFile(**{key: values.get(key) for key in _FITS})


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_path(value: object) -> bool:
    return isinstance(value, str) and os.path.isabs(value) and b"\0" not in os.fsencode(value)


def _is_token(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[!-~]+", value) is not None


def _is_url(value: object) -> bool:
    return _is_token(value) and str(value).startswith("http://") and urlsplit(str(value)).port is not None


_OPTIONAL = ("socket", "process_start")
_FITS: dict[str, Callable[[object], bool]] = {
    "pid": _is_number,
    "run": _is_path,
    "url": _is_url,
    "socket": lambda value: value is None or _is_path(value),
    "control_token": _is_token,
    "read_token": _is_token,
    "started": lambda value: isinstance(value, (int, float)) and 0 <= value < 1e12,
    "process_start": lambda value: value is None or _is_number(value),
}
"""Whether a value is one that a run writes."""


def _unlink(directory: int, pid: int) -> None:
    for name in (f"{pid}.json", f"{pid}.sock"):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)


def stat_fields(process: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on, or of a thread, PID/task/ID; none where there is no such file."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the second field is the program's name, in brackets, and may hold anything


def _process_start(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[START_TIME_FIELD - 3]) if fields else None
