"""The dense part on a device: forward, backward and the optimizer's step are recorded as CUDA graphs and replayed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from adaptive_rec.dense.eager import DensePart, scale_down
from adaptive_rec.dense.recorded_step import RecordedStep
from adaptive_rec.embedding.records import MicroBatch
from adaptive_rec.placement import RowSpace

if TYPE_CHECKING:
    from adaptive_rec.embedding.staged.streams import Streams

BUCKETS = 8
"""Number of sizes that are recorded: eighths of the largest batch, so that at most an eighth of it is padding."""


@dataclass
class _Bucket:
    """The first lines of the static buffers, and the recording that uses them."""

    micro: MicroBatch
    gradients: list[Tensor]
    """Gradients of the pooled vectors, written by the recording."""
    losses_S: Tensor
    """Losses, written by the recording."""
    replay: Callable[[], object] | None = None


class ReplayedDense(DensePart):
    """A dense model that pads micro-batches to one of a few sizes; each size is recorded once as a CUDA graph.

    A graph reads and writes the same memory at every replay. So inputs and gradients have fixed buffers, and the next `inputs`
    reuses the memory of the last. Device memory is used only in `streams.launch`: these methods queue computation.
    """

    is_replayed = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: str,
        dtype: torch.dtype,
        device: torch.device,
        space: RowSpace,
        dense_features: int,
        streams: Streams,
        batch_size: int = 0,
    ) -> None:
        super().__init__(model, optimizer, precision, dtype, device, space, dense_features)
        self.streams = streams
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.parameter_gradients = [p.grad for p in self.parameters if p.grad is not None]
        self._step_sums = torch.zeros(2, dtype=torch.float64, device=device)
        self.step_loss, self._step_length = self._step_sums[0], self._step_sums[1]
        """The sum of the norms of the present step's gradients, tensor by tensor."""
        self.health = torch.zeros(2, dtype=torch.float64, device=device)
        """The sum of losses and gradients' norms of all steps, which is not finite from the first faulty step on, and the number
        of steps before that one."""
        self._sum, self._steps_sound = self.health[0], self.health[1]
        self._sizes: list[int] = []
        self._buckets: dict[int, _Bucket] = {}
        self._last: _Bucket | None = None
        """The bucket with gradients of this step that were not copied to `_kept`."""
        self._last_samples = 0
        self._kept: list[Tensor] = []
        """Gradients of the step's earlier micro-batches, if it has several."""
        self._kept_lines = 0
        self._zeroed = True
        """Whether the parameters' gradients and the step's sums are zero."""
        self._update = RecordedStep(optimizer, self._count_and_update, self._changed_by_a_step, streams)
        if batch_size:
            self._grow(batch_size)

    def twin(self) -> DensePart:
        model, optimizer = copy.deepcopy((self.model, self.optimizer))
        parts = model, optimizer, self.precision, self.dtype, self.device, self._space, self.dense_features
        return ReplayedDense(*parts, self.streams, self._sizes[-1] if self._sizes else 0).with_rates(self.base_rates)

    def begin_step(self, whole_weight: float | None = None) -> None:
        """Set the parameters' gradients to zero and forget those of the pooled vectors."""
        if (whole_weight is None) != (self._whole_weight is None):
            self._forget_recordings()
        self._whole_weight = whole_weight
        if not self._zeroed:
            self.streams.launch(self._zero)
            self._zeroed = True
        self._last, self._last_samples, self._kept_lines = None, 0, 0

    def _zero(self) -> None:
        torch._foreach_zero_(self.parameter_gradients)
        self._step_sums.zero_()

    def inputs(self, samples: int) -> MicroBatch:
        """Return a micro-batch for the store to fill, with at least as many lines as samples. It reuses the last one's memory."""
        if not self._sizes or samples > self._sizes[-1]:
            self._grow(samples)
        lines = next(size for size in self._sizes if size >= samples)
        micro = self._buckets[lines].micro
        return MicroBatch(micro.dense_SX, micro.pooled, micro.labels_S, micro.scale_S, samples)

    def run(self, micro: MicroBatch) -> None:
        """Queue forward and backward. Adds to the parameters' gradients and to `step_loss`."""
        bucket = self._buckets[len(micro.scale_S)]
        assert bucket.micro.scale_S is micro.scale_S, "a micro-batch that is run must come from the last inputs()"
        self._keep_last()
        self._zeroed = False
        self.streams.launch(partial(self._replay, bucket))
        self.losses_S = bucket.losses_S
        self._last, self._last_samples = bucket, micro.samples

    def gradients(self) -> list[Tensor]:
        if not self._kept_lines:
            return self._last.gradients if self._last else []
        self._keep_last()
        return [part[: self._kept_lines] for part in self._kept]

    def clip(self, limit: float, pooled: list[Tensor]) -> None:
        self.streams.launch(partial(scale_down, self.parameter_gradients, pooled, limit))

    def step(self, factor: float) -> None:
        self.streams.launch(partial(self._step, factor))
        self._zeroed = True

    def _step(self, factor: float) -> None:
        self.set_rates(factor)
        self.weigh_loss()
        self._update()

    def _count_and_update(self) -> None:
        self._count_step()
        self.update_parameters()
        self._zero()  # here, as it is recorded with the rest

    def _changed_by_a_step(self) -> list[Tensor]:
        """What a step changes besides parameters and the optimizer's state."""
        return [self.health, self.loss_sum, self._step_sums, *self.parameter_gradients]

    def _count_step(self) -> None:
        self._sum += self._step_sums.sum()
        self._steps_sound += self._sum < math.inf  # no step from a faulty one on, as the sum stays infinite or NaN

    def logits(self, dense_SX: Tensor, pooled: list[Tensor]) -> Tensor:
        """Queue the logits (S,) for evaluation, for any number of lines."""
        logits_S = self._empty(len(dense_SX))
        compute = super().logits
        self.streams.launch(lambda: logits_S.copy_(compute(dense_SX, pooled)))
        return logits_S

    # Recording -------------------------------------------------------------------------------------------------------

    def _replay(self, bucket: _Bucket) -> None:
        """Run a micro-batch; the first time, record its bucket."""
        if bucket.replay is None:
            # Recording runs the work, so the sums are saved and restored. The pooled vectors' gradients are overwritten.
            sums = [*self.parameter_gradients, self._step_sums]
            before = [tensor.clone() for tensor in sums]
            bucket.replay = self.streams.capture(partial(self._forward_backward, bucket))
            torch._foreach_copy_(sums, before)
        self.streams.launch(bucket.replay)

    def _forward_backward(self, bucket: _Bucket) -> None:
        """Run the work that is recorded. Its results go to fixed memory, so that recordings can share their workspace."""
        micro = bucket.micro
        pooled = [part.detach().requires_grad_() for part in micro.pooled]
        losses_S = self._losses_of(micro.dense_SX, pooled, micro.labels_S)
        # Not backward(): the nodes that add to .grad remember a stream, which may not be the recording one.
        grads = torch.autograd.grad(losses_S, [*self.parameters, *pooled], micro.scale_S)
        torch._foreach_add_(self.parameter_gradients, grads[: len(self.parameters)])
        for static, grad in zip(bucket.gradients, grads[len(self.parameters) :], strict=True):
            static.copy_(grad)
        bucket.losses_S.copy_(losses_S.detach())
        counted_S = losses_S.detach().masked_fill_(micro.scale_S == 0, 0)
        # Of a weighted batch the mean loss: a recording cannot have the sum of its weights, by which `weigh_loss` multiplies it.
        self.step_loss += counted_S.sum() if self._whole_weight is None else torch.dot(counted_S.double(), micro.scale_S.double())
        # Of the copies: a gradient whose numbers do not lie side by side would have torch take each norm by a kernel of its own.
        lengths = torch._foreach_norm([*grads[: len(self.parameters)], *bucket.gradients])
        self._step_length += torch.stack(lengths).sum()

    def _forget_recordings(self) -> None:
        """Drop the recordings of all sizes: another run's weights are used."""
        for bucket in self._buckets.values():
            bucket.replay = None

    # Memory ----------------------------------------------------------------------------------------------------------

    def _grow(self, lines: int) -> None:
        """Replace buffers and recordings by new ones for a larger batch."""
        whole = self._lines(lines)
        gradients = [self._empty(lines, *shape) for shape in self.pool_shapes]
        losses_S = self._empty(lines)
        eighth = -(-lines // BUCKETS)
        self._sizes = [min(size, lines) for size in range(eighth, lines + eighth, eighth)]
        self._buckets = {}
        for size in self._sizes:
            self._buckets[size] = _Bucket(whole.first(size), [part[:size] for part in gradients], losses_S[:size])

    def _keep_last(self) -> None:
        """Queue a copy of the last micro-batch's gradients after those of the step's earlier ones."""
        if self._last is None:
            return
        first, end = self._kept_lines, self._kept_lines + self._last_samples
        if not self._kept or end > len(self._kept[0]):
            earlier = [part[:first] for part in self._kept]
            self._kept = [self._empty(max(end, self._sizes[-1]), *shape) for shape in self.pool_shapes]
            if first:
                self._copy([part[:first] for part in self._kept], earlier)
        last = [part[: self._last_samples] for part in self._last.gradients]
        self._copy([part[first:end] for part in self._kept], last)
        self._last, self._kept_lines = None, end

    def _copy(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        self.streams.launch(partial(torch._foreach_copy_, targets, sources))
