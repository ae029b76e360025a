"""Lightning: rows in two tiers under its `Trainer`, their state in its checkpoints, their figures in its loggers.

This module needs Lightning, as ``lightning`` or as ``pytorch_lightning``. Where both are installed it takes the one that is
loaded already.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

from torch import Tensor

from adaptive_rec.errors import CheckpointError, UsageError
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop.lookahead import Sparse
from adaptive_rec.modules.loop.stats import LoopFigures

if TYPE_CHECKING or "pytorch_lightning" in sys.modules:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError:
        try:
            from pytorch_lightning import Callback, LightningModule, Trainer
        except ImportError:
            raise ImportError(f"{__name__} needs Lightning: pip install pytorch-lightning") from None

KEY = "adaptive_rec"
"""Key of the rows' state in a checkpoint, and prefix of figures."""


class AdaptiveRecCallback(Callback):
    """Lightning callback that saves, logs and serves the runtimes of a LightningModule's adaptive modules, or a given runtime.

    Every `every_n_steps` steps (default: the trainer's ``log_every_n_steps``) their figures go to the trainer's loggers.
    Checkpoints also hold what exact resuming needs: optimizer state of the rows, the step, which rows are hot. With `serve`
    (True, or a port) the dashboard and the HTTP API are available during training.
    """

    def __init__(
        self, runtime: EmbeddingRuntime | None = None, *, every_n_steps: int | None = None, serve: bool | int = False
    ) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise UsageError(f"every_n_steps must be at least 1, got {every_n_steps}")
        self._given = runtime
        self._every_n_steps = every_n_steps
        self._serve = serve
        self._runtimes: list[EmbeddingRuntime] = []
        self._loop_figures: list[LoopFigures] = []
        self._to_load: list[dict[str, Any]] | None = None
        self._logged_at = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the runtimes; the model is built and has the weights of the checkpoint."""
        self._runtimes = [self._given] if self._given is not None else runtimes_of(pl_module)
        self._loop_figures = [LoopFigures() for _ in self._runtimes]
        if not self._runtimes:
            raise UsageError(
                "AdaptiveRecCallback must be given a runtime or a LightningModule with adaptive modules (adaptive_rec.wrap makes "
                f"them), {type(pl_module).__name__} has none"
            )
        _check(trainer, any(runtime.updates_in_backward for runtime in self._runtimes))
        if self._to_load is not None:
            if len(self._to_load) != len(self._runtimes):
                raise CheckpointError(
                    f"the checkpoint must hold the state of {len(self._runtimes)} runtimes, it holds {len(self._to_load)}"
                )
            for runtime, state in zip(self._runtimes, self._to_load, strict=True):
                runtime.load_state_dict(state)
            self._to_load = None
        if self._serve is not False:
            where: dict[str, Any] = {} if self._serve is True else {"port": self._serve}
            for runtime in self._runtimes:
                print(f"dashboard   {runtime.serve(**where)}")

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        for runtime in self._runtimes:
            runtime.record_loss(loss.detach() * trainer.accumulate_grad_batches)  # Lightning has divided it

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        every, step = self._every_n_steps or int(getattr(trainer, "log_every_n_steps", 0)), trainer.global_step
        if every and step // every > self._logged_at // every:
            self._logged_at = step
            for values in self._figures():
                for logger in trainer.loggers:
                    logger.log_metrics(values, step=step)

    def _figures(self) -> Iterator[dict[str, float]]:
        for number, (runtime, figures) in enumerate(zip(self._runtimes, self._loop_figures, strict=True)):
            prefix = KEY if number == 0 else f"{KEY}_{number + 1}"
            yield {f"{prefix}/{name}": value for name, value in figures.of_stats(runtime.stats()).items()}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[KEY] = [runtime.state_dict() for runtime in self._runtimes]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the saved state until training starts: the module may not be wrapped yet."""
        if KEY not in checkpoint:
            raise CheckpointError(f"the checkpoint must have {KEY}, it was written without AdaptiveRecCallback")
        self._to_load, self._logged_at = checkpoint[KEY], checkpoint["global_step"]

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._close()

    def _close(self) -> None:
        for runtime in self._runtimes:
            runtime.close()


class LookAhead:
    """Data loader for the Trainer that looks up its batches ahead, by `EmbeddingRuntime.prefetch`.

    It has a length, as Lightning fetches one batch too many from loaders without one.
    """

    def __init__(self, runtime: EmbeddingRuntime, loader: Iterable[Any], sparse: Sparse) -> None:
        if not isinstance(loader, Sized):
            raise UsageError(f"loader must have a length, {type(loader).__name__} has none")
        self._length = len(loader)
        self._runtime, self._loader, self._sparse = runtime, loader, sparse

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return self._runtime.prefetch(self._loader, sparse=self._sparse)


def runtimes_of(module: Any) -> list[EmbeddingRuntime]:
    """Return the runtimes of a module's parts, each once, in the order of the modules."""
    found = (getattr(part, "runtime", None) for part in module.modules())
    return list({id(each): each for each in found if isinstance(each, EmbeddingRuntime)}.values())


def _check(trainer: Trainer, in_backward: bool) -> None:
    """Raise UsageError where rows would be updated wrongly; warn of options that do not apply to rows."""
    if trainer.world_size > 1:
        raise UsageError(
            f"Trainer must have one process, as tables in two tiers belong to one, got {trainer.world_size}"
        )
    if not in_backward:
        return
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise UsageError(
            f"Trainer must not scale gradients, as rows are updated with them at once, got precision={trainer.precision}; "
            "bf16-mixed does not"
        )
    if trainer.gradient_clip_val:
        _warn("gradient_clip_val leaves rows in two tiers as they are: a backward pass updates them at its end")
    if trainer.accumulate_grad_batches != 1:
        _warn("accumulate_grad_batches leaves rows in two tiers as they are: every backward pass updates them")


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)
