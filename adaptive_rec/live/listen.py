"""The listening sockets of a run. The trainer opens them, so that they outlive its sidecars."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_rec.errors import UsageError
from adaptive_rec.system.drafts import write_first

PORT = 8470
PORTS_TRIED = 50
PORT_WAIT_SECONDS, PORT_POLL_SECONDS = 5.0, 0.1
BACKLOG = 1024
MIN_TOKEN_LENGTH = 32
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


@dataclass(frozen=True)
class ServeOptions:
    """Where to listen, and which hosts and tokens are accepted."""

    host: str = "127.0.0.1"
    port: int = PORT
    """The port to listen on, or the next free one if it is taken; 0 takes any free port."""
    allow_hosts: tuple[str, ...] = ()
    """More host names that browsers may use; needed to listen elsewhere than on loopback."""
    token_file: Path | None = None
    """File with the read token, written if it does not exist. Scrapers need a token that stays the same over runs."""
    waits_for_port: bool = False
    """Whether a port that is taken is waited for before the next one is taken: a run that is resumed at once meets the service of
    the process before it, which ends within seconds."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port must be between 0 and 65535, got {self.port}")
        for name in self.allow_hosts:
            if not HOST_NAME.fullmatch(name):
                raise UsageError(f"--allow-host must be a host name or address without port or path, got {name!r}")
        if not self.is_loopback and not self.allow_hosts:
            raise UsageError(
                f"--host {self.host} is open to the network: name the hosts under which it may be reached, with "
                "--allow-host NAME",
                faq="open-to-the-network",
            )

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    def read_token(self) -> str:
        """Return the token that may read but change nothing."""
        if self.token_file is None:
            return secrets.token_urlsafe(32)
        try:
            if not os.path.lexists(self.token_file):
                write_first(self.token_file, f"{secrets.token_urlsafe(32)}\n".encode())
        except OSError as error:
            raise UsageError(f"--token-file {self.token_file} cannot be written: {error.strerror}") from None
        return self._kept_token(self.token_file)

    @staticmethod
    def _kept_token(path: Path) -> str:
        try:
            with open(path, encoding="ascii") as stream:
                mode = os.fstat(stream.fileno()).st_mode
                token = stream.read(4096).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token-file {path} cannot be read: {error}") from None
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise UsageError(
                f"--token-file {path} must not be open to others, its mode is {stat.S_IMODE(mode):o}; chmod 640"
            )
        if len(token) < MIN_TOKEN_LENGTH or not token.isprintable() or " " in token:
            raise UsageError(
                f"--token-file {path} must hold one token of at least {MIN_TOKEN_LENGTH} characters, got {len(token)}"
            )
        return token


class Listeners:
    """A TCP socket for browsers and scrapers, and a Unix socket for the command line of the same user."""

    def __init__(self, options: ServeOptions, unix_path: Path, note: Callable[[str], None]) -> None:
        self.host = "127.0.0.1" if options.host == "localhost" else options.host.strip("[]")
        self._tcp = _listen(self.host, options.port, PORT_WAIT_SECONDS if options.waits_for_port else 0.0)
        self.port = int(self._tcp.getsockname()[1])
        if options.port not in (0, self.port):
            note(f"port {options.port} is taken, the dashboard is at {self.port}")
        if not options.is_loopback:
            note(
                f"the dashboard listens on {self.host}: everyone who can reach it and has a token can see and steer the run"
            )
        any_address = self.host in ("0.0.0.0", "::")
        self._shown = options.allow_hosts[0] if any_address else self.host
        local = LOOPBACK_NAMES if options.is_loopback or any_address else ()
        own = () if any_address else (self.host,)
        names = (_bracketed(name) for name in (*own, *local, *options.allow_hosts))
        self.allow_hosts = tuple(dict.fromkeys(names))
        self.unix_path = unix_path
        self._unix = _listen_unix(unix_path)

    @property
    def fds(self) -> list[int]:
        return [self._tcp.fileno(), self._unix.fileno()]

    @property
    def url(self) -> str:
        return f"http://{_bracketed(self._shown)}:{self.port}"

    def described(self) -> dict[str, Any]:
        """The sidecar's description of the sockets."""
        return {
            "listeners": [{"fd": fd, "kind": kind} for fd, kind in zip(self.fds, ("tcp", "unix"), strict=True)],
            "host": self.host,
            "port": self.port,
            "allow_hosts": list(self.allow_hosts),
        }

    def close(self) -> None:
        self._tcp.close()
        self._unix.close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _listen(host: str, port: int, wait_seconds: float) -> socket.socket:
    """Listen on a port or the next free one; the first is waited for this long."""
    deadline = time.monotonic() + wait_seconds
    for candidate in range(port, min(port + PORTS_TRIED, 65536)) if port else (0,):
        while (listener := _listen_at(host, candidate)) is None and time.monotonic() < deadline:
            time.sleep(PORT_POLL_SECONDS)
        if listener is not None:
            return listener
    raise UsageError(f"--port must have a free port among it and the next {PORTS_TRIED - 1}, got {port}", faq="port-taken")


def _listen_at(host: str, port: int) -> socket.socket | None:
    """Listen on a port; None if it is taken. Raises UsageError where the address is not one of this machine."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in _TAKEN:
            return None
        raise UsageError(f"--host {host} cannot be listened on: {error.strerror}") from None
    return listener


def _listen_unix(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(f"the socket {path} cannot be made: {error}") from None
    return listener
