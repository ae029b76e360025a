"""Loops that are not the user's own: Lightning, Hugging Face's Trainer and accelerate, each over a model with embeddings."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests.clients.client import Client, ids

USERS, ITEMS, DIM, SIZE, HISTORY = 80, 150, 8, 32, 5


class TwoTowers(nn.Module):
    """Users and items they have seen, against an item; the history and the item share a table."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, DIM)
        self.items = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.user_tower = nn.Sequential(nn.Linear(2 * DIM, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, DIM))
        self.item_tower = nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, DIM))

    def forward(self, user: Tensor, history: Tensor, item: Tensor, labels: Tensor) -> dict[str, Tensor]:
        seen = self.items(history).mean(1)
        score = (self.user_tower(torch.cat([self.users(user), seen], 1)) * self.item_tower(self.items(item))).sum(1)
        return {"loss": nn.functional.binary_cross_entropy_with_logits(score, labels), "logits": score}


def _batches(steps: int) -> list[dict[str, Tensor]]:
    dice = torch.Generator().manual_seed(1)
    return [
        {
            "user": ids(dice, USERS, SIZE),
            "history": ids(dice, ITEMS, SIZE, HISTORY),
            "item": ids(dice, ITEMS, SIZE, first=1),
            "labels": torch.rand(SIZE, generator=dice).round(),
        }
        for _ in range(steps)
    ]


def _loader(batches: Sequence[Any]) -> Any:
    return torch.utils.data.DataLoader(list(batches), batch_size=None)


def _lightning() -> Any:
    """Return Lightning, under either of its names."""
    return importlib.import_module("lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning")


def _lightning_module() -> nn.Module:
    base: Any = _lightning().LightningModule

    class Module(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.towers, self.losses = TwoTowers(), []
            self.optimizer: torch.optim.Optimizer | None = None

        def training_step(self, batch: dict[str, Tensor]) -> Tensor:
            loss = self.towers(**batch)["loss"]
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return self.optimizer

    return Module()


def _fit(model: Any, optimizer: torch.optim.Optimizer, batches: Sequence[Any]) -> list[float]:
    """Lightning's ``Trainer.fit``, with gradients clipped."""
    model.optimizer = optimizer
    trainer = _lightning().Trainer(
        accelerator="cpu", max_epochs=1, gradient_clip_val=0.5, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, _loader(batches))
    return model.losses


def _huggingface(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Any]) -> list[float]:
    """Hugging Face's ``Trainer.train``: it shuffles, clips gradients and follows a schedule, in steps of two batches."""
    transformers, losses = importlib.import_module("transformers"), []
    samples = [{name: values[k] for name, values in batch.items()} for batch in batches for k in range(SIZE)]
    handle = model.register_forward_hook(lambda _module, _given, out: losses.append(out["loss"].item()))
    with tempfile.TemporaryDirectory() as folder:
        options = transformers.TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=SIZE // 2, gradient_accumulation_steps=2,
            report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=3,
        )  # fmt: skip
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.95**step)
        transformers.Trainer(model, options, train_dataset=samples, optimizers=(optimizer, schedule)).train()
    handle.remove()
    return losses


def _accelerate(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Any]) -> list[float]:
    """A loop over `Accelerator.prepare`, which accumulates over two batches and clips gradients."""
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, prepared, loader = accelerator.prepare(model, optimizer, _loader(batches))
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            prepared.step()
            prepared.zero_grad()
        losses.append(loss.item())
    return losses


LOOPS: dict[str, tuple[Callable[[], object], Callable[[], nn.Module], Callable[..., list[float]]]] = {
    "Lightning": (_lightning, _lightning_module, _fit),
    "Hugging Face Trainer": (lambda: importlib.import_module("transformers"), TwoTowers, _huggingface),
    "accelerate": (lambda: importlib.import_module("accelerate"), TwoTowers, _accelerate),
}


def clients() -> Iterator[Client]:
    """Yield the clients whose library is installed. Raises ImportError where none is."""
    errors = []
    for name, (package, make, loop) in LOOPS.items():
        try:
            package()
        except ImportError as error:
            errors.append(error)
        else:
            yield Client("Trainers", name, make, _batches, lambda model, batch: model(**batch)["loss"], loop)
    if len(errors) == len(LOOPS):
        raise errors[0]
