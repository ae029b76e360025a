"""The sidecar seen from the trainer: a process that serves a run over HTTP, begun, listened to and begun again when it dies.

The trainer owns what has to outlive the sidecar: listening sockets, tokens, the shared state and the wanted knobs. A thread
waits for its commands and puts them into the mailbox; training waits for neither. The sidecar ends when its end of the link
closes, so also when the trainer is killed.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from adaptive_rec.errors import AdaptiveRecError, CheckpointError, ConfigError, ConflictError, UsageError
from adaptive_rec.live import runtime_file
from adaptive_rec.live.listen import Listeners, ServeOptions
from adaptive_rec.live.mailbox import Command, Mailbox, Verb
from adaptive_rec.live.runtime_file import RuntimeFile

if TYPE_CHECKING:
    from adaptive_rec.run import TrainingRun

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0
"""Before a dead sidecar is begun again; doubled each time, from the start again after a life of CALM_SECONDS."""
CALM_SECONDS = 10.0
END_SECONDS = 0.5
"""How long the sidecar may take to end before it is killed; it holds nothing that could be lost."""
Note = Callable[[str], None]
VERBS = frozenset(get_args(Verb)) - {"note"}


class Sidecar:
    """Serves a run from `with` to its end; a finished one where there is no `training`."""

    def __init__(self, options: ServeOptions, run: Path, training: TrainingRun | None, note: Note) -> None:
        if find_spec("fastapi") is None or find_spec("uvicorn") is None:
            raise UsageError("the dashboard needs fastapi and uvicorn; pip install them, or add --no-serve")
        self.mailbox: Mailbox | None = training.runtime.mailbox if training else None
        self._training = training
        self._run = run.resolve()
        self._note = note
        self._control_token, self._read_token = secrets.token_urlsafe(32), options.read_token()
        self._listeners = Listeners(options, runtime_file.make_folder() / f"{os.getpid()}.sock", note)
        self._link: socket.socket | None = None
        self._sending = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="sidecar", daemon=True)

    @property
    def url(self) -> str:
        return self._listeners.url

    @property
    def dashboard_url(self) -> str:
        """With the token in its fragment, which browsers send to nobody."""
        return f"{self.url}/#t={self._control_token}"

    # From beginning to end -------------------------------------------------------------------------------------------

    def __enter__(self) -> Sidecar:
        state = self._training.runtime.publisher.open() if self._training else None
        self._hello = json.loads((self._run / "run.json").read_text(encoding="utf-8"))
        self._hello |= {
            "mode": "live" if self._training else "finished",
            "run": str(self._run),
            "state_fd": state.fd if state else None,
            "layout": state.layout if state else None,
            "control_token": self._control_token,
            "read_token": self._read_token,
            **self._listeners.described(),
        }
        runtime_file.write(
            RuntimeFile(
                pid=os.getpid(),
                run=str(self._run),
                url=self.url,
                socket=str(self._listeners.unix_path),
                control_token=self._control_token,
                read_token=self._read_token,
                started=time.time(),
            )
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._hang_up()
        self._thread.join(END_SECONDS + 1)
        self._listeners.close()
        runtime_file.remove(os.getpid())
        if self._training:
            self._training.runtime.publisher.close()

    def linger(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Wait until somebody asks the run, which is over, to stop, or `ended` says so."""
        while not self._released.wait(0.2) and not ended():
            pass

    # The thread ------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """One sidecar after the other, for as long as the run wants one."""
        wait_seconds = FIRST_WAIT_SECONDS
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._live()
            except OSError as error:
                self._tell(f"the sidecar could not be started: {error}")
            lived = time.monotonic() - began
            if self._closing.is_set():
                break
            wait_seconds = FIRST_WAIT_SECONDS if lived >= CALM_SECONDS else min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
            code = self._process.returncode if self._process else None
            self._tell(f"the sidecar ended (exit code {code}) and is started again; training is not concerned")
            self._closing.wait(wait_seconds)

    def _live(self) -> None:
        """Begin a sidecar and do what it passes on until it is gone."""
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), *self._listeners.fds]
        if self._hello["state_fd"] is not None:
            fds.append(self._hello["state_fd"])
        with ours, open(self._run / "sidecar.log", "ab") as log:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "adaptive_rec.service", "--link", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(),
                    pass_fds=fds,
                    start_new_session=True,  # Ctrl-C in a terminal is for the trainer
                )
            try:
                ours.sendall(json.dumps(self._hello | self._knobs()).encode() + b"\n")
                self._link = ours
                for line in ours.makefile("rb"):
                    self._take(json.loads(line))
            except (ConnectionError, ValueError):
                pass  # it died, or it is not itself any more
            finally:
                self._link = None
                self._end(self._process)

    def _take(self, message: Mapping[str, Any]) -> None:
        """Pass one command on to the training thread."""
        answer = partial(self._answer, int(message["id"]))
        verb = message["command"]
        try:
            if verb not in VERBS:
                raise ConfigError(f"command must be one of {', '.join(sorted(VERBS))}, got {verb!r}")
            if self.mailbox is None:
                raise ConflictError("the run has ended")
            try:
                self.mailbox.send(Command(verb, message.get("changes", {}), answer))
            except ConflictError:
                if verb != "stop" or not self._training or self._training.runtime.phase != "finished":
                    raise
                self._released.set()
                answer({"step": self._training.runtime.step_number})
        except AdaptiveRecError as error:
            answer(error)
        else:
            if verb == "change_knobs":
                self._send({"knobs": self._knobs()})

    # Out, from any thread --------------------------------------------------------------------------------------------

    def _answer(self, number: int, outcome: Mapping[str, Any] | AdaptiveRecError) -> None:
        if isinstance(outcome, AdaptiveRecError):
            self._send({"id": number, "status": _status(outcome), "error": str(outcome)})
            return
        self._send({"id": number, **outcome})
        if "changed" in outcome:
            self._send({"knobs": self._knobs()})

    def _send(self, message: Mapping[str, Any]) -> None:
        """Send without waiting. A sidecar that does not read is hung up on, and so begun again."""
        text = json.dumps(message).encode() + b"\n"
        with self._sending:
            link = self._link
            try:
                sent = len(text) if link is None else link.send(text, socket.MSG_DONTWAIT)
            except OSError:
                sent = 0
        if sent < len(text):
            self._hang_up()

    def _knobs(self) -> dict[str, Any]:
        if self._training is None:
            return {}
        runtime = self._training.runtime
        return {
            "desired": runtime.mailbox.desired.model_dump(),
            "effective": runtime.knobs.model_dump(),
            "step": runtime.knobs_step,
        }

    def _hang_up(self) -> None:
        link = self._link
        if link is not None:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _tell(self, text: str) -> None:
        """Say it to the user and in the journal."""
        self._note(text)
        if self.mailbox is not None:
            with suppress(AdaptiveRecError):
                self.mailbox.send(Command("note", {"kind": "sidecar", "text": text}))

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve_finished(run: Path, options: ServeOptions, announce: Callable[[Sidecar], None], note: Note) -> int:
    """Serve a finished run's history, read-only, until interrupted."""
    if not (run / "run.json").exists():
        raise UsageError(f"RUN must be the directory of a run, {run} has no run.json")
    with Sidecar(options, run, None, note) as sidecar:
        announce(sidecar)
        sidecar.linger()
    return 0


def _status(error: AdaptiveRecError) -> int:
    """The HTTP status that fits an error."""
    kinds: list[tuple[type[AdaptiveRecError], int]] = [(ConfigError, 422), (ConflictError, 409), (CheckpointError, 507)]
    return next((status for kind, status in kinds if isinstance(error, kind)), 500)


def _environment() -> dict[str, str]:
    """What the sidecar inherits: no secrets, nothing of systemd's, one thread for NumPy."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "ADAPTIVE_REC_TOKEN")
    }
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
