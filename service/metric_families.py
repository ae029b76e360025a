"""Metric families of one run in the text format of Prometheus (version 0.0.4): every series has the label `run`, and label values
can be sent and shown whatever they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from adaptive_rec.units import printable

PREFIX = "adaptive_rec_"
ByLabels = dict[tuple[str, ...], Any]
"""Values by the values of a metric's labels, in the order of the labels; those that are no numbers are left out."""
LABELS_KEPT = 4096
LABEL_LIMIT = 100
"""Longest label value, in characters."""


def label_value(text: str) -> str:
    """Return a text as a label value: printable, at most LABEL_LIMIT characters, and another one for each other text.

    What cannot be seen is written out by `printable`, and backslashes are doubled. A longer text ends in its checksum.
    """
    shown = printable(text.replace("\\", "\\\\"))
    if len(shown) <= LABEL_LIMIT:
        return shown
    checksum = crc32(text.encode("utf-8", "surrogatepass"))
    return f"{shown[: LABEL_LIMIT - 9]}~{checksum:08x}"


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def quote_label(label: str) -> str:
    """Return a label value as it is sent."""
    return label_value(label).replace("\\", r"\\").replace('"', r"\"")


class Families:
    """Writes the metrics of one run, each with its lines of help and type."""

    def __init__(self, run_name: str) -> None:
        self._run = f'run="{quote_label(run_name)}"'.replace("%", "%%")
        self._known: dict[str, str] = {}

    def gauge(self, name: str, text: str, value: Any) -> Iterator[str]:
        """Yield a gauge, or nothing if its value is not known."""
        if is_number(value):
            yield self.gauges(name, text, (), {(): value})

    def counter(self, name: str, text: str, value: Any) -> str:
        """Return a counter; it is 0 while its value is not known."""
        return self.counters(name, text, (), {(): value if is_number(value) else 0})

    def gauges(self, name: str, text: str, labels: Sequence[str], values: ByLabels) -> str:
        """Return a gauge with a value for each tuple of label values."""
        return self._written(name, "gauge", text, labels, values)

    def counters(self, name: str, text: str, labels: Sequence[str], values: ByLabels) -> str:
        """Return a counter with a value for each tuple of label values."""
        return self._written(f"{name}_total", "counter", text, labels, values)

    def _written(self, name: str, kind: str, text: str, labels: Sequence[str], values: ByLabels) -> str:
        lines = [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
        pairs = ",".join([f'{label}="%s"' if label != "run" else self._run for label in sorted(("run", *labels))])
        series, order = f"{PREFIX}{name}{{{pairs}}} %r", sorted(range(len(labels)), key=labels.__getitem__)
        for labelled, value in values.items():
            if is_number(value):
                lines.append(series % (*[self._quote(labelled[place]) for place in order], float(value)))
        return "\n".join(lines) + "\n"

    def _quote(self, label: str) -> str:
        """Return `quote_label`, which is remembered for the names of tables, stages, kinds and knobs."""
        if (found := self._known.get(label)) is None:
            if len(self._known) >= LABELS_KEPT:
                self._known.clear()
            found = self._known[label] = quote_label(label)
        return found


def by_one(values: Mapping[str, Any]) -> ByLabels:
    """Return values by a single label as `gauges` and `counters` take them."""
    return {(label,): value for label, value in values.items()}


EVENT_KINDS = (
    "started",
    "finished",
    "suspended",
    "failed",
    "knobs",
    "reclassified",
    "evicted",
    "memory",
    "guard",
    "split",
    "evaluation",
    "overfit",
    "stopped_early",
    "scored",
    "saving",
    "checkpoint",
    "checkpoint_failed",
    "arranged",
    "nan",
    "settings",
    "going_back",
    "rolled_back",
    "left_out",
    "watchdog",
    "paused",
    "resumed",
    "stopping",
    "branched",
    "warning",
    "sidecar",
)
"""Kinds of events. Each is counted from 0, as Prometheus finds no increase where a series begins at 1."""

WATCHDOG_ACTIONS = ("warn", "pause", "checkpoint", "rollback", "stop", "fail")
"""What the watchdog does. Each is counted from 0, for the same reason."""
