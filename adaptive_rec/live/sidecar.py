"""The trainer starts the sidecar, a process that serves the run over HTTP, and starts another one when it dies or hangs.

The trainer owns what has to outlive the sidecar: listening sockets, tokens, the shared state and the desired knobs. A thread
reads the commands of the sidecar and puts them into the mailbox; training waits for neither. It also asks the sidecar whether it
lives, and kills one that does not answer. The sidecar ends when the trainer's end of the link closes, which also happens when the
trainer is killed.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adaptive_rec.errors import AdaptiveRecError, UsageError
from adaptive_rec.live import runtime_file
from adaptive_rec.live.channel import SidecarChannel
from adaptive_rec.live.client_commands import ClientCommands, answer_message
from adaptive_rec.live.heartbeat import Heartbeat
from adaptive_rec.live.listen import Listeners, ServeOptions
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.runtime_file import RuntimeFile
from adaptive_rec.live.scrapes import Scrapes, wait_for_the_last
from adaptive_rec.live.served_run import ServedRun
from adaptive_rec.live.sidecar_process import END_SECONDS, FAILED_END_SECONDS, end, start
from adaptive_rec.live.sign_in_code import code_clock
from adaptive_rec.system.own_files import check_own
from adaptive_rec.system.regular_files import read_json

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0
"""Wait before a dead sidecar is restarted. It doubles each time; a sidecar that lived for CALM_SECONDS resets it."""
CALM_SECONDS = 10.0
UNUSABLE = 2
"""Exit code of a sidecar that cannot read the description of its run. Another one could not read it either."""
MAX_FAILED_STARTS, HOPELESS_WAIT_SECONDS = 5, 60.0
"""After so many sidecars that never served, only one a minute is started."""
Note = Callable[[str], None]


class Sidecar:
    """Serves the run in a directory from `with` to its end: a run that trains now, or a finished one where `training` is None."""

    def __init__(self, options: ServeOptions, run: Path, training: ServedRun | None, note: Note) -> None:
        if find_spec("fastapi") is None or find_spec("uvicorn") is None:
            raise AdaptiveRecError("the dashboard needs fastapi and uvicorn; pip install them, or add --no-serve")
        self._training = training
        self._run = run.resolve()
        self._hello = _description(self._run / "run.json")
        self._hello["run_name"] = self._run.name  # a finished run may have been copied or renamed since
        self._note = note
        self._options = options
        self._control_token = secrets.token_urlsafe(32)
        self._link: SidecarChannel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._heartbeat: Heartbeat | None = None
        self._how_it_ended = ""
        """What became of the last sidecar."""
        self._closing = threading.Event()
        self._released = threading.Event()
        self._commands = ClientCommands(training, self._hello, self._send_knobs, self._released.set)
        self._scrapes = Scrapes()
        self._waited = False
        """Whether the wait for the last scrape was made."""
        self.useless = False
        """Whether the run cannot be served at all, by any sidecar."""
        self._thread = threading.Thread(target=self._keep, name="sidecar", daemon=True)

    @property
    def url(self) -> str:
        return self._listeners.url

    @property
    def dashboard_url(self) -> str:
        """A link that opens the dashboard once, within minutes."""
        return self._file.dashboard_url

    # Start and end ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Sidecar:
        with ExitStack() as stack:
            self._open(stack)
            self._thread.start()
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack) -> None:
        """Open everything that a sidecar is given. On failure, `stack` closes what was opened."""
        stack.callback(runtime_file.remove, os.getpid())
        read_token = self._options.read_token()
        runtime_file.make_runtime_folder()
        self._listeners = Listeners(self._options, runtime_file.socket_path(os.getpid()), self._note)
        stack.callback(self._listeners.close)
        state = None
        if self._training:
            state = self._training.publisher.open()
            stack.callback(self._training.publisher.close)
            self._training.mailbox.call_on_change(self._send_knobs)
        self._hello |= {
            "mode": "live" if self._training else "finished",
            "run": str(self._run),
            "state_fd": state.fd if state else None,
            "layout": state.layout if state else None,
            "control_token": self._control_token,
            "read_token": read_token,
            "codes_since": 0.0,
            "sessions": {},
            **self._listeners.described(),
        }
        self._file = RuntimeFile(
            pid=os.getpid(),
            run=str(self._run),
            url=self.url,
            socket=str(self._listeners.unix_path),
            control_token=self._control_token,
            read_token=read_token,
            started=time.time(),
        )
        runtime_file.write_runtime_file(self._file)

    def __exit__(self, *_: object) -> None:
        with suppress(KeyboardInterrupt):  # it ends the waiting, and what follows has to be done
            self.wait_for_the_last_scrape()
        self._closing.set()
        if link := self._link:
            link.hang_up()
        self._thread.join(END_SECONDS + 1)
        self._stack.close()

    def linger(self) -> None:
        """Wait until a client stops the run, which has finished. A signal handler may end the wait by raising."""
        while not self._released.wait(0.2):
            pass

    def wait_for_the_last_scrape(self) -> None:
        """Where a scraper reads the run, serve its end until it has been read: alerts tell an end from a crash by that.

        A request to stop ends the wait, and so do another process that resumes the run, and a sidecar that does not answer. A
        signal handler may raise.
        """
        if self._training is not None and not self._waited:
            self._waited = True
            run = self._training.state
            wait_for_the_last(self._scrapes, run, self._run / "run.json", self._can_stop_waiting, self._note)
            if self._is_silent() and self._scrapes.seconds_to_wait(run.hurried) > 0:
                self._note("the sidecar does not answer, so the scraper cannot see that the run has ended")

    def _can_stop_waiting(self) -> bool:
        return self._released.is_set() or self._is_silent()

    def _is_silent(self) -> bool:
        """Return whether the sidecar has not answered for so long that nothing more should wait for it."""
        return (heartbeat := self._heartbeat) is not None and heartbeat.doubtful

    # The thread ------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Run one sidecar after the other until the run ends."""
        wait_seconds, hopeless = FIRST_WAIT_SECONDS, 0
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                served = self._live()
            except (OSError, ValueError) as error:
                served = False
                self._note(f"the sidecar could not be started: {error}")
            if self._closing.is_set():
                break
            code = self._process.returncode if self._process else None
            if code == UNUSABLE and not served:
                self._report(f"this run cannot be served, see {self._run / 'sidecar.log'}")
                self.useless = True
                self._released.set()
                break
            calm = time.monotonic() - began >= CALM_SECONDS
            wait_seconds = FIRST_WAIT_SECONDS if calm else min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
            hopeless = 0 if served else hopeless + 1
            if hopeless <= MAX_FAILED_STARTS:
                self._report(f"the sidecar {self._how_it_ended} and is started again; training continues")
            if hopeless == MAX_FAILED_STARTS:
                self._report(f"the sidecar does not start, see {self._run / 'sidecar.log'}; it is tried once a minute")
            self._closing.wait(wait_seconds if hopeless < MAX_FAILED_STARTS else HOPELESS_WAIT_SECONDS)

    def _live(self) -> bool:
        """Start a sidecar and pass its commands on until it ends or hangs. Return whether it served at all."""
        ours, theirs = socket.socketpair()
        self._how_it_ended, served = "did not start", False
        fds = [*self._listeners.fds, *filter(None, [self._hello["state_fd"]])]
        with ours:
            with theirs:
                self._process = start(theirs.fileno(), fds, self._run / "sidecar.log")
            self._heartbeat = heartbeat = Heartbeat(self._process.pid)
            link = SidecarChannel(ours, partial(self._beat, heartbeat))
            try:
                with suppress(ConnectionError):
                    link.greet(self._hello | self._commands.knobs())
                    self._link = link
                    self._send_knobs()  # they may have changed since the first line was made
                    if self._closing.is_set():
                        link.hang_up()
                    for message in link.listen():
                        heartbeat.hear()
                        served |= message.get("command") != "damaged"
                        self._take(link, message)
            finally:
                self._link = self._heartbeat = None
                hopeful = served or self._closing.is_set()
                end(self._process, 0.0 if heartbeat.doubtful else END_SECONDS if hopeful else FAILED_END_SECONDS)
                self._hello["codes_since"] = code_clock()  # codes that this one accepted are not accepted by the next one
        silent = f"did not answer for {heartbeat.limit_seconds:.0f} s, was killed"
        self._how_it_ended = silent if heartbeat.hung else f"ended (exit code {self._process.returncode})"
        return served

    def _beat(self, heartbeat: Heartbeat, link: SidecarChannel) -> None:
        """Ask the sidecar whether it lives; give up one that hangs."""
        heartbeat.beat(lambda: link.send(lambda: {"ping": True}))
        if heartbeat.hung or self._closing.is_set():
            link.hang_up()

    def _take(self, link: SidecarChannel, message: Mapping[str, Any]) -> None:
        """Note what the sidecar tells, or have a client's command carried out."""
        verb = message.get("command")
        if verb in ("ready", "alive"):
            return
        if verb == "scraped":
            self._scrapes.note(str(message.get("phase")))
        elif verb == "damaged":
            self._note(f"warning: {message['text']}")
        elif verb == "sessions":
            self._hello["sessions"] = dict(message["sessions"])
        else:
            self._commands.take(message, partial(self._answer, link, message["id"]))

    # Out, from any thread --------------------------------------------------------------------------------------------

    @staticmethod
    def _answer(link: SidecarChannel, number: int, outcome: Mapping[str, Any] | AdaptiveRecError) -> None:
        """Answer the sidecar that sent the command: the next sidecar uses the same numbers for its own commands."""
        link.send(lambda: answer_message(number, outcome))

    def _send_knobs(self) -> None:
        if (link := self._link) and self._training:
            link.send(lambda: {"knobs": self._commands.knobs()})

    def _report(self, text: str) -> None:
        """Report a line to the user and in the journal."""
        self._note(text)
        if self._training:
            with suppress(AdaptiveRecError):
                self._training.mailbox.send(Command("note", {"kind": "sidecar", "text": text}))


def serve_finished(run: Path, options: ServeOptions, announce: Callable[[Sidecar], None], note: Note) -> int:
    """Serve a finished run's history, read-only, until interrupted."""
    if not (run / "run.json").is_file():
        raise UsageError(f"RUN must be the directory of a run, {run} has no run.json")
    check_own(run, ("sidecar.log", "sidecar.log.1"))
    with Sidecar(options, run, None, note) as sidecar:
        announce(sidecar)
        sidecar.linger()
    return int(sidecar.useless)


def _description(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise AdaptiveRecError(f"{path} must be the description of a run: {error}") from None
