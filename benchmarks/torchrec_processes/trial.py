"""What is measured in one start of all ranks. Loads nothing heavy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

OURS, DENSE = "ours", "dense gradients alone"
PLANS = ("row_wise", "table_wise", "data_parallel", "mixed")
PIPELINED, OUR_DENSE = ", pipelined", ", our dense part"
"""What a rival's name ends with: trained by TrainPipelineSparseDist, with our dense part instead of TorchRec's DLRM."""

RIVALS = tuple(f"{plan}{loop}{dense}" for plan in PLANS for loop in ("", PIPELINED) for dense in ("", OUR_DENSE))

LOSS_BOUND = 1e-3
"""Largest relative difference of mean losses in the first turn, between runs that begin with the same weights."""


@dataclass(frozen=True)
class Trial:
    """Contestants, their batches, and how often they take turns."""

    shape: str
    data: str
    """A Criteo file; empty for synthetic samples."""
    contestants: tuple[str, ...]
    samples: int
    """Samples of a batch, of each rank."""
    settings: tuple[str, ...]
    rounds: int
    steps: int
    interface: str
    """The network interface whose bytes are counted, on every rank."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> Trial:
        return Trial(
            **{key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(text).items()}
        )
