"""`python -m adaptive_rec.service --link FD`: the sidecar process. Only a trainer starts it.

The first line on the link describes the run; the end of the link ends the process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NoReturn

from adaptive_rec.live.shared_state import StateReader
from adaptive_rec.service.app import create_app
from adaptive_rec.service.details_api import keep_reading
from adaptive_rec.service.hello import Hello
from adaptive_rec.service.run_view import FinishedRun, LiveRun, RunView
from adaptive_rec.service.security import BrowserSessions, Security
from adaptive_rec.service.serve import make_server
from adaptive_rec.service.trainer_link import KnobState, TrainerLink
from adaptive_rec.system.process_use import ProcessMeter
from adaptive_rec.units import printable

UNUSABLE = 2
"""Exit code if the trainer's first line or the run's description cannot be used: a restart would not help."""
LOG_BYTES = 1 << 20
LOG_FORMAT = "sidecar: %(message)s"
LINE_LIMIT_BYTES = 64 << 20
"""Longest line on the link; the first one grows with the number of tables."""


async def main(link_fd: int) -> None:
    """Serve until the link ends or SIGTERM comes."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=link_fd), limit=LINE_LIMIT_BYTES)
    line = await reader.readline()
    if not line:
        return  # the trainer ended before it sent anything
    values = json.loads(line)
    try:
        hello = Hello.parse(values)
    except ValueError as error:
        reason = f"the description of the run (run.json) cannot be used: {error}"
        writer.write(json.dumps({"id": 0, "command": "damaged", "text": reason}).encode() + b"\n")
        await writer.drain()
        give_up(reason)
    bound_log(Path(hello.run) / "sidecar.log")
    link = TrainerLink(reader, writer, KnobState(hello.desired, hello.effective, hello.step))
    security = Security(
        **{key: values[key] for key in ("control_token", "read_token", "host", "port", "codes_since")},
        allow_hosts=tuple(values["allow_hosts"]),
        sessions=BrowserSessions(values["sessions"], link.keep_sessions),
    )
    view: RunView
    if hello.live:
        view = LiveRun(hello, StateReader(values["state_fd"], values["layout"]), link, ProcessMeter(os.getppid()))
    else:
        view = FinishedRun(hello)
        for each in view.damage():
            link.damaged(f"{each['file']}: {each['fault']}")
    try:
        app = create_app(view, security)
    except ValueError as error:
        give_up(str(error))
    server = make_server(app, security)
    listening = asyncio.create_task(link.listen())
    listening.add_done_callback(lambda _: server.end_now())
    reading = asyncio.create_task(keep_reading(view.meter)) if view.meter is not None else None
    link.ready()
    await server.serve([socket.socket(fileno=listener["fd"]) for listener in values["listeners"]])
    if reading is not None:
        reading.cancel()
    if listening.done():
        listening.result()  # raises if a line could not be read, for the traceback
    listening.cancel()


class PrintableFormatter(logging.Formatter):
    """Writes out what cannot be seen: messages and tracebacks may quote names and what clients sent."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n")


class OwnFileHandler(RotatingFileHandler):
    """Writes into the directory of a run, which may be somebody else's: it follows no link."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=open_no_link)


def open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def log_to(handler: logging.Handler) -> None:
    handler.setFormatter(PrintableFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def bound_log(path: Path) -> None:
    """Let messages go to a file that is set aside as NAME.1 when it has LOG_BYTES; older ones are removed. Where it cannot be
    written, they go on to stderr."""
    with suppress(OSError):
        handler = OwnFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
        log_to(handler)


def give_up(reason: str) -> NoReturn:
    """Print one line on stderr and end the process."""
    print(printable(f"sidecar: {' '.join(reason.split())}"), file=sys.stderr)
    sys.exit(UNUSABLE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="adaptive_rec.service", description="The sidecar of a training run.")
    parser.add_argument("--link", type=int, required=True, metavar="FD", help="socket to the trainer")
    log_to(logging.StreamHandler())
    asyncio.run(main(parser.parse_args().link))
