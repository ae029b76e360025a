"""Steps that find the device's memory too small."""

from __future__ import annotations

from types import TracebackType

import torch

from adaptive_rec.errors import MemoryPlanError, first_line, is_out_of_memory


class OnShortMemory:
    """A context in which a step may find the device's memory too small: the error ends there, and `reason` has its text.

    That happens before the step has updated anything, so it can be repeated with fewer hot rows.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type != "cpu"
        self.reason = ""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        short = isinstance(error, torch.OutOfMemoryError)
        short |= self._on_device and isinstance(error, RuntimeError) and is_out_of_memory(error)
        if short and error is not None:
            self.reason = first_line(error)
        return short


class AfterUpdate:
    """A context in which rows are updated, so that a step that finds memory too small cannot be repeated: it ends the run, with
    MemoryPlanError."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            from adaptive_rec.embedding.staged.device_step import TOO_SMALL

            raise MemoryPlanError(f"{TOO_SMALL}: {first_line(error)}") from error


UPDATED = AfterUpdate()
