"""Forward, backward and update of the dense part on the CPU.

A step calls `begin_step`; for each micro-batch `inputs`, which the store fills, and `run`; then `gradients` for the store and
`step`. Its loss is the sum of its lines' losses, each times the line's scale.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive_rec.embedding.records import MicroBatch
from adaptive_rec.errors import ConfigError, first_line
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import ALONE, Group


class DensePart:
    """A dense model that runs micro-batches of exact size through eager torch."""

    group: Group = ALONE
    """The processes that train together."""
    is_replayed = False
    """Whether steps are recorded and replayed on a device, so that updates do not wait for checks."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: str,
        dtype: torch.dtype,
        device: torch.device,
        space: RowSpace,
        dense_features: int,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.precision = precision
        self.dtype = dtype
        self.device = device
        self._space = space
        self.pool_shapes = [(len(pool.features), pool.dim) for pool in space.pools]
        """(T, D) of each pool's pooled vectors."""
        self.dense_features = dense_features
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        """Sum of the losses of all samples so far: each times its weight where samples have weights, else without those that a
        policy gives them."""
        self.step_loss = torch.zeros_like(self.loss_sum)
        """The same of the present step, kept apart because a repeated step must not count twice."""
        self._whole_weight: float | None = None
        """Sum of the weights of the present step's whole batch; None where samples have no weights."""
        self._buffers: list[MicroBatch] = []
        """One reusable buffer for each micro-batch of a step, as large as the largest so far."""
        self._taken = 0
        self._gradients: list[list[Tensor]] = []
        """Gradients of the pooled vectors, for each micro-batch of the step a tensor for each pool."""
        self._step_losses: list[Tensor] = []
        """Losses of the lines, for each micro-batch of the step."""
        self.losses_S = self._empty(0)
        """Losses of the lines of the micro-batch that ran last, without their weights."""
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._forward: Callable[..., Tensor] = model
        """The model that trains, compiled or not; evaluations use `model`."""
        self._linear_layers: AbstractContextManager[Any] = nullcontext()

    def run_linear_layers_in(self, context: AbstractContextManager[Any]) -> None:
        """Enter a context, such as those of `linear.py`, for each forward pass."""
        self._linear_layers = context

    def compile(self, samples: int) -> None:
        """Compile the model for training, for all sizes of micro-batches, which takes seconds to a minute.

        Raises ConfigError where torch cannot compile.
        """
        from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

        self._forward = torch.compile(self.model, dynamic=True)
        try:
            for size in (samples, 2, 1):  # torch compiles the smallest sizes separately
                micro = self._lines(size)
                for part in (micro.dense_SX, *micro.pooled, micro.labels_S, micro.scale_S):
                    part.zero_()
                self.run(micro)
        except TorchDynamoException as error:
            rule = (
                "run.compile needs a C++ compiler that torch can use (g++, or the one that CXX names); set it to false"
            )
            raise ConfigError(f"{rule}: {first_line(getattr(error, 'inner_exception', error))}") from error
        self.begin_step()

    def twin(self) -> DensePart:
        """Return another dense part with copies of the parameters and of the optimizer's state, once all work is done that was
        launched. It is not compiled."""
        model, optimizer = copy.deepcopy((self.model, self.optimizer))
        found = DensePart(model, optimizer, self.precision, self.dtype, self.device, self._space, self.dense_features)
        found.run_linear_layers_in(self._linear_layers)
        return found.with_rates(self.base_rates)

    def with_rates(self, base_rates: list[float]) -> Self:
        """Set the configured learning rates of the optimizer's groups, whose own are those of the last step. Returns itself."""
        self.base_rates = base_rates
        return self

    def twin_bytes(self, lines: int) -> int:
        """Return the memory that a twin holds between two steps of so many lines: parameters, their gradients and the optimizer's
        state, and the lines' inputs with the gradients of their pooled vectors."""
        state = (value for kept in self.optimizer.state.values() for value in kept.values() if torch.is_tensor(value))
        numbers = self.dense_features + 2 + 2 * sum(features * dim for features, dim in self.pool_shapes)
        held = (*self.model.parameters(), *self.parameters, *state)
        return sum(part.nbytes for part in held) + lines * numbers * self.dtype.itemsize

    def begin_step(self, whole_weight: float | None = None) -> None:
        """Forget the last step's gradients. `whole_weight`: the sum of the weights of all samples, where they have some."""
        self._whole_weight = whole_weight
        self.optimizer.zero_grad(set_to_none=True)
        self.step_loss.zero_()
        self._gradients, self._step_losses, self._taken = [], [], 0

    def inputs(self, samples: int) -> MicroBatch:
        """Return a micro-batch for the store to fill, with at least as many lines as samples. Its memory is reused."""
        number, self._taken = self._taken, self._taken + 1
        if number == len(self._buffers):
            self._buffers.append(self._lines(samples))
        if samples > len(self._buffers[number].scale_S):
            self._buffers[number] = self._lines(samples)
        return self._buffers[number].first(samples)

    def evaluation_inputs(self, samples: int) -> MicroBatch:
        """Return a micro-batch of exactly this many lines, for the store to fill and for `logits`."""
        return self._lines(samples)

    def run(self, micro: MicroBatch) -> None:
        """Run forward and backward. Adds to the parameters' gradients and to `step_loss`."""
        pooled = [part.detach().requires_grad_() for part in micro.pooled]
        losses_S = self._losses_of(micro.dense_SX, pooled, micro.labels_S)
        # With a gradient of its own, a backward pass first imports SymPy. That of this sum is scale_S times 1, the same bits.
        torch.dot(losses_S, micro.scale_S).backward()
        self.losses_S = losses_S.detach()
        self.step_loss += self._loss_of(micro)
        self._step_losses.append(self.losses_S)
        self._gradients.append([part.grad for part in pooled if part.grad is not None])

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the step's pooled vectors (lines, T, D) for each pool, micro-batch after micro-batch.

        More lines may follow. Valid until the next `begin_step`; empty if no micro-batch was run.
        """
        if len(self._gradients) <= 1:
            return [part for parts in self._gradients for part in parts]
        return [torch.cat(parts) for parts in zip(*self._gradients, strict=True)]

    def losses(self) -> Tensor:
        """Return the losses of the step's samples, in the order of their gradients."""
        return torch.cat(self._step_losses)

    def squares(self) -> float:
        """Return the sum of the squares of the step's gradients, of pooled vectors and parameters, in their own precision.

        It is not finite where a gradient is not, or where its square overflows.
        """
        parts = [part for parts in self._gradients for part in parts]
        parts += [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return sum(float(torch.dot(flat, flat)) for flat in (part.reshape(-1) for part in parts))

    def share(self) -> None:
        """Start to add up the step's gradients over the processes that train together, before `step`."""

    def clip(self, limit: float, pooled: list[Tensor]) -> None:
        """Scale the step's gradients, those of parameters and of `pooled` vectors (what `gradients` has returned), where the L2
        norm of the parameters' is above a limit, as `torch.nn.utils.clip_grad_norm_` does. Between `share` and `step`."""
        scale_down([p.grad for p in self.parameters if p.grad is not None], pooled, limit)

    def step(self, factor: float) -> None:
        """Make an optimizer step with `factor` times the configured learning rates."""
        self.set_rates(factor)
        self.weigh_loss()
        self.update_parameters()

    def set_rates(self, factor: float) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor

    def update_parameters(self) -> None:
        self.optimizer.step()
        self.loss_sum += self.step_loss

    def logits(self, dense_SX: Tensor, pooled: list[Tensor]) -> Tensor:
        """Return logits (S,) for evaluation, for any number of lines."""
        with torch.no_grad():
            return self._logits(dense_SX, pooled, training=False)

    def _loss_of(self, micro: MicroBatch) -> Tensor:
        """Return the sum of the losses of the micro-batch that ran last; where samples have weights, its part of their mean, to
        be multiplied by `weigh_loss`."""
        if self._whole_weight is None:
            return self.losses_S.sum()
        return torch.dot(self.losses_S.double(), micro.scale_S.double())

    def weigh_loss(self) -> None:
        """Make the step's loss a sum of weighted ones, where samples have weights."""
        if self._whole_weight is not None:
            self.step_loss.mul_(self._whole_weight)

    def _losses_of(self, dense_SX: Tensor, pooled: list[Tensor], labels_S: Tensor) -> Tensor:
        logits_S = self._logits(dense_SX, pooled, training=True)
        return binary_cross_entropy_with_logits(logits_S, labels_S, reduction="none")

    def _logits(self, dense_SX: Tensor, pooled: list[Tensor], training: bool) -> Tensor:
        if self.model.training != training:
            self.model.train(training)
        # No cache, as it would hold tensors of one recording while another is made; each weight is read once anyway.
        bf16 = self.precision == "bf16"
        autocast = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16, cache_enabled=False)
        with autocast, self._linear_layers:
            logits_S: Tensor = (self._forward if training else self.model)(dense_SX, pooled)
        return logits_S.to(self.dtype)

    def _lines(self, lines: int) -> MicroBatch:
        return MicroBatch(
            dense_SX=self._empty(lines, self.dense_features),
            pooled=[self._empty(lines, *shape) for shape in self.pool_shapes],
            labels_S=self._empty(lines),
            scale_S=self._empty(lines),
            samples=lines,
        )

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)


def scale_down(gradients: list[Tensor], others: list[Tensor], limit: float) -> None:
    """Scale `gradients` so that their joint L2 norm is at most a limit, and `others` by the same factor."""
    if gradients:
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_([*gradients, *others], (limit / (norm + 1e-6)).clamp(max=1.0))
