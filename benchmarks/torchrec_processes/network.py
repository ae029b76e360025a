"""Networks for the ranks of a run: one network namespace with a loopback device, or two that a slow cable joins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "loopback"
RENDEZVOUS_PORT = 29400
BURST, LATENCY = "128kb", "50ms"
"""Bytes that the cable's ends let through at once, and how long a packet may wait there before it is dropped."""


@dataclass(frozen=True)
class Node:
    """What stands for a machine: a network namespace and its only way to the ranks of the others."""

    namespace: str
    interface: str
    address: str


@contextmanager
def network(kind: str) -> Iterator[list[Node]]:
    """Make a network for the body: `loopback`, one node whose ranks share that device, or a rate such as 1gbit, two nodes.

    Raises SystemExit where the user may not make namespaces.
    """
    if os.geteuid():
        raise SystemExit("error: network namespaces must be made by root, this is another user")
    name = f"ranks-{os.getpid()}"
    if kind == LOOPBACK:
        nodes = [Node(name, "lo", "127.0.0.1")]
    else:
        nodes = [Node(f"{name}-{number}", "cable", f"10.83.0.{number + 1}") for number in range(2)]
    made = []
    try:
        for node in nodes:
            _ip("netns", "add", node.namespace)
            made.append(node)
            _ip("-n", node.namespace, "link", "set", "lo", "up")
        if len(nodes) > 1:
            _join(nodes, kind)
        yield nodes
    finally:
        for node in made:
            _ip("netns", "delete", node.namespace)


def _join(nodes: list[Node], rate: str) -> None:
    """Join two nodes by a cable that carries `rate` in each direction."""
    near, far = nodes
    ends = ["link", "add", near.interface, "netns", near.namespace, "type", "veth", "peer", "name", far.interface]
    _ip(*ends, "netns", far.namespace)
    for node in nodes:
        _ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", node.interface)
        _ip("-n", node.namespace, "link", "set", node.interface, "up")
        limit = ["root", "tbf", "rate", rate, "burst", BURST, "latency", LATENCY]
        _run("tc", "-n", node.namespace, "qdisc", "add", "dev", node.interface, *limit)


def start_ranks(nodes: list[Node], ranks: int, words: list[str]) -> None:
    """Run `python -m WORDS` in so many ranks, one thread each, and return at their end. Raises SystemExit where one fails."""
    started = [_start(nodes, node, ranks // len(nodes), words) for node in nodes]
    try:
        codes = [process.wait() for process in started]
    finally:
        for process in started:
            process.terminate()
            process.wait()
    if any(codes):
        raise SystemExit(f"error: every rank must end with 0, torchrun ended with {codes}")


def _start(nodes: list[Node], node: Node, ranks: int, words: list[str]) -> subprocess.Popen[bytes]:
    first, number = nodes[0], nodes.index(node)
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(nodes)}", f"--nproc-per-node={ranks}",
        "--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:{RENDEZVOUS_PORT}",
        f"--rdzv-conf=is_host={int(number == 0)}", f"--local-addr={node.address}",
    ]  # fmt: skip
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    variables = {"GLOO_SOCKET_IFNAME": node.interface, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **threads}
    quiet = {
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
    }  # they warn of nameless addresses and of old names
    inside = ["ip", "netns", "exec", node.namespace]
    return subprocess.Popen([*inside, *torchrun, "--module", *words], env=os.environ | variables | quiet)


def sent_bytes(interface: str) -> int:
    """Return the bytes that this namespace has sent through an interface."""
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            return int(counts.split()[8])
    raise ValueError(f"interface must be one of this network namespace, got {interface!r}")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)
