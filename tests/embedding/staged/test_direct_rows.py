"""Which cold rows a device reads in host memory by itself, and what locks that memory."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.config.run import RunConfig
from adaptive_rec.embedding.host import HostTier
from adaptive_rec.embedding.optimizer import RULES, RowRule
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.direct_rows import direct_rows, pays
from adaptive_rec.embedding.staged.in_place_store import InPlaceStore
from adaptive_rec.embedding.staged.late_streams import LateStreams
from adaptive_rec.embedding.staged.staged_store import StagedStore
from adaptive_rec.embedding.staged.stager import Stager
from adaptive_rec.errors import ConfigError
from adaptive_rec.placement import RowSpace

TABLES = (TableSpec("narrow", 30, 16), TableSpec("wide", 20, 128))
SPACE = RowSpace.of(TABLES, (FeatureSpec("a", 0), FeatureSpec("b", 1)))
RULE = RowRule(RULES["rowwise_adagrad"], 1e-8, 0.9, 0.999)


class LockingDriver:
    """As much of a driver as locks memory; it locks so many arrays."""

    def __init__(self, most: int) -> None:
        self.most, self.locked = most, dict[int, int]()
        self.interrupts = False

    def lock(self, address: int, nbytes: int) -> None:
        if len(self.locked) == self.most:
            raise RuntimeError("CUDA error 2: out of memory")
        assert not any(page in pages(*each) for each in self.locked.items() for page in pages(address, nbytes)), (
            "locked already"
        )
        self.locked[address] = nbytes
        if self.interrupts and len(self.locked) == 3:
            raise KeyboardInterrupt

    def unlock(self, address: int) -> None:
        self.locked.pop(address, None)


def pages(address: int, nbytes: int) -> range:
    return range(address >> 12, (address + nbytes - 1 >> 12) + 1)


class Locking(LateStreams):
    """The late device, whose memory the made-up driver locks."""

    share, unshare = CudaStreams.share, CudaStreams.unshare  # type: ignore[assignment]
    _driver: LockingDriver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> LockingDriver:
    made = LockingDriver(most=99)
    monkeypatch.setattr(Locking, "_driver", made, raising=False)
    return made


def choose(wanted: str) -> Any:
    host = HostTier(SPACE, RULE, 1, np.float32)
    return direct_rows(wanted, SPACE, RULE, torch.float32, Locking(1), host)


def test_wide_rows_are_read_directly_by_the_stated_figures() -> None:
    assert [pays(size, 4) for size in (64, 128, 256, 512, 1024)] == [False, False, False, True, True]
    assert [pays(size, 0) for size in (64, 256, 512)] == [False, True, True]
    assert pays(512, 1024)


def test_a_store_locks_the_arrays_of_what_it_reads_and_unlocks_them(driver: LockingDriver) -> None:
    """Each on pages of its own, as a page is locked once."""
    for wanted, pools in (("staged", []), ("auto", [1]), ("direct", [0, 1])):
        reads, complaint = choose(wanted)
        assert [pool for pool in range(2) if reads is not None and pool in reads] == pools
        assert (complaint, len(driver.locked)) == ("", 2 * len(pools))
        if reads is not None:
            reads.close()
        assert not driver.locked


def test_memory_that_cannot_be_locked_is_an_error_or_a_warning(driver: LockingDriver) -> None:
    driver.most = 1
    with pytest.raises(
        ConfigError, match=r"run\.cold_rows must be staged where tables cannot be locked in memory .*says: CUDA error 2"
    ):
        choose("direct")
    reads, complaint = choose("auto")
    assert reads is None
    assert complaint.startswith("cold rows are staged: run.cold_rows must be staged where tables cannot be locked")
    assert not driver.locked


def test_an_interrupt_while_memory_is_locked_leaves_none_locked(driver: LockingDriver) -> None:
    driver.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        choose("direct")
    assert not driver.locked


def test_rows_in_place_are_locked_as_long_as_their_store_is_there(driver: LockingDriver) -> None:
    """Also behind its close, for an evaluation. SGD has no state: there is nothing to lock, but kernels take its address."""
    for rule, arrays in ((RULE, 4), (RowRule(RULES["sgd"], 0, 0, 0), 2)):
        store = InPlaceStore(SPACE, rule, 1, torch.float32, Locking(1), 1 << 20, False)
        for _ in range(2):
            assert len(driver.locked) == arrays
            assert [store.tables.of_pool(pool)[0].data_ptr() in driver.locked for pool in range(2)] == [True, True]
            store.close()
        del store
        gc.collect()
        assert not driver.locked
    driver.most = 3
    with pytest.raises(ConfigError, match=r"run\.cold_rows must be staged where tables cannot be locked in memory"):
        InPlaceStore(SPACE, RULE, 1, torch.float32, Locking(1), 1 << 20, False)
    gc.collect()
    assert not driver.locked


@pytest.mark.parametrize("kind", [InPlaceStore, StagedStore])
def test_whatever_fails_leaves_no_memory_locked(
    kind: type[StagedStore], driver: LockingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a store is made, and while it is closed."""
    way = "in_place" if kind is InPlaceStore else "direct"
    settings: Any = (SPACE, RULE, 1, torch.float32), (1 << 20, False, 1, True, False, way)

    def fail(*_: object) -> Any:
        raise torch.OutOfMemoryError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(Stager, "__init__", fail)
        with pytest.raises(torch.OutOfMemoryError):
            kind(*settings[0], Locking(1), *settings[1])
    gc.collect()
    assert not driver.locked
    store = kind(*settings[0], Locking(1), *settings[1])
    assert len(driver.locked) == 4
    with monkeypatch.context() as patch:
        patch.setattr(store, "settle", fail)
        patch.setattr(store.streams, "compute_event", fail)
        with pytest.raises(torch.OutOfMemoryError):
            store.close()
    del store
    gc.collect()
    assert not driver.locked


@pytest.mark.parametrize("way", ["direct", "in_place"])
def test_rows_are_staged_where_the_host_has_no_tables_of_its_own(way: Any) -> None:
    """That such a run is refused where it names another way, tests/runtime/test_capabilities.py shows."""
    assert RunConfig(cold_rows="auto").cold_rows_of(ranks=2) == "staged"
    assert RunConfig(cold_rows=way).cold_rows_of(ranks=1) == way
    assert RunConfig(cold_rows=way, host_memory=1 << 30).cold_rows_of(ranks=1) == "staged"
