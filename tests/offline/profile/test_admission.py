"""What admission of raw ids needs and gives, against counts by dictionaries and against a run that admits them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.batch import Position
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.offline.forecast import passes
from adaptive_rec.offline.forecast.passes import FirstSamples, KeyCounts
from adaptive_rec.offline.forecast.profile import measure
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions

SAMPLES = 3000
SETTINGS = [
    "data.shuffle=false",
    f"data.synthetic.samples={SAMPLES}",
    "data.synthetic.lookups_per_feature=2",
    "data.ids=raw",
]


@pytest.mark.parametrize("merged_from", [1, 1 << 20])
def test_rows_and_lookups_are_those_of_plain_counting(monkeypatch: pytest.MonkeyPatch, merged_from: int) -> None:
    monkeypatch.setattr(passes, "MERGED_FROM", merged_from)
    config, own_rows = load_config("tiny", {}, SETTINGS), [100, 200, 50, 12]
    source = open_source(config)
    assert isinstance(source, RawIds)
    space = RowSpace.of(source.tables, source.features)
    found = passes.admission(FirstSamples(source.origin, space, config.run.seed, 2000, lambda *_: None), own_rows)

    batch = next(iter(source.origin.train_batches(Position(seed=config.run.seed), 2000)))
    counts: Counter[tuple[int, int]] = Counter()
    features = len(source.features)
    for bag, (first, end) in enumerate(zip(batch.offsets[:-1], batch.offsets[1:], strict=True)):
        counts.update((source.features[bag % features].table, int(key)) for key in batch.ids_N[first:end])
    assert [each["admit_after"] for each in found] == list(passes.ADMIT_AFTER)
    for each in found:
        after = each["admit_after"]
        rows = Counter(table for (table, _), count in counts.items() if count >= after)
        own = sum(count - after + 1 for count in counts.values() if count >= after)
        assert each["tables"] == [rows[table] for table in range(len(source.tables))]
        assert each["rows"] == rows.total()
        assert each["own_lookup_ratio"] == pytest.approx(own / counts.total(), rel=1e-12)
        assert each["full_tables"] == sum(rows[table] > room for table, room in enumerate(own_rows))
    assert found[0]["own_lookup_ratio"] == 1
    assert found[0]["full_tables"] == 3
    assert found[-1]["full_tables"] < 3


def test_a_run_admits_as_many_ids(tmp_path: Path) -> None:
    config = load_config("tiny", {}, [*SETTINGS, "knobs.admit_after=3", "data.epochs=1"])
    expected = next(each for each in measure(config, 0, 2, lambda *_: None)["admission"] if each["admit_after"] == 3)
    runtime = assemble(config, options=RunOptions(rows=tmp_path))
    list(runtime.run())
    assert runtime.state.input.raw_ids is not None
    counts = runtime.state.input.raw_ids.counts()
    assert expected["rows"] == counts["keys"], "the sketch has room for all of these"
    shared = counts["lookups_shared"] / counts["lookups"]
    assert 0 <= (1 - shared) - expected["own_lookup_ratio"] < 0.05, (
        "an id has its row for the whole batch that admits it"
    )


def test_keys_are_counted_over_the_whole_range_of_64_bits() -> None:
    counts, ends = KeyCounts(), [-(2**63), 2**63 - 1, 0]
    counts.add(np.array([*ends, ends[0]]))
    counts.add(np.array(ends[:1]))
    assert sorted(counts.lookups().tolist()) == [1, 1, 3]
    assert KeyCounts().lookups().tolist() == []


def test_the_command_shows_it_for_raw_ids_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "synthetic", "tiny", "--samples", "500", "--set", "data.synthetic.samples=1000"]
    assert main([*words, "--set", "data.ids=raw", "--out", str(tmp_path)]) == 0
    assert "admit_after  ids with a row  lookups of these rows" in capsys.readouterr().out
    assert "lookups of these rows" in (tmp_path / "profile.html").read_text()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["admission"] == []
