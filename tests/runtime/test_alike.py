"""Ranks that were started with other settings or other data than rank 0: all of them get an error that names the difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import AdaptiveRecError, ConfigError, UsageError
from adaptive_rec.run.follower import Follower
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.rank_checks import check_ranks_start, check_same_on_ranks
from adaptive_rec.system.group import Group
from tests.doubles.late_threads import LateThreads
from tests.settings import TINY


def config(*changes: str) -> Any:
    return load_config(None, {}, [*TINY, "knobs.policy=hotline", *changes])


def errors(of_rank: Callable[[Group], object], kind: type[AdaptiveRecError] = ConfigError) -> list[str]:
    def caught(group: Group) -> str:
        with pytest.raises(kind) as error:
            of_rank(group)
        return str(error.value)

    return LateThreads.train(3, caught)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("run.batch_size=31", "run.batch_size must be the same on all ranks, got 32 on rank 0 and 31 on rank 2"),
        ("knobs.alpha=0.5", "knobs.alpha must be the same on all ranks, got 0.9 on rank 0 and 0.5 on rank 2"),
        ("optimizer.dense_options={momentum=0.5}", "optimizer.dense_options.momentum must be the same on all ranks, got None on"),
    ],
)
def test_a_setting_of_one_rank(change: str, rule: str) -> None:
    def of_rank(group: Group) -> None:
        check_ranks_start(group, config(*[change] * (group.rank == 2)), resume=False)

    one, other, third = errors(of_rank)
    assert one == other == third
    assert one.startswith(rule)


def test_a_rank_that_resumes_alone() -> None:
    found = errors(lambda group: check_ranks_start(group, config(), resume=group.rank == 1))
    assert found[0] == "--resume must be the same on all ranks, got False on rank 0 and True on rank 1"


def test_a_rank_of_another_version() -> None:
    found = errors(lambda group: check_same_on_ranks(group, {"the version of adaptive-rec": f"0.{group.rank}"}))
    assert found[2] == "the version of adaptive-rec must be the same on all ranks, got 0.0 on rank 0 and 0.1 on rank 1"


def test_settings_of_a_machine_may_differ() -> None:
    LateThreads.train(2, lambda group: check_ranks_start(group, config(f"run.threads={1 + group.rank}"), resume=False))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("data.synthetic.samples=4001", "training samples of data.source must be the same on all ranks, got 4000"),
        ("data.table_rows=[60, 40, 8]", "tables of data.source must be the same on all ranks"),
        ("run.seed=2", "the sum of the first batch's ids must be the same on all ranks"),
    ],
)
def test_data_of_one_rank(change: str, rule: str) -> None:
    """A seed makes other synthetic samples."""
    for found in errors(lambda group: assemble(config(*[change] * (group.rank == 1)), group=group)):
        assert found.startswith(rule)


def test_a_rank_that_does_not_see_the_run_directory(tmp_path: Path) -> None:
    def of_rank(group: Group) -> object:
        out = tmp_path / f"machine-{group.rank // 2}"
        return Follower(config(), out, False, (), group) if group.rank else TrainingRun(config(), out, group=group)

    for found in errors(of_rank, UsageError):
        assert found.startswith("--out must be a directory that all ranks share, rank 2 finds no ")
    assert not (tmp_path / "machine-0").exists(), "it would be in the way of the next try"
