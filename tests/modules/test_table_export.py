"""Tables of a loop in files for other programs, from every home: in one file, in parts, and as files that are mapped."""

from __future__ import annotations

import errno
import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec import AdaptiveEmbedding
from adaptive_rec.checkpoint.files import Disk
from adaptive_rec.errors import AdaptiveRecError, DiskError, UsageError
from adaptive_rec.modules.loop import table_export
from adaptive_rec.system import durable
from adaptive_rec.system.group import Group

from .ranks import patch_ranks, train
from .training import QUICK_WINDOWS

ROWS = {"large": (700, 8), "small": (40, 4)}
EXTRA = 640
"""Bytes of a file's rows: ten of the large table in float64."""

pytestmark = pytest.mark.usefixtures("small_segments")


def read_tables(folder: Path) -> dict[str, Tensor]:
    """Return the tables of a folder, by what its ``tables.json`` says."""
    found = {}
    for table in json.loads((folder / "tables.json").read_text())["tables"]:
        parts, end = [], 0
        for each in table["files"]:
            path = folder / each["file"]
            assert each["first_row"] == end
            end += each["rows"]
            part = torch.from_numpy(np.load(path)) if path.suffix == ".npy" else load_file(path)[table["array"]]
            assert len(part) == each["rows"]
            parts.append(part)
        found[table["name"]] = torch.cat(parts)
        assert found[table["name"]].shape == (table["rows"], table["dim"])
    return found


