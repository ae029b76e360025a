"""The dense optimizer's step as a recording, for as long as its learning rates stay the same.

An eager step of a small model on a device is some twenty launches from Python, which take longer than their work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from adaptive_rec.embedding.staged.streams import Streams


CONSTANT_STEPS = 8
"""Steps with the same rates before one is recorded: a schedule that changes them at every step would record in vain."""


def recordable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a recorded step is the same as an eager one: nothing in it may depend on a counter that the host keeps."""
    if isinstance(optimizer, torch.optim.SGD):
        return True
    if isinstance(optimizer, torch.optim.Adagrad):
        return all(group["lr_decay"] == 0 for group in optimizer.param_groups)
    return all(group.get("capturable", False) for group in optimizer.param_groups)


class RecordedStep:
    """Runs a step's work: eagerly at first and wherever rates change, then as a recording. In `Streams.launch` only."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, work: Callable[[], object], sums: Callable[[], list[Tensor]],
        streams: Streams,
    ) -> None:
        """`work` calls the optimizer's step and may change what `sums` returns; nothing else that it changes may matter."""
        self._optimizer, self._work, self._sums, self._streams = optimizer, work, sums, streams
        self._recordable = recordable(optimizer)
        self._rates: list[float] = []
        self._same_steps = 0
        self._replay: Callable[[], object] | None = None
        self._counters: list[Tensor] = []
        """The optimizer's counts of steps that the host keeps: a replay does not change them."""
        self._counts: list[NDArray[Any]] = []
        """The same memory. To add to it through torch would let another thread have the interpreter each time."""
        optimizer.register_load_state_dict_post_hook(lambda _: self._forget())

    def _forget(self) -> None:
        """Drop the recording: the optimizer's state lies elsewhere now."""
        self._same_steps, self._replay = 0, None

    def __call__(self) -> None:
        rates = [group["lr"] for group in self._optimizer.param_groups]
        if rates != self._rates:
            self._forget()
            self._rates = rates
        self._same_steps += 1
        if self._replay is None and self._recordable and self._same_steps > CONSTANT_STEPS:
            self._replay = self._record()
        if self._replay is None:
            self._work()
            return
        self._streams.launch(self._replay)
        for count in self._counts:
            np.add(count, 1, out=count)

    def _record(self) -> Callable[[], object]:
        """Recording runs the work, so all that it changes is saved and restored."""
        state = [value for of in self._optimizer.state.values() for value in of.values() if isinstance(value, Tensor)]
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        device = parameters[0].device
        # On the CPU of a simulated device a counter is told from other state by having no dimension.
        self._counters = [
            value for value in state if value.device.type == "cpu" and (device.type != "cpu" or value.ndim == 0)
        ]
        self._counts = [counter.numpy() for counter in self._counters]
        counted = {id(counter) for counter in self._counters}
        changed = [*parameters, *(value for value in state if id(value) not in counted), *self._sums()]
        with torch.no_grad():
            before = [tensor.clone() for tensor in changed]
            replay = self._streams.capture(self._uncounted)
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
        return replay

    def _uncounted(self) -> None:
        """The work without its counting, so that it is the same where a recording is replayed and where it is only run again."""
        before = [counter.clone() for counter in self._counters]
        self._work()
        for counter, value in zip(self._counters, before, strict=True):
            counter.copy_(value)
