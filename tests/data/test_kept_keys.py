"""Which keys that have left may come back: beside a plain model that makes one step after the other."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_rec.data.raw.kept_keys import NEVER, KeptKeys
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import Saved

LATER, WINDOW, MOST = 4, 3, 5


class PlainKept:
    """The model, with a dict: its entries are [when it left, first batch, end]."""

    def __init__(self) -> None:
        self.entries: dict[int, list[int]] = {}
        self.dropped = 0

    def find(self, key: int, batch: int) -> str:
        left, first, end = self.entries.get(key, [0, 0, -1])
        return "free" if batch >= end else "waits" if batch < first else "kept"

    def leave(self, keys: list[int], later: int) -> None:
        lasting = sorted((entry[0], key) for key, entry in self.entries.items() if entry[2] == NEVER)
        ripe = [key for _, key in lasting if self.entries[key][1] < later]
        room = MOST - len(lasting)
        for key in ripe[: max(len(keys) - room, 0)]:
            self.entries[key][2] = later
            room += 1
        self.entries |= {key: [later, NEVER, NEVER] for key in keys[:room]}
        self.dropped += len(keys[room:])


@pytest.mark.parametrize("seed", range(20))
def test_what_a_batch_finds_depends_on_its_number_alone(seed: int) -> None:
    random, kept, model = np.random.default_rng(seed), KeptKeys(MOST, 2), PlainKept()
    own, leaving = set(range(20)), dict[int, int]()
    """Keys with a row, by what is settled; keys that leave, and when."""
    ahead: dict[int, list[tuple[int, bool, int]]] = {}
    dropped = back = 0
    for step in range(90):
        if step % WINDOW == 0:
            dropped += kept.forget_ended(step)
            for key in [key for key, entry in model.entries.items() if entry[2] <= step]:
                model.dropped += model.entries.pop(key)[2] >= 0
            left = [key for key, at in leaving.items() if at < step]
            rows, _ = kept.keep(1, np.array(left, dtype=np.int64) + 100, step + LATER)
            waiting = [key for key in left if key in model.entries and model.entries[key][1:] == [NEVER, NEVER]]
            assert sorted(rows.tolist()) == sorted(key + 100 for key in waiting)
            for key in waiting:
                model.entries[key][1] = step + LATER
            for key in left:
                del leaving[key]
            some = [key for key in sorted(own) if key not in leaving and random.random() < 0.15]
            keys = np.array(some, dtype=np.int64)
            dropped += kept.leave(1, keys, keys + 100, step + LATER) if some else 0
            model.leave(some, step + LATER)
            leaving |= dict.fromkeys(some, step + LATER)
        if random.random() < 0.2:
            ahead.clear()  # batches are taken again
            state, kept = kept.state(), KeptKeys(MOST, 2)
            kept.set_state(Saved({name: np.array(array) for name, array in state.items()}))
        for batch in range(step, step + 1 + random.integers(LATER)):
            if batch not in ahead:
                asked = np.arange(20)
                waits, places = kept.find(asked, np.ones(20, dtype=np.int64), batch)
                ahead[batch] = list(zip(asked.tolist(), waits.tolist(), places.tolist(), strict=True))
        own -= {key for key, at in leaving.items() if at == step}
        for key, waits, place in ahead.pop(step):
            if key in own:
                continue
            assert ("waits" if waits else "kept" if place >= 0 else "free") == model.find(key, step), (step, key)
            if random.random() < 0.1 and not waits:
                own.add(key)
                if place >= 0:
                    kept.settle_back(np.array([key]), np.array([1]))
                    model.entries[key][2] = -1
                    back += 1
        lasting = [entry for entry in model.entries.values() if entry[2] == NEVER]
        assert len(lasting) <= MOST
    assert dropped == model.dropped > 0
    assert back > 0


def test_a_forged_state_is_refused() -> None:
    kept = KeptKeys(2, 1)
    kept.leave(0, np.array([8, 7]), np.array([1, 2]), 9)
    for name, values, rule in (
        ("key_0", [8, 7], "distinct and rising"), ("place_0", [1, 2], "one of 2 places"), ("place_0", [1, 1], "one of 2 places"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=rule):
            KeptKeys(2, 1).set_state(Saved({**kept.state(), name: np.array(values)}))