class Loop:
    """A model of two tables under an optimizer, whose rows move between homes as it trains."""

    def __init__(self, make: Any, dtype: torch.dtype, **home: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleDict({name: nn.Embedding(*shape, dtype=dtype) for name, shape in ROWS.items()})
        self._optimizer = make(self.model.parameters())
        self.runtime = adaptive_rec.wrap(self.model, optimizer=self._optimizer, knobs=QUICK_WINDOWS, **home)

    def train(self, steps: int, first: int = 0) -> list[float]:
        losses = []
        for step in range(first, first + steps):
            dice = torch.Generator().manual_seed(step)
            ids = torch.rand(30, generator=dice) ** 4
            self._optimizer.zero_grad()
            read = [module((ids * ROWS[name][0]).long()) for name, module in self.model.items()]
            loss = sum(each.float().sin().sum() for each in read)
            loss.backward()
            self._optimizer.step()
            losses.append(loss.item())
        return losses


HOMES: dict[str, Any] = {"memory": {"budget": "4KiB"}, "disk": {"host_memory": "8KiB"}}
FORMS: list[tuple[str, Any]] = [("safetensors", None), ("safetensors", EXTRA), ("npy", None)]
ADAGRAD, ADAM = partial(torch.optim.Adagrad, lr=0.1), partial(torch.optim.Adam, lr=0.1)


@pytest.mark.parametrize(
    ("home", "form", "part_size", "make", "dtype"),
    [
        ("disk", "safetensors", EXTRA, ADAGRAD, torch.float64),
        ("disk", "npy", None, ADAGRAD, torch.bfloat16),
        ("memory", "safetensors", "1KiB", ADAM, torch.float64),
        *(
            pytest.param(home, *form, make, dtype, marks=pytest.mark.slow)
            for home in HOMES
            for form in FORMS
            for make, dtype in (
                (ADAGRAD, torch.float64), (ADAM, torch.float32), (ADAGRAD, torch.bfloat16), (ADAGRAD, torch.float16)
            )  # fmt: skip
        ),
    ],
)
def test_files_have_the_rows_of_all_homes_and_training_goes_on_as_before(
    home: str, form: str, part_size: Any, make: Any, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_export, "CHUNK_ROWS", 64)
    ours, theirs = (
        Loop(make, dtype, **HOMES[home], **({"disk": tmp_path / f"rows-{number}"} if home == "disk" else {}))
        for number in range(2)
    )
    assert ours.train(12) == theirs.train(12)
    before = ours.runtime.stats()
    asked = read_at_a_time(ours.runtime.store.contents, monkeypatch)

    files = ours.runtime.export_tables(tmp_path / "out", form, part_size)

    assert sorted(files) == sorted((tmp_path / "out").iterdir())
    part_bytes = {None: 1 << 30, "1KiB": 1024}.get(part_size, part_size)
    parts = [-(-rows // (part_bytes // (dim * dtype.itemsize))) for rows, dim in ROWS.values()]
    assert len(files) == sum(parts) + 1
    assert max(parts) > 1 or part_size is None
    assert max(asked) <= 64, "no table is read as a whole"
    after = ours.runtime.stats()
    assert (after.hot_rows, after.lookups, after.migrated_rows) == (before.hot_rows, before.lookups, before.migrated_rows)
    if make is ADAGRAD and home == "disk":
        assert (after.disk["rows_written"], after.disk["rows_ahead"]) == (before.disk["rows_written"], before.disk["rows_ahead"])
    found, state = read_tables(tmp_path / "out"), theirs.model.state_dict()
    for name in ROWS:
        wide = form == "npy" and dtype == torch.bfloat16
        assert found[name].dtype == (torch.float32 if wide else dtype)
        assert torch.equal(found[name].to(dtype), state[f"{name}.weight"])
    assert ours.train(12, 12) == theirs.train(12, 12)


def read_at_a_time(contents: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets how many rows each later export of a store's rows reads."""
    real, asked = contents.export, list[int]()

    def export(table: int, *some: int) -> Any:
        found = real(table, *some)
        asked.append(len(found[0]))
        return found

    monkeypatch.setattr(contents, "export", export)
    return asked


def test_a_mapped_file_is_read_row_by_row(tmp_path: Path) -> None:
    loop = Loop(ADAGRAD, torch.float32, host_memory="8KiB", disk=tmp_path / "rows")
    loop.train(3)
    loop.runtime.export_tables(tmp_path / "out", "npy")
    mapped = np.load(tmp_path / "out" / "large.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    assert mapped.offset % 64 == 0
    ids = torch.tensor([699, 3, 3])
    assert torch.equal(torch.from_numpy(mapped[ids.numpy()]), loop.model["large"](ids).detach())


@pytest.mark.parametrize(
    ("ranks", "disk", "part_size"),
    [
        (2, True, EXTRA),
        pytest.param(3, False, None, marks=pytest.mark.slow),
        pytest.param(3, True, EXTRA, marks=pytest.mark.slow),
    ],
)
def test_the_first_rank_writes_the_rows_of_all(
    ranks: int, disk: bool, part_size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_export, "CHUNK_ROWS", 7)
    home: dict[str, Any] = {"host_memory": "1MiB", "disk": tmp_path / "rows"} if disk else {}

    def work(group: Any) -> Any:
        trained = train(group, ADAGRAD, 4, **home)
        files = trained.runtime.export_tables(tmp_path / "out", part_size=part_size)
        with pytest.raises(AdaptiveRecError, match="^all ranks .* File exists" if group.rank else "^out .* File exists"):
            trained.runtime.export_tables(tmp_path / "out")
        return files, trained.weights

    (files, weights), *others = patch_ranks(monkeypatch)(ranks, work)
    assert files
    assert [other[0] for other in others] == [[]] * (ranks - 1)
    found = read_tables(tmp_path / "out")
    for name, rows in found.items():
        assert torch.equal(rows, weights[f"{name}.weight"]), name


@pytest.mark.parametrize(("failing", "code"), [("a file of rank 0", 5), ("a row of rank 1", 6), ("the end", 2), ("no part", 2)])
def test_the_error_of_one_rank_ends_the_export_of_all_after_the_same_part(
    failing: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards they can export again. The cause is in the error of each."""
    create, sync_folder, space = Disk.create, durable.sync_folder, threading.Event()
    monkeypatch.setattr(table_export, "CHUNK_ROWS", 7)

    def fail(kind: str, error: Exception) -> None:
        if failing == kind and not space.is_set():
            raise error

    def created(disk: Disk, path: Path) -> Any:
        if path.name == "means-00002-of-00008.safetensors":
            fail("a file of rank 0", OSError(errno.ENOSPC, "the cause"))
        return create(disk, path)

    def synced(path: Path) -> None:
        fail("the end", OSError(errno.ENOSPC, "the cause"))
        sync_folder(path)

    monkeypatch.setattr(Disk, "create", created)
    monkeypatch.setattr(durable, "sync_folder", synced)

    def work(group: Group) -> Any:
        runtime = (trained := train(group, ADAGRAD, 2)).runtime
        read, asked = runtime.store.contents.export, []

        def export(*some: int) -> Any:
            asked.append(some)
            if group.rank == 1 and len(asked) == 5:
                fail("a row of rank 1", DiskError("the cause"))
            return read(*some)

        runtime.store.contents.export = export
        rule = "parts must have room for a row of means" if failing == "no part" else "the cause"
        with pytest.raises(AdaptiveRecError, match=rule) as found:
            runtime.export_tables(tmp_path / "out", part_size=20 if failing == "no part" else 240)
        assert found.value.exit_code == code
        parts = len(asked)
        assert not [path for path in tmp_path.iterdir() if group.rank == 0]
        group.gather(np.zeros(1, np.int64))
        space.set()
        runtime.export_tables(tmp_path / "out", part_size=240)
        return parts, trained.weights

    (parts, weights), (others, _) = patch_ranks(monkeypatch)(2, work)
    assert others in (parts, parts + 1)
    assert parts == {"a row of rank 1": 5, "no part": 0}.get(failing, parts)
    for name, rows in read_tables(tmp_path / "out").items():
        assert torch.equal(rows, weights[f"{name}.weight"]), name


def test_raw_ids_come_with_the_numbers_of_their_rows(tmp_path: Path) -> None:
    options: dict[str, Any] = {"host_memory": "8KiB", "disk": tmp_path / "rows", "optimizer": "adagrad", "lr": 0.1}
    table = AdaptiveEmbedding(50, 4, ids="raw", shared_rows=3, name="items", **options)
    ids = torch.tensor([-(2**63), 77, 2**63 - 1])
    table(ids).sum().backward()
    table.runtime.export_tables(tmp_path / "out")
    keys, rows = load_file(tmp_path / "out" / "keys.safetensors"), load_file(tmp_path / "out" / "items.safetensors")["weight"]
    assert torch.equal(keys["items.key"], ids)
    table.eval()
    assert torch.equal(rows[keys["items.row"]], table(ids))
    described = json.loads((tmp_path / "out" / "tables.json").read_text())
    assert described["keys"] == "keys.safetensors"
    assert (described["tables"][0]["shared_rows"], described["tables"][0]["rows"]) == (3, 53)
    unknown = 12345
    assert torch.equal(rows[shared_row(unknown, described["tables"][0]["salt"], 3)], table(torch.tensor(unknown)))


def shared_row(id_: int, salt: str, shared_rows: int) -> int:
    """As docs/howto/serving.md has it."""
    mask = (1 << 64) - 1
    x = (id_ & mask) ^ int(salt, 16)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return ((x ^ (x >> 31)) >> 32) % shared_rows


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"form": "torchrec"}, "form must be safetensors or npy, got 'torchrec'"),
        ({"form": "npy", "part_size": "1KiB"}, "part_size goes with the form safetensors, .*, got npy"),
        ({"part_size": "much"}, "part_size must be a number of bytes, 1 or more, .* got 'much'"),
        ({"part_size": 0}, "part_size must be a number of bytes, 1 or more, .* got 0"),
        ({"part_size": 63}, "parts must have room for a row of large, 64 bytes, got 63"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused_by_name(options: dict[str, Any], rule: str, tmp_path: Path) -> None:
    loop = Loop(ADAGRAD, torch.float64, budget="4KiB")
    with pytest.raises(UsageError, match=rule):
        loop.runtime.export_tables(tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []
