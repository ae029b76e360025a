"""Export of a table whose rows lie on a disk: seconds, processor time, and the memory that it takes.

    python -m benchmarks.table_export --rows 2000000 --dim 128
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import adaptive_rec


def memory_bytes() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


class MostMemory:
    """The most bytes in memory within a block, sampled."""

    def __enter__(self) -> MostMemory:
        self.most, self._ended = memory_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.most = max(self.most, memory_bytes())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 2_000_000, "dim": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory(dir=".") as folder:
        table = adaptive_rec.AdaptiveEmbedding(
            given.rows, given.dim, name="items", optimizer="rowwise_adagrad", lr=0.02, host_memory="64MiB",
            disk=Path(folder) / "rows",
        )
        runtime = table.runtime
        assert runtime is not None
        for _ in range(5):
            table((given.rows * torch.rand(4096) ** 3).long()).square().sum().backward()
        for form, part_size in (("safetensors", "256MiB"), ("npy", None)):
            began, processor, before = time.perf_counter(), time.process_time(), memory_bytes()
            with MostMemory() as memory:
                files = runtime.export_tables(Path(folder) / form, form, part_size)
            seconds, processor = time.perf_counter() - began, time.process_time() - processor
            size = sum(file.stat().st_size for file in files) / 2**20
            print(
                f"{form:12} {len(files) - 1} files, {size:,.0f} MiB: {seconds:.1f} s, {processor:.1f} s of a processor, "
                f"{(memory.most - before) / 2**20:,.0f} MiB of memory beside the {before / 2**20:,.0f} MiB before"
            )
        runtime.close()


if __name__ == "__main__":
    main()
