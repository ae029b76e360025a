"""Where the rows of raw keys are, asked while a run trains."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions

SETTINGS = ["run.steps=150", "knobs.report_every=5", "data.synthetic.samples=40000", "knobs.prefetch_depth=6"]
SETTINGS += ["data.ids=raw", "knobs.admit_after=3", "data.shared_rows=3"]


def test_keys_are_found_by_another_thread_while_the_run_trains(tmp_path: Path) -> None:
    runtime = assemble(load_config("tiny", {}, SETTINGS), options=RunOptions(rows=tmp_path))
    ended, wrong, asked = threading.Event(), [], []
    keys = range(-5, 60)

    def ask() -> None:
        rows: dict[int, int] = {}
        while not ended.is_set():
            found = runtime.find_keys(2, keys)
            for key, row, own in zip(keys, found["ids"], found["own"], strict=True):
                if own != (row >= 3) or rows.get(key, row) != row:
                    wrong.append((key, row, own))
                if own:
                    rows[key] = row
            asked.append(len(rows))
            time.sleep(0.002)

    thread = threading.Thread(target=ask)
    thread.start()
    while not asked:
        time.sleep(0.001)
    for report in runtime.run():
        before = len(asked)
        while isinstance(report, Snapshot) and len(asked) == before and thread.is_alive():
            time.sleep(0.001)
    found = runtime.find_keys(2, keys)
    ended.set()
    thread.join()
    assert wrong == []
    assert len(asked) > 20
    assert asked[0] < 20 < asked[-1], "more and more keys have a row"

    assert runtime.state.input.raw_ids is not None
    id_K, key_K = runtime.state.input.raw_ids.keys.keys_of(2)
    rows = dict(zip(key_K.tolist(), id_K.tolist(), strict=True))
    assert found["own"] == [key in rows for key in keys]
    assert [row for row, own in zip(found["ids"], found["own"], strict=True) if own] == [
        rows[key] for key in keys if key in rows
    ]
    counted = np.array(found["counted"])
    assert counted[:5].tolist() == [0] * 5, "keys that never occurred"
    assert (counted[found["own"]] >= 3).all(), "a key has a row from its third lookup on"


def test_keys_are_refused_where_ids_are_rows(tmp_path: Path) -> None:
    runtime = assemble(load_config("tiny", {}, ["run.steps=1"]), options=RunOptions(rows=tmp_path))
    with pytest.raises(ConfigError, match=r"where data.ids is raw"):
        runtime.find_keys(0, [1])
