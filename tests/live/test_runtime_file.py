"""Runtime files: private, never through links, gone with their process."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from adaptive_rec.errors import AdaptiveRecError, UsageError
from adaptive_rec.live import runtime_file
from adaptive_rec.live.runtime_file import (
    RuntimeFile,
    find_run,
    folder,
    is_alive,
    make_runtime_folder,
    remove,
    under_way,
    write_runtime_file,
)
from adaptive_rec.live.sign_in_code import made_at


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "adaptive-rec"


def file_of(pid: int, run: str = "/data/runs/one", started: float = 1.0) -> RuntimeFile:
    return RuntimeFile(pid, run, f"http://127.0.0.1:{pid % 60_000}", None, "control", "read", started)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def others():
    """Two processes that live as long as the test."""
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    yield [process.pid for process in started]
    for process in started:
        process.communicate(b"\n")


def ended_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_what_is_written_is_found_again_and_removed():
    path = write_runtime_file(file_of(os.getpid()))
    assert under_way() == [find_run(None)]
    found = find_run(None)
    assert (found.run, found.name, found.control_token) == ("/data/runs/one", "one", "control")
    address, _, code = found.dashboard_url.partition("/#c=")
    assert address == f"http://127.0.0.1:{os.getpid()}"
    assert made_at("control", code.encode()) is not None
    assert "control" not in found.dashboard_url
    remove(os.getpid())
    assert not path.exists()
    remove(os.getpid())  # nothing there is no error
    assert under_way() == []


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_only_the_owner_may_read_whatever_the_umask(own_folder, mask):
    make_runtime_folder()
    before = os.umask(mask)
    try:
        path = write_runtime_file(file_of(os.getpid()))
    finally:
        os.umask(before)
    assert (mode(own_folder), mode(path)) == (0o700, 0o600)
    assert [entry.name for entry in own_folder.iterdir()] == [path.name]  # no draft left


def test_writing_again_replaces_the_file_and_not_what_a_link_there_points_to(own_folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    make_runtime_folder()
    (own_folder / f"{os.getpid()}.json").symlink_to(victim)
    write_runtime_file(file_of(os.getpid()))
    assert victim.read_text() == "precious"
    assert not (own_folder / f"{os.getpid()}.json").is_symlink()
    assert len(under_way()) == 1


def test_a_file_behind_a_link_is_not_read(own_folder, tmp_path):
    path = write_runtime_file(file_of(os.getpid()))
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert under_way() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "\xff", "[" * 60_000])
def test_a_damaged_file_is_passed_over_and_named(own_folder, text):
    make_runtime_folder()
    path = own_folder / f"{os.getpid()}.json"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    assert under_way() == []
    with pytest.raises(
        UsageError, match=f"passed over: {path} of process {os.getpid()} is damaged or open to others: "
    ):
        find_run(None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pid", 1),
        ("run", None),
        ("run", "/\ud800"),
        ("run", "/\0"),
        ("url", "http://[::1"),
        ("url", "http://127.0.0.1:99999"),
        ("socket", "here"),
        ("control_token", "a\nb"),
        ("started", "1"),
        ("started", float("nan")),
        ("process_start", True),
    ],
)
def test_a_value_that_no_run_writes_is_damage(own_folder, key, value):
    path = write_runtime_file(file_of(os.getpid()))
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert under_way() == []
    with pytest.raises(UsageError, match=f"passed over: {path} "):
        find_run("one")


def test_names_that_no_process_has_are_left_alone(own_folder):
    make_runtime_folder()
    names = ("9" * 30, "0", "\u0661")
    for name in names:
        (own_folder / f"{name}.json").touch(0o600)
    assert under_way() == []
    assert len(list(own_folder.iterdir())) == len(names)


def test_a_file_that_others_may_read_is_passed_over():
    path = write_runtime_file(file_of(os.getpid()))
    path.chmod(0o644)
    assert under_way() == []
    path.chmod(0o600)
    assert len(under_way()) == 1


def test_a_pipe_in_place_of_a_file_does_not_block(own_folder):
    make_runtime_folder()
    os.mkfifo(own_folder / f"{os.getpid()}.json", 0o600)
    assert under_way() == []


def test_a_folder_open_to_others_is_refused(own_folder):
    make_runtime_folder()
    own_folder.chmod(0o750)
    for use in (make_runtime_folder, under_way, lambda: write_runtime_file(file_of(os.getpid()))):
        with pytest.raises(AdaptiveRecError, match="must have mode 700, it has 750"):
            use()


def test_a_link_in_place_of_the_folder_is_refused(own_folder, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    own_folder.symlink_to(tmp_path / "real")
    with pytest.raises(AdaptiveRecError, match="no link"):
        write_runtime_file(file_of(os.getpid()))
    assert list((tmp_path / "real").iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(own_folder, monkeypatch):
    make_runtime_folder()
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(AdaptiveRecError, match="must be owned by you"):
        under_way()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime_file, "folder", lambda: tmp_path / "absent" / "adaptive-rec")
    with pytest.raises(AdaptiveRecError, match="cannot be made"):
        make_runtime_folder()
    assert under_way() == []


def test_without_a_runtime_directory_the_folder_is_the_user_s_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for value in (None, "", str(tmp_path / "absent")):
        monkeypatch.delenv("XDG_RUNTIME_DIR") if value is None else monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        assert folder() == tmp_path / f"adaptive-rec-{os.getuid()}"


def test_the_file_and_socket_of_a_dead_run_are_removed(own_folder):
    pid = ended_pid()
    path = write_runtime_file(file_of(pid))
    path.with_suffix(".sock").touch()
    write_runtime_file(file_of(os.getpid()))
    assert [file.pid for file in under_way()] == [os.getpid()]
    assert [entry.name for entry in own_folder.iterdir()] == [f"{os.getpid()}.json"]


def test_a_process_id_used_again_is_not_taken_for_the_run():
    path = write_runtime_file(file_of(os.getpid()))
    values = json.loads(path.read_text())
    assert isinstance(values["process_start"], int)
    path.write_text(json.dumps({**values, "process_start": values["process_start"] - 1}))
    assert under_way() == []
    assert not path.exists()


def test_a_process_that_ended_but_was_not_waited_for_is_dead():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process.pid, None)
    process.wait()


def test_a_run_is_found_by_id_directory_and_name(others, tmp_path, monkeypatch):
    first, second = others
    one, two = tmp_path / "runs" / "one", tmp_path / "runs" / "two"
    two.mkdir(parents=True)
    write_runtime_file(file_of(second, str(two), started=2.0))
    write_runtime_file(file_of(first, str(one), started=1.0))
    assert [file.pid for file in under_way()] == [first, second]
    assert find_run(str(second)).pid == second
    assert find_run("two").pid == second
    assert find_run(str(one)).pid == first
    monkeypatch.chdir(tmp_path / "runs")
    assert find_run("./two").pid == second
    monkeypatch.chdir(two)
    assert find_run(".").pid == second


def test_which_run_is_meant_must_be_clear(others):
    with pytest.raises(UsageError, match=r"no run is under way \(adaptive-rec train starts one\)"):
        find_run(None)
    first, second = others
    write_runtime_file(file_of(first, "/a/same"))
    assert find_run(None).pid == first
    write_runtime_file(file_of(second, "/b/same"))
    for run in (None, "same"):
        with pytest.raises(UsageError) as caught:
            find_run(run)
        assert f"--run {first}   /a/same\n  --run {second}   /b/same" in str(caught.value)
    with pytest.raises(UsageError, match="no run smae is under way; did you mean same?"):
        find_run("smae")


def test_tokens_stay_out_of_what_is_printed_of_a_file():
    shown = repr(file_of(1))
    assert "127.0.0.1" in shown
    assert "control" not in shown
    assert "read" not in shown


@pytest.mark.parametrize(
    ("kinds", "held", "state"),
    [
        (["started", "finished"], False, r"is finished, see adaptive-rec serve [^,]+$"),
        (["started", "paused"], False, r"was killed, see adaptive-rec serve \S+, adaptive-rec train --resume --out \S+ goes on"),
        (["started", "suspended"], False, r"is suspended, see adaptive-rec serve \S+, \S+ train --resume --out \S+ goes on"),
        (["started"], True, r"is training without a service \(--no-serve\): \S+ serve \S+ shows it, kill HOLDER ends it"),
        ([], True, "is starting"),
    ],
)
def test_a_run_that_is_not_served_is_named_with_its_state(own_folder, tmp_path, kinds, held, state):
    run = tmp_path / "one"
    run.mkdir()
    (run / "run.json").write_text("{}")
    (run / "events.jsonl").write_text("".join(json.dumps({"step": 1, "kind": kind}) + "\n" for kind in ["saving", *kinds]))
    (run / ".lock").touch()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(run / ".lock")], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    with holder:
        assert holder.stdout.readline() == b"held\n"
        if not held:
            holder.communicate()
        for others in (False, True):
            if others:
                write_runtime_file(file_of(os.getpid()))
            with pytest.raises(UsageError, match=f"; the run in {run} {state.replace('HOLDER', str(holder.pid))}"):
                find_run(str(run))
            with pytest.raises(UsageError, match=r"is under way|starts one\)$"):
                find_run(str(tmp_path))
        holder.communicate()


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
