"""Which keys get a row: beside a plain model that keeps a dict and exact counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.data.raw.changes import Change, NewKeys, changes_state
from adaptive_rec.data.raw.key_map import KeyMap
from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.saved import Saved

TABLE_F = (0, 1, 1)


class PlainKeys:
    """The model. Its counts are exact, as are those of a sketch with few keys."""

    def __init__(self, rows: tuple[int, int], shared: int, admit_after: int) -> None:
        self.rows, self.shared, self.admit_after = rows, shared, admit_after
        self.own: dict[tuple[int, int], int] = {}
        self.counts: Counter[tuple[int, int]] = Counter()
        self.refused = 0

    def take(self, batch: list[list[int]]) -> list[list[int | None]]:
        """Return the row of each lookup, None for a shared one."""
        named = [[(TABLE_F[bag % 3], key) for key in keys] for bag, keys in enumerate(batch)]
        unknown = [name for bag in named for name in bag if name not in self.own]
        self.counts.update(unknown)
        for table, key in sorted(set(unknown)):
            if self.counts[table, key] < self.admit_after:
                continue
            used = sum(1 for of, _ in self.own if of == table)
            if used < self.rows[table] - self.shared:
                self.own[table, key] = self.shared + used
            else:
                self.refused += 1
        return [[self.own.get(name) for name in bag] for bag in named]


def taken(keys: KeyMap, batch: list[list[int]], admit_after: int = 1) -> tuple[list[list[int]], NewKeys]:
    offsets = np.concatenate([[0], np.cumsum([len(bag) for bag in batch])])
    ids, new = keys.take(np.array([key for bag in batch for key in bag], dtype=np.int64), offsets, admit_after)
    return [ids[low:high].tolist() for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)], new


KEYS = st.sampled_from([0, 1, 2, 3, -1, 2**63 - 1, -(2**63), 10**12])
BATCHES = st.lists(st.lists(st.lists(KEYS, max_size=3), min_size=6, max_size=6), max_size=6)


@settings(deadline=None, max_examples=60)
@given(BATCHES, st.integers(1, 3), st.integers(1, 4))
def test_keys_get_the_rows_of_the_model(batches: list[list[list[int]]], shared: int, admit_after: int) -> None:
    rows = (shared + 4, shared + 3)
    keys, model = KeyMap(rows, TABLE_F, shared, seed=0), PlainKeys(rows, shared, admit_after)
    refused = 0
    for batch in batches:
        expected = model.take(batch)
        found, new = taken(keys, batch, admit_after)
        refused += int(new.refused_T.sum())
        for mine, theirs in zip(found, expected, strict=True):
            for row, other in zip(mine, theirs, strict=True):
                assert row == other if other is not None else row < shared
        assert new.lookups == sum(map(len, batch))
        assert new.lookups_shared == sum(row is None for bag in expected for row in bag)
        keys.settle(new)
    assert refused == model.refused
    for table in (0, 1):
        ids, own = (part.tolist() for part in keys.keys_of(table))
        assert {(table, key): row for row, key in zip(ids, own, strict=True)} == {
            name: row for name, row in model.own.items() if name[0] == table
        }


def test_what_is_settled_is_kept_apart_from_what_is_ahead() -> None:
    keys = KeyMap((9, 9), TABLE_F, 1, seed=0)
    keys.settle(taken(keys, [[5], [6], [7]])[1])
    taken(keys, [[8], [6], []])
    offsets = np.array([0, 1, 2, 3])

    assert keys.look_up(np.array([5, 8, 7]), offsets).tolist() == [1, 0, 2], "8 of table 1 was never seen"
    assert keys.look_up(np.array([8, 6, 7]), offsets).tolist() == [0, 1, 2], "8 of table 0 is ahead"
    keys.forget_ahead()
    assert keys.look_up(np.array([8, 6, 7]), offsets).tolist() == [0, 1, 2]
    found, new = taken(keys, [[9], [], []])
    assert (found[0], new.key_A.tolist()) == ([2], [9]), "the row that 8 had was given again"


@pytest.mark.parametrize("admit_after", [1, 3])
def test_a_state_goes_on_as_the_map_it_was_saved_by(admit_after: int) -> None:
    random = np.random.default_rng(4)
    batches = [[random.integers(0, 60, 2).tolist() for _ in range(300)] for _ in range(12)]
    whole, first, second = (KeyMap((200, 200), TABLE_F, 2, seed=3) for _ in range(3))
    for batch in batches[:6]:
        whole.settle(taken(whole, batch, admit_after)[1])
        first.settle(taken(first, batch, admit_after)[1])
    for batch in batches[6:8]:  # ahead, and not saved
        taken(first, batch, admit_after)
    second.set_state(Saved(first.state()))
    for batch in batches[6:]:
        (mine, new), (theirs, other) = taken(second, batch, admit_after), taken(whole, batch, admit_after)
        assert mine == theirs
        second.settle(new)
        whole.settle(other)
    for table in (0, 1):
        np.testing.assert_array_equal(second.keys_of(table)[1], whole.keys_of(table)[1])


LATER = 4


class PlainLeaving(PlainKeys):
    """The model with keys that leave: it makes one step after the other."""

    def __init__(self, rows: tuple[int, int], shared: int, admit_after: int) -> None:
        super().__init__(rows, shared, admit_after)
        self.changes: dict[int, tuple[list[tuple[int, int]], bool]] = {}
        """By batch: names that leave, and whether counts are forgotten."""
        self.never = [shared, shared]
        self.left: list[list[tuple[int, int]]] = [[], []]
        """Rows, and the batch from which each may be given."""
        self.batch = 0

    def take(self, batch: list[list[int]]) -> list[list[int | None]]:
        names, forget = self.changes.get(self.batch, ([], False))
        for name in names:
            del self.own[name]
        if forget:
            self.counts.clear()
        named = [[(TABLE_F[bag % 3], key) for key in keys] for bag, keys in enumerate(batch)]
        unknown = [name for bag in named for name in bag if name not in self.own]
        if self.admit_after > 1:
            self.counts.update(unknown)
        for name in sorted(set(unknown)):
            if self.admit_after == 1 or self.counts[name] >= self.admit_after:
                self._give(name)
        self.batch += 1
        return [[self.own.get(name) for name in bag] for bag in named]

    def _give(self, name: tuple[int, int]) -> None:
        table = name[0]
        if self.never[table] < self.rows[table]:
            self.own[name] = self.never[table]
            self.never[table] += 1
        elif self.left[table] and self.left[table][0][1] <= self.batch:
            self.own[name] = self.left[table].pop(0)[0]
        else:
            self.refused += 1


@pytest.mark.parametrize("admit_after", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_keys_leave_and_others_get_their_rows_however_far_ahead_batches_are_taken(seed: int, admit_after: int) -> None:
    random, rows = np.random.default_rng(seed), (14, 9)
    keys, model = KeyMap(rows, TABLE_F, 2, seed=0), PlainLeaving(rows, 2, admit_after)
    batches = [[random.integers(0, 25, 2).tolist() for _ in range(3)] for _ in range(60)]
    ahead: list[tuple[list[list[int]], NewKeys]] = []
    waiting: dict[int, list[tuple[int, int]]] = {}
    refused = left = 0
    for settled, batch in enumerate(batches):
        if settled % 3 == 0:
            for due in [due for due in waiting if due < settled]:
                for table, row in waiting.pop(due):
                    keys.free(table, np.array([row]), settled + LATER)
                    model.left[table].append((row, settled + LATER))
            leaving = {name for names, _ in model.changes.values() for name in names if name in model.own}
            leaving &= {name for due, (names, _) in model.changes.items() if due >= settled for name in names}
            names = [name for name in sorted(model.own) if name not in leaving and random.random() < 0.2]
            forget = bool(random.random() < 0.5)
            model.changes[settled + LATER] = names, forget
            waiting[settled + LATER] = [(table, model.own[table, key]) for table, key in names]
            table_L, key_L = (np.array([name[part] for name in names], dtype=np.int64) for part in (0, 1))
            id_L = np.array([model.own[name] for name in names], dtype=np.int64)
            keys.change(Change(settled + LATER, key_L, table_L, id_L, 0.0 if forget else 1.0))
            left += len(names)
        if random.random() < 0.2:
            keys.forget_ahead()
            ahead.clear()
        if random.random() < 0.2:
            saved, keys = keys, KeyMap(rows, TABLE_F, 2, seed=0)
            keys.set_state(Saved(saved.state()))
            ahead.clear()
        while len(ahead) < random.integers(1, LATER + 1) and settled + len(ahead) < len(batches):
            ahead.append(taken(keys, batches[settled + len(ahead)], admit_after))
        found, new = ahead.pop(0)
        refused += int(new.refused_T.sum())
        for mine, theirs in zip(found, model.take(batch), strict=True):
            assert [row if row >= 2 else None for row in mine] == theirs
        keys.settle(new)
        for table in (0, 1):
            ids, own = (part.tolist() for part in keys.keys_of(table))
            assert {(table, key): row for row, key in zip(ids, own, strict=True)} == {
                name: row for name, row in model.own.items() if name[0] == table
            }
    assert refused == model.refused
    assert left > 10


def test_a_forged_state_of_keys_that_leave_is_refused() -> None:
    keys = KeyMap((9, 9), TABLE_F, 1, seed=0)
    keys.settle(taken(keys, [[5], [6], [7]])[1])
    for table, key, row in ((0, 6, 1), (0, 5, 2), (1, 5, 1)):
        state = keys.state()
        leaving = changes_state([Change(9, *(np.array([part]) for part in (key, table, row)))])
        with pytest.raises(CheckpointError, match=f"table {table} that leave"):
            KeyMap((9, 9), TABLE_F, 1, seed=0).set_state(Saved({**state, "changes": leaving}))


def test_many_keys_make_the_slots_grow() -> None:
    keys = KeyMap((100_001, 2), (0,), 1, seed=0)
    numbers = np.arange(100_000) * 7919
    for part in np.array_split(numbers, 20):
        keys.settle(keys.take(part, np.arange(len(part) + 1), 1)[1])
    found = keys.look_up(numbers, np.arange(len(numbers) + 1))
    assert sorted(found.tolist()) == list(range(1, 100_001))
    np.testing.assert_array_equal(keys.keys_of(0)[1][found - 1], numbers)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"at most 1,073,741,823 rows in all, got 4,000,000,000"):
        KeyMap((2_000_000_000, 2_000_000_000), TABLE_F, 1, seed=0)
    large, small = KeyMap((9, 9), TABLE_F, 1, seed=0), KeyMap((3, 9), TABLE_F, 1, seed=0)
    large.settle(taken(large, [[1], [], []])[1])
    large.settle(taken(large, [[2], [], []])[1])
    large.settle(taken(large, [[3], [], []])[1])
    with pytest.raises(CheckpointError, match="table 0 must have at most 2 keys, the checkpoint has 3"):
        small.set_state(Saved(large.state()))
