"""The time that the operations between ranks take in a step: messages, and bytes on the slowest way.

Gathers and sums are rings: a message goes from rank to rank, W - 1 times for a gather, 2 (W - 1) times for a sum, and one rank of
a node sends to the next node. In an exchange a rank sends each other one a message, and the ranks of a node share its network.
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptive_rec.offline.forecast.traffic import Nodes, Sent

HOP_SECONDS = 160e-6
"""A small message from one rank to another, with gloo's work: measured between two processes of a machine (2 shared cores of an
AMD EPYC, torch 2.13); taken for messages between machines too."""

MESSAGE_SECONDS = 20e-6
"""Each further message of an exchange, which are under way together. Assumed."""

LOCAL_BYTES_PER_SECOND = 1.2e9
"""Bytes that a rank sends to others of its machine in a second, measured likewise."""

GATHERS, SUMS = 4, 1
"""Gathers and sums over ranks in a step."""


def exchanges(pools: int) -> int:
    """Return the exchanges of a step: sizes of requests, requests, and of each pool vectors, classes and gradients."""
    return 2 + 3 * pools


@dataclass(frozen=True)
class NetworkSeconds:
    """Seconds of a step between ranks."""

    messages: float
    """Passing messages, however small."""
    exchanged: float
    """Bytes of requests, rows and gradients."""
    dense: float

    @property
    def all(self) -> float:
        return self.messages + self.exchanged + self.dense

    def largest(self) -> str:
        """Return in words what takes most."""
        parts = {
            "passing messages, however small": self.messages,
            "sending rows and their gradients": self.exchanged,
            "adding up the gradients of the dense part": self.dense,
        }
        return max(parts, key=lambda name: parts[name])


def network_seconds(sent: Sent, layout: Nodes, pools: int, network_bytes_per_second: float) -> NetworkSeconds:
    """Return the seconds of a step. The network is that of a node; it is not used where there is one node."""
    others = layout.ranks - 1
    if not others:
        return NetworkSeconds(0.0, 0.0, 0.0)
    hops = others * (GATHERS + 2 * SUMS) + exchanges(pools)
    messages = hops * HOP_SECONDS + exchanges(pools) * (others - 1) * MESSAGE_SECONDS
    ring = LOCAL_BYTES_PER_SECOND if layout.nodes == 1 else min(LOCAL_BYTES_PER_SECOND, network_bytes_per_second)
    exchanged = (sent.exchanged - sent.outside) / LOCAL_BYTES_PER_SECOND
    if layout.nodes > 1:
        exchanged = max(exchanged, layout.per_node * sent.outside / network_bytes_per_second)
    return NetworkSeconds(messages, exchanged, sent.dense / ring)
