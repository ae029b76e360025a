"""The conversation with a sidecar: JSON, a message a line, over a socket that only the two have."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any


class SidecarChannel:
    """The trainer's end of the conversation with one sidecar. Messages go out whole and in order, and nobody waits."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._sending = threading.Lock()

    def send(self, message: Callable[[], Mapping[str, Any]]) -> None:
        """Send what `message` makes; it is called in turn, so a later message is never of an earlier state. A sidecar that does
        not read is hung up on, and so begun again."""
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
        """What the sidecar says, until it is gone or makes no sense any more."""
        with suppress(ConnectionError, ValueError):
            for line in self._channel.makefile("rb"):
                message = json.loads(line)
                if not isinstance(message, dict) or not isinstance(message.get("id"), int):
                    return
                yield message
