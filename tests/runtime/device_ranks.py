"""What torchrun starts in `test_device_ranks.py`: a rank with a device, which writes its rows into a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.staged.link import Link, TorchLink
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.system.group import Group
from adaptive_rec.system.torch_group import TensorChannel, TorchGroup
from tests.doubles import host_kernels
from tests.settings import TINY

SETTINGS = ["knobs.policy=hotline", "knobs.prefetch_depth=2", "optimizer.embedding=adagrad", "knobs.hot_budget_bytes=1500"]


class PromptStreams:
    """A device in host memory that does everything at once, with gloo between the ranks."""

    device, kernels = torch.device("cpu"), host_kernels

    def allocate(self, nbytes: int) -> Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    pinned = allocate

    def peak_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return 1 << 62

    def trim(self) -> None: ...

    def launch(self, work: Callable[[], object]) -> None:
        work()

    def upload(self, to_device: Tensor, from_host: Tensor, after: Any, urgent: bool = False) -> bool:
        to_device.copy_(from_host)
        return True

    def download(self, to_host: Tensor, from_device: Tensor, after: Any = None) -> bool:
        to_host.copy_(from_device)
        return True

    def up_waits(self, event: Any, urgent: bool = False) -> None: ...

    def launch_aside(self, work: Callable[[], object], after: Any = None) -> bool:
        work()
        return True

    launch_down = launch_aside

    def download_aside(self, copies: list[tuple[Tensor, Tensor]]) -> bool:
        for to_host, from_device in copies:
            to_host.copy_(from_device)
        return True

    def record_aside(self, work: Callable[[], object]) -> Callable[[], object]:
        return work

    def compute_waits(self, event: Any) -> None: ...

    def compute_event(self) -> bool:
        return True

    def host_waits(self, event: Any) -> None: ...

    def has_happened(self, event: Any) -> bool:
        return True

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        work()
        return work

    def link(self, group: Group) -> Link:
        return TorchLink(TensorChannel("gloo"), group.meter, self.launch)


def main(folder: str, device: str) -> None:
    group = TorchGroup.join()
    streams = PromptStreams() if device == "prompt" else None
    settings = [*TINY, *SETTINGS, f"run.device={'cpu' if streams else 'cuda'}"]
    runtime = assemble(load_config(None, {}, settings), streams=streams, group=group)
    list(runtime.run())
    store, found = runtime.store, {}
    for table, spec in enumerate(store.peers.batch_space.tables):  # type: ignore[attr-defined]
        ids = store.peers.ownership.owned_ids(table)  # type: ignore[attr-defined]
        found[f"ids{table}"] = ids[ids < spec.rows]
        found[f"rows{table}"] = store.contents.export(table)[0][ids < spec.rows]
    np.savez(Path(folder) / f"{group.rank}.npz", **found)
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
