"""How soon raw ids come, leave and return in tests of their eviction: in a fifth of the product's steps, or in all of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from adaptive_rec.data.raw import raw_ids


@dataclass(frozen=True)
class Pace:
    """Steps are stated as with the product's own distance between the choice of ids and their leaving."""

    factor: float

    def __call__(self, steps: int) -> int:
        return round(steps * self.factor)

    @property
    def ahead(self) -> int:
        """The farthest that batches may be read ahead."""
        return raw_ids.LATER - 4

    def settings(self, steps: int) -> list[str]:
        """Return settings of so many steps, in windows of 20."""
        return [f"run.steps={self(steps)}", f"knobs.reclassify_every={self(20)}"]


@pytest.fixture(params=[0.2, pytest.param(1.0, marks=pytest.mark.slow)], ids=["quick", "as it is"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pace:
    """Everything that a test times by it happens sooner, ids' leaving too."""
    made = Pace(request.param)
    monkeypatch.setattr(raw_ids, "LATER", made(raw_ids.LATER))
    return made
