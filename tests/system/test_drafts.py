"""Eight processes write the same paths at once: every write is whole, and what killed processes have left goes.

Faults are injected with the errno that such a file system gives: hard links are refused with EPERM by vfat and exfat (link(2)),
with EOPNOTSUPP by some FUSE file systems; O_TMPFILE with EOPNOTSUPP (open(2)); flock with ENOLCK by NFS without a lock service.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.errors import UsageError
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.offline.pages.page import write_page
from adaptive_rec.run.new_directory import check_run_is_new, claim, leave, new_directory
from adaptive_rec.system.drafts import PREFIX, draft_file, draft_folder, is_draft, reserved, write_first
from adaptive_rec.system.durable import new_folder, write_whole

PROCESSES = 8
TIMES = 3


def side_by_side(work: Callable[[int], Any], processes: int = PROCESSES) -> list[str]:
    """Do something in several processes that begin together. Returns what each returned, or its error."""
    begin, children = time.monotonic() + 0.05, list[tuple[int, int]]()
    for number in range(processes):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            time.sleep(max(0.0, begin - time.monotonic()))
            try:
                answer = str(work(number))
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(write, answer.encode())
            os._exit(0)
        os.close(write)
        children.append((pid, read))
    answers = []
    for pid, read in children:
        with open(read, "rb") as pipe:
            answers.append(pipe.read().decode())
        os.waitpid(pid, 0)
    return answers


def fail(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, number: int, flags: int = 0) -> None:
    """Have a function of the system fail; `os.open` only where it is called with these flags."""
    real = getattr(module, name)

    def failing(*args: Any, **options: Any) -> Any:
        if flags and not (len(args) > 1 and args[1] & flags == flags):
            return real(*args, **options)
        raise OSError(number, os.strerror(number), str(args[0]))

    monkeypatch.setattr(module, name, failing)


FILE_SYSTEMS: dict[str, tuple[Any, str, int, int]] = {
    "links": (os, "link", 0, 0),
    "no links (EPERM)": (os, "link", errno.EPERM, 0),
    "no links (EOPNOTSUPP)": (os, "link", errno.EOPNOTSUPP, 0),
    "no O_TMPFILE": (os, "open", errno.EOPNOTSUPP, os.O_TMPFILE),
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name == "no links (EPERM)" else ()) for name in FILE_SYSTEMS]
)
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    module, name, number, flags = FILE_SYSTEMS[request.param]
    if number:
        fail(monkeypatch, module, name, number, flags)
    return str(request.param)


def test_writes_of_one_file_are_whole(tmp_path: Path, file_system: str) -> None:
    """Before, all processes had one draft: of two processes most writes failed with "No such file or directory"."""
    path, texts = tmp_path / "schema.toml", [f"label = '{number}'\n" * 2_000 for number in range(PROCESSES)]

    def work(number: int) -> None:
        for _ in range(TIMES):
            write_whole(path, texts[number])
            assert path.read_text() in texts
            write_page(texts[number], tmp_path / "report.html")

    assert side_by_side(work) == ["None"] * PROCESSES
    assert path.read_text() in texts
    assert sorted(each.name for each in tmp_path.iterdir()) == ["report.html", "schema.toml"]


@pytest.mark.slow
def test_of_several_one_is_the_first(tmp_path: Path, file_system: str) -> None:
    """All processes get the token that one of them has made, and none reads a file that is not yet written."""
    for time_ in range(TIMES):
        options = ServeOptions(token_file=tmp_path / f"token-{time_}")
        (token,) = set(side_by_side(lambda _, options=options: options.read_token()))
        assert token == (tmp_path / f"token-{time_}").read_text().strip()
    assert not [each for each in tmp_path.iterdir() if is_draft(each.name)]


def test_each_start_has_a_directory_of_its_own(tmp_path: Path) -> None:
    """Names have seconds: starts of one second got the same directory, and all but one of them was refused."""
    name = tmp_path / "runs" / "20261128-120000-hybrid"

    def work(number: int) -> str:
        with new_directory(name) as out:
            lock = claim(out)
            (out / "config.toml").write_text(str(number))
            lock.close()
            return out.name

    names = side_by_side(work)
    assert sorted(names) == sorted([name.name, *(f"{name.name}-{n}" for n in range(2, PROCESSES + 1))])
    assert sorted(each.name for each in name.parent.iterdir()) == sorted(names)
    for number, each in enumerate(names):
        assert (name.parent / each / "config.toml").read_text() == str(number)


def test_a_start_that_makes_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError), new_directory(tmp_path / "runs" / "a"):
        raise UsageError("refused")
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    with new_directory(tmp_path / "runs" / "a"):
        pass
    assert (tmp_path / "runs").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file/a cannot be written: File exists"), new_directory(tmp_path / "file" / "a"):
        pass


def test_one_process_gets_a_directory_that_others_begin_in_and_leave(tmp_path: Path) -> None:
    """`leave` removes the directory that `claim` is about to lock."""
    out = tmp_path / "run"

    def work(number: int) -> int:
        refused = 0
        for _ in range(5 * TIMES):
            try:
                leave(out, claim(out))
            except UsageError as error:
                if "must be of one process at a time" not in str(error):
                    raise
                refused += 1
        return refused

    answers = side_by_side(work)
    assert all(answer.isdecimal() for answer in answers), answers
    assert not out.exists()


def killed_with_a_draft(path: Path, folder: bool) -> Path:
    """Have a process be killed while it writes a draft. Returns the draft."""
    pid = os.fork()
    if not pid:
        with draft_folder(path) if folder else draft_file(path) as draft:
            if folder:
                (draft / "rows").write_bytes(b"rows")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (left,) = (each for each in path.parent.iterdir() if each.name.startswith(PREFIX))
    return left


@pytest.mark.parametrize("folder", [True, False])
def test_the_draft_of_a_killed_process_goes_with_the_next_one(tmp_path: Path, folder: bool) -> None:
    left = killed_with_a_draft(tmp_path / "a", folder)
    check_run_is_new(tmp_path)  # a killed start's draft does not count
    with draft_file(tmp_path / "b") as (mine, _):
        assert not left.exists()
        with draft_folder(tmp_path / "c"), reserved([tmp_path / "d"]):
            assert mine.exists(), "a draft in use stays"
    assert not list(tmp_path.iterdir())


def test_what_is_no_draft_stays(tmp_path: Path) -> None:
    names = [".adaptive-rec-draft-mine", f"{PREFIX}{'0' * 15}", f"{PREFIX}{'0' * 16}.csv", ".draft-1", ".x.draft"]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / f"{PREFIX}{'0' * 16}").symlink_to(tmp_path / names[0])
    with new_folder(tmp_path / "out") as draft:
        draft.mkdir()
    assert {each.name for each in tmp_path.iterdir()} == {*names, f"{PREFIX}{'0' * 16}", "out"}
    assert (tmp_path / names[0]).read_text() == "mine"


def test_without_locks_files_are_written_and_drafts_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = killed_with_a_draft(tmp_path / "a", folder=False)
    fail(monkeypatch, fcntl, "flock", errno.ENOLCK)
    write_whole(tmp_path / "a", "text")
    assert (tmp_path / "a").read_text() == "text"
    assert left.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EIO])
def test_an_error_names_the_file_and_not_its_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fail(monkeypatch, os, "open", number, os.O_EXCL)
    for write in (lambda path: write_whole(path, "text"), lambda path: write_first(path, b"text")):
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            write(tmp_path / "a")
        assert caught.value.filename == str(tmp_path / "a")
    assert not list(tmp_path.iterdir())
