"""Messages between trainer and sidecar: one line of JSON each, over a socket pair that no other process has."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any


class SidecarChannel:
    """The trainer's end of the link to one sidecar. Messages are sent whole and in order, and no thread waits for them."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._sending = threading.Lock()

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
            for line in self._channel.makefile("rb"):
                message = json.loads(line)
                if not isinstance(message, dict) or not isinstance(message.get("id"), int):
                    return
                yield message
