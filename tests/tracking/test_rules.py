"""Rules of staleness against plain twins, one row at a time, and what they say of rows whose movement is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.tracking.rules import RULES, RowMovement, expected_touches, popularity


def length(vector: Any) -> float:
    return float(np.sqrt(np.sum(np.square(vector))))


TWINS: dict[str, Callable[[Any, Any], float]] = {
    "max_abs": lambda moves, row: float(np.abs(sum(moves)).max()),
    "relative_l2": lambda moves, row: length(sum(moves)) / length(row),
    "per_touch": lambda moves, row: float(np.abs(sum(moves)).max()) / len(moves),
    "step_length": lambda moves, row: np.sqrt(sum(length(move) ** 2 for move in moves) / len(moves)),
    "net_over_path": lambda moves, row: length(sum(moves)) / np.sqrt(sum(length(move) ** 2 for move in moves) * len(moves)),
    "signal_to_noise": lambda moves, row: length(sum(moves)) ** 2 / sum(length(move) ** 2 for move in moves),
}
"""From the displacements of one row and the row as it is now."""


def observed(moves_of: list[list[Any]], rows: Any) -> RowMovement:
    """What a monitor with sums of full precision would have measured of rows that made these moves."""
    net = np.array([sum(moves) for moves in moves_of])
    square = [sum(length(move) ** 2 for move in moves) for moves in moves_of]
    lengths = [np.linalg.norm(part, axis=1) for part in (net, rows)]
    return RowMovement.of(np.stack([np.abs(net).max(axis=1), *lengths, square], axis=1), np.array([*map(len, moves_of)]))


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), dim=st.integers(1, 4))
def test_a_rule_equals_its_plain_twin(name: str, seed: int, rows: int, dim: int) -> None:
    random = np.random.default_rng(seed)
    moves_of = [[random.normal(size=dim) for _ in range(random.integers(1, 9))] for _ in range(rows)]
    now = random.normal(size=(rows, dim))
    found = RULES[name](observed(moves_of, now))
    expected = [TWINS[name](moves, row) for moves, row in zip(moves_of, now, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_every_rule_is_a_choice_of_the_knob() -> None:
    assert get_args(Knobs.model_fields["stale_metric"].annotation) == ("popularity", *RULES) == ("popularity", *TWINS)


def test_a_row_that_was_touched_and_never_moved_is_the_stalest() -> None:
    still = observed([[np.zeros(3)] * 4], np.ones((1, 3)))
    assert all(rule(still).tolist() == [0.0] for rule in RULES.values())


@pytest.mark.parametrize("name", ["net_over_path", "signal_to_noise"])
def test_a_row_that_moves_steadily_differs_from_one_that_wavers(name: str) -> None:
    """However small its steps are."""
    random = np.random.default_rng(1)
    wavering = [random.normal(size=8) for _ in range(50)]
    on_its_way = [np.full(8, 1e-6) + 1e-7 * random.normal(size=8) for _ in range(50)]
    wavers, goes = RULES[name](observed([wavering, on_its_way], np.ones((2, 8))))
    assert goes > 3 * wavers
    if name == "signal_to_noise":
        assert 0.3 < wavers < 3
        assert 45 < goes <= 50.0001


def test_the_published_rule_takes_a_row_that_is_seldom_touched_for_a_settled_one() -> None:
    """And the others do not: the row moves as far at each touch."""
    often, seldom = [np.ones(4)] * 40, [np.ones(4)] * 4
    rows = observed([often, seldom], np.ones((2, 4)))
    assert RULES["max_abs"](rows)[1] < RULES["max_abs"](rows)[0]
    for name in ("per_touch", "step_length", "net_over_path"):
        assert RULES[name](rows)[0] == pytest.approx(RULES[name](rows)[1])


def test_popularity_is_the_steps_between_two_lookups_and_touches_are_those_of_lookups_by_chance() -> None:
    """A row with many lookups in a step is touched once by it."""
    random, steps = np.random.default_rng(1), 4000
    per_step = np.array([0.0, 0.1, 1.0, 8.0])
    lookups = random.poisson(per_step, size=(steps, 4))
    counted = lookups.sum(axis=0).astype(np.float64)
    number, touches = popularity(counted, steps), expected_touches(counted, steps)
    assert np.isinf(number[0])
    np.testing.assert_allclose(number[1:], 1 / per_step[1:], rtol=0.1)
    np.testing.assert_allclose(touches, np.count_nonzero(lookups, axis=0), atol=0.02 * steps)
    assert expected_touches(counted, 0.0).tolist() == [0] * 4, "before a step was counted"
    assert np.isinf(popularity(np.zeros(2), 0.0)).all()
