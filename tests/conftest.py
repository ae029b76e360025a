"""What several tests share: the real click rows, and a source of batches held in memory."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec.system.openmp import wait_briefly

wait_briefly(os.environ)  # as the command line does, before torch loads OpenMP

from adaptive_rec.batch import Batch, FeatureSpec, Position, TableSpec  # noqa: E402
from tests.durations import Durations  # noqa: E402
from tests.finished_runs import COMMON_FOLDER, FinishedRuns  # noqa: E402
from tests.parts import ALONE  # noqa: E402


def test_data_folder() -> Path:
    named = os.environ.get("ADAPTIVE_REC_TEST_DATA")
    return Path(named) if named else Path(__file__).parent.parent.parent / "shared" / "data"


test_data_folder.__test__ = False  # type: ignore[attr-defined]


EACH_MODULES = 50
"""After so many modules, garbage is looked for among all objects."""

modules_ended = itertools.count(1)


NOT_PASSED = pytest.StashKey[bool]()
"""Set for a test of which some phase failed or was skipped."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--passed-file", help="leave out the tests named in this file, and add those that pass to it")
    parser.addoption("--durations-table", help="write the seconds of each test, and the counts, to this file")


def pytest_configure(config: pytest.Config) -> None:
    if table := config.getoption("--durations-table"):
        config.pluginmanager.register(Durations(Path(table)))
    with suppress(ImportError):  # machines that are lent for their GPU may lack it
        from hypothesis import settings

        settings.register_profile("shared", deadline=None)  # processors of such machines are shared: no limit on the clock
        settings.load_profile("shared")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = config.getoption("--passed-file")
    passed = set(Path(named).read_text().splitlines()) if named and Path(named).exists() else set()
    folders = [folder for part in ALONE for folder in part]
    astray = [item.nodeid for item in items if item.get_closest_marker("alone") and item.path.parent.name not in folders]
    if astray:
        raise pytest.UsageError(f"make test looks for tests marked alone in {', '.join(folders)} only, got {astray[0]}")
    done = [item for item in items if item.nodeid in passed]
    if done:
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in passed]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave all that is loaded by now out of the collections of garbage that tests and runs ask for: it is large, and stays."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the end of the process free what was left out, where Triton is loaded, which would report that as leaked."""
    if "triton" in sys.modules:
        gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` are left out, with the reason, where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device here")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report, named = outcome.get_result(), item.config.getoption("--passed-file")
    if not report.passed:
        item.stash[NOT_PASSED] = True
    if named and report.when == "teardown" and not item.stash.get(NOT_PASSED, False):
        Path(named).parent.mkdir(parents=True, exist_ok=True)
        with open(named, "a") as passed:
            passed.write(item.nodeid + "\n")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key by which this user's run directories are known again lies in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> FinishedRuns:
    common = os.environ.get(COMMON_FOLDER)
    return FinishedRuns(Path(common) if common else tmp_path_factory.mktemp("finished"))


@pytest.fixture
def finished_run(shared_runs: FinishedRuns, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Get a copy of a finished run of some kind, at tmp_path/run or elsewhere; see ``tests.finished_runs``."""

    def copied(kind: str, to: Path | None = None, links: bool = True) -> Path:
        return shared_runs.copy(kind, to or tmp_path / "run", links)

    yield copied
    shared_runs.check()


@pytest.fixture(scope="module", autouse=True)
def memory_returned() -> Iterator[None]:
    """Give freed memory back to the system: glibc keeps that of many threads' arenas, gigabytes after a few hundred runs. Runs
    are circles of objects, which Python frees when it looks for them. It looks at what is new since the module before, and now
    and then at all there is: looking through all that tests have imported took a tenth of their time."""
    yield
    if next(modules_ended) % EACH_MODULES == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows on a disk go to files soon, and are read from there."""
    from adaptive_rec.embedding.disk import row_log

    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)


@pytest.fixture
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For plans of several processes: each needs what this one holds, and pytest may hold gigabytes by now."""
    from adaptive_rec.memory import parts

    monkeypatch.setattr(parts, "own_bytes", lambda: 300 << 20)


@pytest.fixture(scope="session")
def criteo_sample() -> Path:
    """The Criteo Kaggle sample of 137,139 rows."""
    path = test_data_folder() / "criteo_kaggle_sample_137k.tsv.zst"
    if not path.exists():
        pytest.skip(f"the Criteo sample is absent: set ADAPTIVE_REC_TEST_DATA to the folder of {path.name}")
    return path


@dataclass
class MemorySource:
    """Batches given as a list, for tests; the position's offset counts batches."""

    batches: list[Batch]
    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    held_out: list[Batch] = field(default_factory=list)
    validation_samples: int = 0
    epochs: int = 1
    malformed_rows: int = 0
    sequence: Any = None

    @property
    def dense_features(self) -> int:
        return self.batches[0].dense_BX.shape[1]

    @property
    def train_samples(self) -> int:
        return sum(batch.size for batch in self.batches)

    @property
    def test_samples(self) -> int:
        return sum(batch.size for batch in self.held_out)

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        for number, batch in enumerate(self.batches):
            if number >= position.offset:
                after = Position(0, position.seed, number + 1)
                yield Batch(batch.dense_BX, batch.ids_N, batch.offsets, batch.labels_B, after)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        yield from self.held_out


@pytest.fixture(scope="session")
def memory_source() -> type[MemorySource]:
    return MemorySource


@dataclass
class Rows:
    """Real click rows with contiguous ids: dense features (rows, 13), ids (rows, 26), labels (rows,), table sizes."""

    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    labels: NDArray[np.float32]
    table_rows: tuple[int, ...]


@pytest.fixture(scope="session")
def criteo_rows(criteo_sample: Path) -> Rows:
    """The first 26,000 rows of the Criteo sample."""
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.data.open import open_source

    settings = [f"data.source={criteo_sample}", "data.ids=contiguous", "data.shuffle=false"]
    source = open_source(load_config(None, {}, settings))
    batch = next(iter(source.train_batches(Position(), 26_000)))
    ids = batch.ids_N.reshape(batch.size, -1)
    return Rows(batch.dense_BX, ids, batch.labels_B, tuple(table.rows for table in source.tables))


@pytest.fixture
def closed_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type], None]]:
    """Have whatever a test makes of some class closed behind it, which shows errors of its threads as well."""
    made: list[Any] = []

    def watch(kind: Any) -> None:
        begin = kind.__init__

        def kept(one: Any, *arguments: Any) -> None:
            begin(one, *arguments)
            made.append(one)

        monkeypatch.setattr(kind, "__init__", kept)

    yield watch
    for one in made:
        one.close()


@pytest.fixture
def closed_runtimes(closed_behind: Callable[[type], None]) -> None:
    """Runtimes of a test's own loops are closed behind it: other tests look for threads of theirs among all there are."""
    from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime

    closed_behind(EmbeddingRuntime)
