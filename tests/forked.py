"""Commands of adaptive-rec in processes of their own that begin with their libraries loaded, which takes a fresh one seconds.

One server for each process of pytest imports what a run needs and forks for each command; fork() keeps commands apart, as in
``cli/warm.py``. What a test is to see of the start itself (imports, the words of a process, its standing in the session) needs a
fresh process: use subprocess there. The parts of `make test` are forked in the same way, each with a server of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

LOADED = (
    "adaptive_rec.run.training_run", "adaptive_rec.offline.report.run_report", "adaptive_rec.live.sidecar", "torch._dynamo",
)  # fmt: skip


PR_SET_PDEATHSIG = 1


class Forked:
    """A command in a process of its own, with the parts of subprocess.Popen that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._code: int | None = None
        self._ended = threading.Event()

    def end_with(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        self.returncode = self._code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("adaptive_rec", timeout or 0)
        self.returncode = self._code
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, as with subprocess.Popen
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that forks, and what has become of the commands. `link` and `pid` are those of one that is there already."""

    def __init__(self, link: socket.socket | None = None, pid: int = 0) -> None:
        if link is None:
            link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
                here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
                self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=here)
                pid = self.process.pid
        self._link, self.pid = link, pid
        self._commands: dict[int, Forked] = {}
        self._asking, self._started = threading.Lock(), threading.Semaphore(0)
        self._newest: Forked | None = None
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self._link.close)

    def start(
        self, words: list[str], output: int, environment: dict[str, str], folder: Path | None = None, first: str = "",
        errors: int | None = None, main: str = "adaptive_rec.cli:main",
    ) -> Forked:  # fmt: skip
        """Start a command whose output and errors go to file descriptors; it has a session of its own. `main`: module and
        function that read the words."""
        order = {"words": words, "environment": environment, "folder": str(folder or Path.cwd()), "first": first, "main": main}
        with self._asking:
            socket.send_fds(self._link, [json.dumps(order).encode()], [output, output if errors is None else errors])
            assert self._started.acquire(timeout=240), "no process was forked"
            assert self._newest is not None, "the server has ended"
            return self._newest

    def end(self) -> None:
        """End a server of this process, which the seconds of what it forked are counted for."""
        self._link.shutdown(socket.SHUT_RDWR)
        self.process.wait()

    def _listen(self) -> None:
        while told := self._link.recv(1 << 12):
            pid, code = json.loads(told)
            if code is None:
                self._newest = self._commands[pid] = Forked(pid)
                self._started.release()
            else:
                self._commands.pop(pid).end_with(code)
        self._newest = None
        self._started.release()
        for command in self._commands.values():
            command.end_with(-signal.SIGKILL)


prepared: tuple[socket.socket, int] | None = None
"""The link to the server of this process, and its process id, where this is a part of `make test`."""


@cache
def server() -> Server:
    return Server(*prepared) if prepared is not None else Server()


def server_process() -> int | None:
    """The process id of the server; None where none has been started."""
    return server().pid if server.cache_info().currsize else None


def start(
    words: list[str], output: int, environment: dict[str, str], folder: Path | None = None, first: str = "",
    errors: int | None = None,
) -> Any:  # fmt: skip
    """Start a command of adaptive-rec, once `first` is imported; without descriptors of processes, as a fresh one."""
    if hasattr(os, "pidfd_open"):
        return server().start(words, output, environment, folder, first, errors)
    begin = f"import sys; {f'import {first}; ' if first else ''}from adaptive_rec.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", begin, *words], stdin=subprocess.DEVNULL, stdout=output,
        stderr=output if errors is None else errors,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[1])}, cwd=folder, start_new_session=True,
    )  # fmt: skip


# The server ----------------------------------------------------------------------------------------------------------


def load() -> None:
    import importlib

    from adaptive_rec.system.libraries import ignore_file
    from adaptive_rec.system.openmp import wait_briefly

    wait_briefly(os.environ)
    ignore_file()
    for name in LOADED:
        importlib.import_module(name)
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()  # half a second, at the first kernel of a process
    cpu_target.target_context.refresh()
    gc.collect()
    gc.freeze()  # what is loaded stays: looking through it again took each command a second when it ended


def serve(link: socket.socket) -> int:
    """Fork for each order, until there are no more. Returns in the process of a command, with that command's exit code."""
    watched: dict[int, int] = {}
    while True:
        for ready in select.select([link, *watched], [], [])[0]:
            if ready is link:
                text, outputs, _, _ = socket.recv_fds(link, 1 << 20, 2)
                if not text:
                    os._exit(0)  # nothing is left to do: collecting what was frozen would take a second, and Triton reports it
                child = os.fork()
                if not child:
                    link.close()
                    return execute(json.loads(text), *outputs)
                for each in outputs:
                    os.close(each)
                watched[os.pidfd_open(child)] = child
                link.send(json.dumps([child, None]).encode())
            else:
                _, status = os.waitpid(pid := watched.pop(ready), 0)
                os.close(ready)
                link.send(json.dumps([pid, os.waitstatus_to_exitcode(status)]).encode())


def execute(order: dict[str, Any], output: int, errors: int) -> int:
    import importlib

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no command outlives the tests
    os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for each in (output, errors):
        os.close(each)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # what is to be known of a stream is asked when it is opened
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    if order["first"]:
        importlib.import_module(order["first"])
    sys.argv[1:] = order["words"]
    module, _, main = order["main"].partition(":")
    code: int = getattr(importlib.import_module(module), main)()
    return code


def run_tests() -> int:
    """Run pytest in this process, which has a server of its own below it. Arguments: the niceness, and the words of pytest."""
    global prepared
    import pytest

    niceness, *words = sys.argv[1:]
    os.nice(int(niceness))
    with suppress(OSError):  # where Linux groups processes by session, niceness counts within a session only
        Path("/proc/self/autogroup").write_text(niceness)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if not child:
        ours.close()
        return serve(theirs)
    theirs.close()
    prepared = ours, child
    return int(pytest.main(words))


if __name__ == "__main__":
    del sys.path[0]  # the working directory, as adaptive_rec/__main__.py does
    load()
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
