"""A thread of each rank that notices ranks which no longer run: killed, stopped, or on a machine that is gone.

Every rank sends a datagram to every other one each `BEAT_SECONDS`. A rank that waits for another one goes on sending, so a wait
of any length is allowed; one that is silent for `LOST_SECONDS` ends the group. A rank that an error ends sends it to the others,
so that they can name it. A rank whose torchrun has ended stops the run.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adaptive_rec.system.group import Group

BEAT_SECONDS = 2.0
LOST_SECONDS = 20.0

CAUSE_SECONDS = 0.5
"""How long a rank that has lost another one waits for its error, which was sent before."""

BEAT, BYE, FAILED = b"beat", b"bye!", b"fail"
_TOKEN_BYTES = 16
_MOST_BYTES, _MOST_CHARACTERS = 4096, 500
"""The longest datagram, and the longest text of an error in one: a character takes up to six bytes."""


@dataclass(frozen=True)
class Cause:
    """The error that has ended a rank."""

    rank: int
    text: str
    exit_code: int


class GroupWatch:
    """Gives this rank's signs of life, and ends the process where another rank gives none. Every rank must make one."""

    def __init__(self, group: Group) -> None:
        self._rank = group.rank
        self._report: Callable[[str], object] = lambda text: None
        self._cause: Cause | None = None
        self._failed = threading.Event()
        self._over = threading.Event()
        self._parent = os.getppid()
        self._socket = _socket_towards(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        own = *self._socket.getsockname()[:2], self._token.hex(), _machine(), os.getpid()
        found = group.share(own)
        self._others = {rank: (host, port) for rank, (host, port, *_) in enumerate(found) if rank != self._rank}
        self._rank_of = {bytes.fromhex(token): rank for rank, (_, _, token, *_) in enumerate(found)}
        self._process_of = {rank: pid for rank, (*_, machine, pid) in enumerate(found) if machine == _machine()}
        self._thread = threading.Thread(target=self._watch, name="group-watch", daemon=True)
        self._thread.start()

    def report_to(self, report: Callable[[str], object]) -> None:
        """Call a function with the reason before the process is ended."""
        self._report = report

    def tell_failure(self, text: str, exit_code: int) -> None:
        """Send the error that ends this process to the others."""
        self._send(FAILED + json.dumps([text[:_MOST_CHARACTERS], exit_code]).encode())

    def cause(self) -> Cause | None:
        """Return the first error that another rank has sent, where one has."""
        self._failed.wait(CAUSE_SECONDS)
        return self._cause

    def stop(self) -> None:
        """Leave the group in peace: this rank's silence means nothing from now on."""
        self._over.set()
        self._thread.join()
        self._send(BYE)
        self._socket.close()

    def _watch(self) -> None:
        heard: dict[int, float] = {}
        """When each rank was last heard; one that was never heard, as behind a firewall, is not judged."""
        while not self._over.is_set():
            self._send(BEAT)
            before = time.monotonic()
            while (left := before + BEAT_SECONDS - time.monotonic()) > 0 and not self._over.is_set():
                rank, word = self._receive(min(left, 0.2))
                if word == BEAT:
                    heard[rank] = time.monotonic()
                elif word == BYE:
                    heard.pop(rank, None)
                elif word.startswith(FAILED) and self._cause is None:
                    text, code = json.loads(word.removeprefix(FAILED))
                    self._cause = Cause(rank, text, code)
                    self._failed.set()
            if time.monotonic() - before > 2 * BEAT_SECONDS:  # this process stood still, so the others' words may wait unread
                heard = dict.fromkeys(heard, time.monotonic())
            if os.getppid() != self._parent:  # torchrun is gone; the others see the same
                self._parent = os.getppid()
                os.kill(os.getpid(), signal.SIGTERM)
            for rank, seconds in heard.items():
                if time.monotonic() - seconds > LOST_SECONDS:
                    self._end(rank)

    def _send(self, word: bytes) -> None:
        for place in self._others.values():
            with suppress(OSError):
                self._socket.sendto(self._token + word, place)

    def _receive(self, seconds: float) -> tuple[int, bytes]:
        """Return the rank and the word of a datagram; an empty word where none came."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(_MOST_BYTES)
        except OSError:
            return -1, b""
        rank = self._rank_of.get(data[:_TOKEN_BYTES])
        return (-1, b"") if rank is None else (rank, data[_TOKEN_BYTES:])

    def _end(self, lost: int) -> None:
        """End this process, and the lost one where it is stopped on this machine: it would keep torchrun from starting anew."""
        text = (
            f"rank {lost} has given no sign of life for {LOST_SECONDS:.0f} seconds; the run ends, and goes on from its newest "
            "checkpoint when it is resumed"
        )
        print(f"error: {text} (seen by rank {self._rank})", file=sys.stderr, flush=True)
        self._report(text)
        if lost in self._process_of:
            with suppress(OSError):
                os.kill(self._process_of[lost], signal.SIGKILL)
        os._exit(1)


def _machine() -> str:
    """Return a name of this machine and boot, within which process numbers are valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"


def _socket_towards(host: str, port: int) -> socket.socket:
    """Return a datagram socket on the address that this machine uses towards another one."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        own = probe.getsockname()[0]
    bound = socket.socket(family, socket.SOCK_DGRAM)
    bound.bind((own, 0))
    return bound
