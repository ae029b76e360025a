"""Tables that one of several ranks owns whole: which they are, and how such a run goes on from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.system.group import Group
from tests.doubles.late_threads import LateThreads
from tests.runtime.test_processes import config
from tests.runtime.test_resumed_ranks import tables_of, trained

LONG_BAGS = ["data.table_rows=[6000, 4000, 9]", "data.synthetic.feature_lookups=[40, 30, 1]", "data.synthetic.head_ratio=0.5"]


@pytest.mark.parametrize(
    ("ranks", "before", "changes"),
    [
        (2, [], []),
        (2, [], ["run.whole_tables=false"]),
        (2, ["run.whole_tables=false"], []),
        pytest.param(3, [], [], marks=pytest.mark.slow),
        pytest.param(1, [], [], marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_of_ranks_that_own_tables_whole_goes_on(
    ranks: int, before: list[str], changes: list[str], tmp_path: Path
) -> None:
    """As many ranks go on bit by bit: they own what they owned, as in a run that an older version began."""
    whole = trained(tmp_path / "whole", 2, *LONG_BAGS, "run.steps=24", "knobs.hot_budget_bytes=20000", *before)
    trained(tmp_path / "run", 2, *LONG_BAGS, "run.steps=12", "knobs.hot_budget_bytes=20000", *before)
    again = trained(tmp_path / "run", ranks, *LONG_BAGS, "run.steps=24", "knobs.hot_budget_bytes=20000", *changes, resume=True)

    assert again["resumed_at_step"] == 12
    same = ranks == 2 and not changes
    assert not same or again["migrated_rows"] == whole["migrated_rows"]
    for one, other in zip(tables_of(tmp_path / "whole"), tables_of(tmp_path / "run"), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if same else 1e-11)


def test_tables_with_long_bags_have_one_owner_where_the_ranks_stay_even() -> None:
    def homes(group: Group, *changes: str) -> Any:
        return assemble(config(*changes), group=group).store.peers.home_T

    def of(ranks: int, *changes: str) -> list[Any]:
        return LateThreads.train(ranks, lambda group: homes(group, *changes))

    assert of(2, *LONG_BAGS) == [(0, 1, -1)] * 2
    assert of(3, *LONG_BAGS) == [()] * 3, "two tables cannot be spread over three"
    assert of(2, *LONG_BAGS, "data.table_rows=[6000, 400, 9]") == [()] * 2, "one of them would have nearly all rows"
    assert of(2, *LONG_BAGS, "run.whole_tables=false") == [()] * 2
    assert of(2) == [()] * 2, "bags of one id"
