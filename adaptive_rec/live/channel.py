"""Messages between trainer and sidecar: one line of JSON each, over a socket pair that no other process has."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from adaptive_rec.live.heartbeat import BEAT_SECONDS

CHUNK_BYTES = 1 << 16


class SidecarChannel:
    """The trainer's end of the link to one sidecar. Messages are sent whole and in order, and no thread waits for them, except
    the one that greets and listens: it calls `beat` with this object every BEAT_SECONDS, as long as no message comes."""

    def __init__(self, channel: socket.socket, beat: Callable[[SidecarChannel], None] = lambda _: None) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._beat = beat
        self._beat_at = time.monotonic() + BEAT_SECONDS

    def greet(self, message: Mapping[str, Any]) -> None:
        """Send the first message, which may be longer than what fits into the link before the sidecar reads. Raises OSError."""
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            self._wait(select.POLLOUT)
            with suppress(BlockingIOError):
                left = left[self._channel.send(left, socket.MSG_DONTWAIT) :]

    def send(self, message: Callable[[], Mapping[str, Any]]) -> None:
        """Send what `message` returns. It is called under the lock, so a later message never holds an older state. The link to a
        sidecar that does not read is closed, and so the sidecar is restarted."""
        with self._sending:
            text = json.dumps(message()).encode() + b"\n"
            try:
                whole = self._channel.send(text, socket.MSG_DONTWAIT) == len(text)
            except OSError:
                whole = False
        if not whole:
            self.hang_up()

    def hang_up(self) -> None:
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def listen(self) -> Iterator[dict[str, Any]]:
        """Yield the sidecar's messages until it ends or sends one that cannot be read."""
        with suppress(ConnectionError, ValueError, RecursionError):
            for line in self._lines():
                message = json.loads(line)
                if not isinstance(message, dict) or not isinstance(message.get("id"), int):
                    return
                yield message

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        while True:
            if self._wait(select.POLLIN):
                got = self._channel.recv(CHUNK_BYTES)
                if not got:
                    return
                *lines, rest = (rest + got).split(b"\n")
                yield from lines

    def _wait(self, what: int) -> bool:
        """Wait until the link is ready to be read or written, but no longer than to the next beat. Return whether it is."""
        poll = select.poll()
        poll.register(self._channel, what)
        ready = bool(poll.poll(1000 * max(0.0, self._beat_at - time.monotonic())))
        if not ready:
            self._beat_at = time.monotonic() + BEAT_SECONDS
            self._beat(self)
        return ready
