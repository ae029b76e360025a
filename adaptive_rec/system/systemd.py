"""Messages to systemd from a run that it started (`Type=notify`): ready at the first step, then signs of life.

The protocol of sd_notify(3): a datagram to the socket that the environment names.
"""

from __future__ import annotations

import os
import socket
import time


class Systemd:
    """Sends messages where the environment names a NOTIFY_SOCKET, else nothing."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        watched = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = os.environ.get("WATCHDOG_USEC", "0")
        self._every_seconds = int(microseconds) / 2e6 if watched and microseconds.isdigit() else 0.0
        self._next = 0.0
        self._ready = False

    def alive(self) -> None:
        """Report "ready" at the first call, then feed the watchdog twice in each of its periods."""
        if not self._address:
            return
        if not self._ready:
            self._ready = True
            self._send("READY=1\nSTATUS=training")
        now = time.monotonic()
        if self._every_seconds and now >= self._next:
            self._next = now + self._every_seconds
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.sendto(message.encode(), address)
        except OSError:
            pass  # training continues without a listener
