"""Metric families of one run: every series has the label `run`, and label values can be sent and shown whatever they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from zlib import crc32

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from adaptive_rec.units import printable

PREFIX = "adaptive_rec_"
ByLabels = dict[tuple[str, ...], Any]
"""Values by the values of a metric's labels, in the order of the labels; those that are no numbers are left out."""
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


class Families:
    """Makes the metrics of one run."""

    def __init__(self, run_name: str) -> None:
        self._run = label_value(run_name)

    def gauge(self, name: str, text: str, value: Any) -> Iterator[Metric]:
        """Yield a gauge, or nothing if its value is not known."""
        if is_number(value):
            yield self.gauges(name, text, (), {(): value})

    def counter(self, name: str, text: str, value: Any) -> Metric:
        """Return a counter; it is 0 while its value is not known."""
        return self.counters(name, text, (), {(): value if is_number(value) else 0})

    def gauges(self, name: str, text: str, labels: Iterable[str], values: ByLabels) -> Metric:
        """Return a gauge with a value for each tuple of label values."""
        return self._filled(GaugeMetricFamily(PREFIX + name, text, labels=("run", *labels)), values)

    def counters(self, name: str, text: str, labels: Iterable[str], values: ByLabels) -> Metric:
        """Return a counter with a value for each tuple of label values."""
        return self._filled(CounterMetricFamily(PREFIX + name, text, labels=("run", *labels)), values)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, values: ByLabels) -> Metric:
        for labelled, value in values.items():
            if is_number(value):
                family.add_metric([self._run, *map(label_value, labelled)], value)
        return family


def by_one(values: Mapping[str, Any]) -> ByLabels:
    """Return values by a single label as `gauges` and `counters` take them."""
    return {(label,): value for label, value in values.items()}
