"""A loop of one's own over pairs of policies, homes of cold rows, ranks and update rules, see ``tests.matrix``: it trains as
the loop of all rows in memory and in one process does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.system.group import Alone
from tests.matrix import REFUSED, Case, cover, product, title

from .ranks import Trained, patch_ranks, train

STEPS = 9


def trained(group: Any, case: Case, folder: Path | None = None) -> Trained:
    disk = {} if folder is None else {"host_memory": "1MiB", "disk": folder}
    return train(group, None, STEPS, rule=case["optimizer"], policy=case["policy"], **disk)


@pytest.mark.parametrize("case", cover("own"), ids=title)
def test_a_cell_trains_as_its_plain_cell_does(
    case: Case, tmp_path: Path, small_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rows" if case["home"] == "disk" else None
    found = patch_ranks(monkeypatch)(case["ranks"], lambda group: trained(group, case, folder))
    plain = trained(Alone(), case)
    for one in found:
        np.testing.assert_allclose(one.losses, plain.losses, rtol=1e-12, atol=0)
        for name, weight in plain.weights.items():
            torch.testing.assert_close(one.weights[name], weight, rtol=0, atol=1e-11)


@pytest.mark.parametrize("number", [number for number, (values, _) in enumerate(REFUSED) if "own" in values["loop"]])
def test_a_refused_cell_is_refused_by_name(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values, words = REFUSED[number]
    for choice in product(values):
        case = {"policy": "hotline", "optimizer": "sgd", "ranks": 1, **choice}
        with pytest.raises(AdaptiveRecError, match=words):  # noqa: PT012
            patch_ranks(monkeypatch)(case["ranks"], partial(trained, case=case))
            pytest.fail(f"not refused: {choice}")
