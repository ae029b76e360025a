"""The web server: uvicorn on listeners the trainer has opened, ended by SIGTERM or by the trainer."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI

from adaptive_rec.service.protocol import protocol_for
from adaptive_rec.service.security import Security

NICENESS = 12
"""Measured (docs/measurements.md): a client is answered within 250 ms on a busy machine, and training keeps its speed."""


ACCEPTED_AT_ONCE = 16
"""Connections accepted before those that are open have their turn again: a flood of new ones does not hold these up."""
WAITING_CONNECTIONS = 1024
"""Connections that the system lets wait to be accepted."""
TICK_SECONDS = 1.0
OPEN_FILES = 8192
"""Connections that are open at one time, those that are just accepted included; many systems allow 1024 unless asked."""


class Server(uvicorn.Server):
    """Uvicorn without handling of Ctrl-C, at low priority after the start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM ends the server. Ctrl-C goes to the whole group of processes, and the trainer ends the sidecar."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        loop.add_signal_handler(signal.SIGTERM, self.end)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        allow_open_files()
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(WAITING_CONNECTIONS)  # asyncio takes the number it accepts at once for this one
        give_way()  # not earlier, because a busy machine would delay the start

    async def main_loop(self) -> None:
        """Wait for the end. Once a second the date in answers is set, ten times as seldom as uvicorn looks after itself."""
        while not await self.on_tick(counter=0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), TICK_SECONDS)

    def end(self) -> None:
        """Finish the requests under way; streams are cut after a second."""
        self.should_exit = True
        self._ended.set()

    def end_now(self) -> None:
        """Cut all connections: the trainer has ended."""
        self.force_exit = True
        self.end()


def allow_open_files() -> None:
    """Raise this process's limit of open files, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_way() -> None:
    """Lower the priority, so that the sidecar runs only when training leaves the processor nearly idle.

    Linux shares the processor among sessions first, and niceness counts only within a session (`sched(7)`, autogroups). The
    sidecar leads its own session, so the priority of the session is lowered too.
    """
    os.nice(NICENESS)
    with suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as group:
        group.write(str(NICENESS))


def make_server(app: FastAPI, security: Security) -> Server:
    """The server, not started yet."""
    config = uvicorn.Config(
        app,
        http=protocol_for(security),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        backlog=ACCEPTED_AT_ONCE,
        loop="asyncio",
    )
    return Server(config)
