"""Settings that a checkpoint was saved with, as a stranger may have spoilt them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.checkpoint.settings import check_saved_settings
from adaptive_rec.errors import CheckpointError

TABLES = [{"name": "user", "rows": 7}, {"name": "item", "rows": 9}]


@pytest.mark.parametrize(
    "spoilt", [[TABLES[0], "x"], [TABLES[0], None], ["x", TABLES[1]], [[], TABLES[1]], "x", {}, None]
)
def test_tables_that_are_no_tables_are_an_error(spoilt: Any) -> None:
    with pytest.raises(CheckpointError, match="tables of checkpoint step-1 must be .*, got 2 of them"):
        check_saved_settings({"data": {}, "tables": TABLES}, {"data": {}, "tables": spoilt}, Path("step-1"))
