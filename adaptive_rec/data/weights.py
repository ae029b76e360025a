"""The weights of the samples of a source, as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import sum_of_weights
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.errors import DataError
from adaptive_rec.units import counted, readable, whole

if TYPE_CHECKING:
    from adaptive_rec.data.tabular.schema import Schema

FEW = 1000
"""Sums below it are written with their decimals."""


@dataclass(frozen=True)
class WeightFacts:
    """What weights samples, and the weights of the training samples."""

    column: str
    """Empty: the classes alone have weights."""
    classes: Mapping[str, float]
    samples: int = 0
    """0: not known, as the data is followed."""
    sum: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @staticmethod
    def of(schema: Schema | None, parts: Iterable[NDArray[np.float32]] = ()) -> WeightFacts | None:
        """Return the facts of training samples whose weights come in parts; None where the schema weights no rows. Raises
        DataError where all weights are 0."""
        if schema is None or not schema.is_weighted:
            return None
        known = [(len(each), sum_of_weights(each), float(each.min()), float(each.max())) for each in parts if len(each)]
        column, classes = schema.weight, {str(label): weight for label, weight in schema.class_weight.items()}
        if not known:
            return WeightFacts(column, classes)
        samples, sums, low, high = zip(*known, strict=True)
        if not any(high):
            of = f"column {schema.weight}" if schema.weight else "class_weight"
            raise DataError(f"weights must not be 0 for all training rows, those of {of} are: there is nothing to learn from")
        return WeightFacts(column, classes, sum(samples), math.fsum(sums), min(low), max(high))

    @property
    def text(self) -> str:
        """The facts in words."""
        named = [f"column {readable(self.column)}"] if self.column else []
        named += [f"label {label} x {weight:g}" for label, weight in sorted(self.classes.items())]
        if not self.samples:
            return ", ".join(named)
        spread = f"from {self.low:g} to {self.high:g}"
        return f"{', '.join(named)}: {weight_text(self.sum)} over {counted(self.samples, 'training row')}, {spread}"

    def figures(self) -> dict[str, Any]:
        """Return the facts as `summary.json` has them."""
        named = {"column": self.column or None, "classes": dict(self.classes)}
        return {**named, "sum": self.sum, "least": self.low, "largest": self.high} if self.samples else named


def weight_text(weight: float) -> str:
    """Return a sum of weights as people read it."""
    return whole(round(weight)) if weight >= FEW else f"{weight:.6g}"


def weights_of(source: Source) -> WeightFacts | None:
    """Return what is known of the weights of a source's samples; None where all weigh 1."""
    found: WeightFacts | None = getattr(source, "weights", None)
    return weights_of(source.origin) if found is None and isinstance(source, Wrapped) else found
