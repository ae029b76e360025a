"""Every pair of features of a run: a start and its dry run refuse what the table says, and start all others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.tabular.schema import parse_schema
from adaptive_rec.data.tabular.schema_text import schema_toml
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.memory.plan import MemoryPlan
from adaptive_rec.policy.find import BUILT_IN, load_policy
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.capabilities import (
    FEATURES,
    REFUSALS,
    as_markdown,
    check_features,
    features_of_run,
    go_together,
    of_knobs,
    of_loop,
    refusals,
)
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.start_checks import check_settings
from tests.doubles.late_streams import LateStreams

LIMITS = Path(__file__).parents[2] / "docs" / "limits.md"
OWN = [name for name in FEATURES if name.startswith("own") or name in ("every row", "skipping")]
"""Features of a loop of one's own; the tests of modules try them."""
SETTINGS: dict[str, list[str]] = {
    "processes": [],
    "gpu": ["run.device=cuda"],
    "cpu": ["run.device=cpu"],
    "disk": ["run.host_memory=8MiB", "knobs.hot_budget_bytes=4KiB"],
    "raw": ["data.ids=raw"],
    "rows": ["data.ids=auto"],
    "follow": ["data.follow=true", "data.follow_idle_seconds=0.01"],
    "keep evicted": ["data.keep_evicted=8"],
    "evict ratio": ["knobs.evict_ratio=0.1"],
    "evict after": ["knobs.evict_after=50"],
    "arranging": ["knobs.policy=cdlrm"],
    "reordering": ["knobs.policy=fae_released"],
    "per table": ["knobs.policy=xdl"],
    "implicit": ["data.implicit.negatives=2"],
    "order": ["data.order=time"],
    "next window": ["eval.mode=next_window", "eval.every_steps=5", "data.train_range=[0,0.8]", "data.test_range=[0.8,1]"],
    "validation": ["eval.mode=validation"],
    "train slice": ["eval.train_slice=true"],
    "rows of 16 bits": ["run.row_precision=bf16"],
    "float64": ["run.precision=float64"],
    "tf32": ["run.precision=tf32"],
    "transport": ["run.transport=bf16"],
    "compile": ["run.compile=true"],
    "onednn": ["run.linear=onednn"],
    "no float32": ["run.precision=bf16"],
    "classify": ["run.classify=device"],
    "cold rows": ["run.cold_rows=direct"],
}
NEEDS_RAW = ("keep evicted", "evict ratio", "evict after", "follow")
ON_GPU = ("tf32", "classify", "cold rows")
NOT_STARTED = ("processes", "compile")
"""Several processes start in tests/parity and tests/cli; to compile takes a minute (tests/dense)."""
EXCLUSIVE = [
    {"raw", "rows"}, {"cpu", "gpu"},
    {"arranging", "per table"}, {"reordering", "per table"},
    {"float64", "tf32"}, {"float64", "no float32"}, {"tf32", "no float32"},
    {"next window", "validation"}, {"next window", "train slice"}, {"follow", "train slice"},
]  # fmt: skip
"""Values of one setting, of which a run has one, and what needs another value than the other feature."""


def pairs() -> Iterator[Any]:
    """Yield the pairs of features of a run; every 18th is started in `make test`, all in `make check`."""
    names = [name for name in FEATURES if name not in OWN]
    for number, pair in enumerate(each for each in combinations(names, 2) if set(each) not in EXCLUSIVE):
        yield pytest.param(*pair, id=" + ".join(pair), marks=[] if number % 18 == 0 else [pytest.mark.slow])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clicks of 400 rows in order of time: a file with a schema, and a folder prepared from it; and another schema, by which
    all rows are positives, with its folder."""
    folder = tmp_path_factory.mktemp("clicks")
    dice = np.random.default_rng(1)
    rows = [f"{dice.integers(2)},{dice.integers(40)},{dice.integers(9)},{60 * i}" for i in range(400)]
    (folder / "clicks.csv").write_text("click,user,item,at\n" + "\n".join(rows) + "\n")
    answers = {"clicks": {"label": "click"}, "positives": {"implicit": {"item": "item", "user": "user"}}}
    for name, answer in answers.items():
        schema = parse_schema({**answer, "sparse": ["user", "item"], "time": "at"}, "schema")
        (folder / f"{name}.toml").write_text(schema_toml(schema))
        prepare_folder(Request((folder / "clicks.csv",), folder / name, schema=schema), lambda *_: None)
    return folder


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs find a device, which is simulated, unless they are to be on a CPU."""
    monkeypatch.setattr(
        assembling, "choose_device", lambda config: torch.device("cpu" if config.run.device == "cpu" else "cuda")
    )
    monkeypatch.setattr("adaptive_rec.embedding.staged.cuda_streams.CudaStreams", lambda *_: LateStreams(3))
    monkeypatch.setattr("adaptive_rec.dense.tf32.use_tf32", lambda _: None)
    monkeypatch.setattr(assembling.torch.cuda, "mem_get_info", lambda *_: (8 << 30, 8 << 30))


def with_needed(pair: tuple[str, str]) -> list[str]:
    """Return two features with those without which a run cannot have them."""
    wanted = [*(["arranging"] if "reordering" in pair else []), *pair]
    if set(NEEDS_RAW) & set(pair) and "rows" not in pair:
        wanted.append("raw")
    if {"float64", "tf32"} & set(pair):
        wanted.append("no float32")
    if "train slice" in pair and "validation" not in pair:
        wanted.append("validation")
    if not {"cpu", "gpu"} & set(pair):
        wanted.append("gpu" if set(ON_GPU) & set(pair) else "cpu")
    return wanted


def config_of(pair: tuple[str, str], data: Path) -> Config:
    """Return the settings of a run with two features, and else as plain as they let it be."""
    wanted = with_needed(pair)
    words = ["run.steps=6", "run.batch_size=20", "data.shuffle=false", "data.epochs=1", "run.threads=1", "eval.count=0"]
    if {"follow", "order", "next window", "implicit"} & set(pair):
        raw, name = "raw" in wanted, "positives" if "implicit" in pair else "clicks"
        words.append(f"data.source={data / 'clicks.csv' if raw else data / name}")
        words += [f"data.schema_file={data / f'{name}.toml'}"] if raw else []
        words += ["data.feature_tables=[]", "data.table_rows=[50, 20]", "data.max_table_rows=64"]
    for name in wanted:
        words += SETTINGS[name] if name != "no float32" or name in pair else []
    return load_config("tiny", {}, words)


def plan(config: Config) -> MemoryPlan:
    """Return what a dry run plans."""
    return assembling.plan_run(config, open_source(config, trains=config.data.follow))


def expected(pair: tuple[str, str]) -> list[str]:
    """Return the rules of the table for a pair, and for what it needs."""
    return [each.rule for each in REFUSALS if {each.changed, each.beside} <= set(with_needed(pair))]


@pytest.mark.parametrize(("one", "other"), list(pairs()))
def test_a_pair_starts_or_is_refused_by_name(one: str, other: str, data: Path, tmp_path: Path, two_devices: None) -> None:
    pair, rules = (one, other), expected((one, other))
    if any(each.in_config for each in REFUSALS if {each.changed, each.beside} <= set(with_needed(pair))):
        with pytest.raises(ConfigError) as refused:
            config_of(pair, data)
        words = {word for word in rules[0].replace('"', " ").replace(".", " ").split() if len(word) > 6}
        assert all(word in str(refused.value) for word in words), (rules, refused.value)
        return
    config = config_of(pair, data)
    several = "processes" in pair
    policy, on_device = load_policy(config.knobs.policy), config.run.device == "cuda"
    used = features_of_run(config, policy, on_device, several)
    assert {one, other} <= used.keys()
    assert [each.rule for each in refusals(used)] == rules, "no other feature is in use"
    if rules:
        with pytest.raises(ConfigError, match="got") as refused:
            check_settings(config, policy, on_device, several)
        assert rules[0] in str(refused.value)
    if several:
        return
    options = RunOptions(rows=tmp_path / "rows")
    if rules:
        for start in (lambda: plan(config), lambda: assembling.assemble(config, options=options)):
            with pytest.raises(ConfigError) as again:
                start()
            assert str(again.value) == str(refused.value), "a start and its dry run say the same"
    elif not {one, other} & set(NOT_STARTED):
        plan(config)
        runtime = assembling.assemble(config, options=options)
        assert any(isinstance(report, Snapshot) for report in runtime.run())
        assert runtime.step_number > 0


def test_every_feature_is_in_the_table_and_every_entry_has_a_reason() -> None:
    used = {name for each in REFUSALS for name in (each.changed, each.beside)}
    assert used == FEATURES.keys()
    assert set(SETTINGS) | set(OWN) == set(FEATURES)
    assert all(each.reason and each.rule for each in REFUSALS)
    assert len({(each.changed, each.beside) for each in REFUSALS}) == len(REFUSALS)


def test_the_names_of_policies_are_those_that_have_the_feature() -> None:
    has = {
        "arranging": lambda policy: policy.arranges_stream,
        "reordering": lambda policy: policy.reorders_stream,
        "per table": lambda policy: policy.request_per_table,
        "skipping": lambda policy: not policy.exact and not policy.arranges_stream,
    }
    for name, of in has.items():
        assert set(FEATURES[name].split("`")[1::2]) == {each for each in BUILT_IN if of(load_policy(each))}, name


def test_the_limits_show_the_table() -> None:
    how = "paste the output of python -m adaptive_rec.runtime.capabilities into docs/limits.md"
    assert as_markdown() in LIMITS.read_text(), how


def test_a_loop_of_ones_own_asks_the_same_table() -> None:
    knobs = load_config(None, {}, []).knobs

    def loop(policy: str = "hotline", several: bool = False, every_row: str = "", **more: str) -> dict[str, str]:
        return of_loop(knobs, load_policy(policy), more.pop("raw", "") == "yes", several, every_row, **more)

    assert go_together(loop())
    assert go_together(loop(device="cuda:0"))
    assert go_together(loop(dtype="torch.bfloat16", device="cuda:0", several=True))
    assert go_together(loop(dtype="torch.float16", device="cuda:0"))
    for features, rule in [
        (loop("cdlrm"), "policy must leave the stream to the loop, got cdlrm; it needs adaptive-rec train"),
        (loop("xdl"), "policy must leave tables and stream to the loop, got xdl"),
        (loop("slipstream", several=True), "policy must skip no work where several processes train together .* got slipstream"),
        (loop("slipstream", every_row="Adam"), "policy must be exact .* got slipstream; SGD, Adagrad, SparseAdam"),
        (loop(raw="yes", every_row="Adam"), "ids must not be raw under an optimizer that moves every row .* got Adam"),
        (loop(device="cuda:0", every_row="Adam"), "device must be cpu under Adam, which moves .* got cuda:0"),
        (loop(dtype="torch.bfloat16", every_row="AdamW"), "under AdamW, which moves .* got torch.bfloat16"),
    ]:
        with pytest.raises(ConfigError, match=rule):
            check_features(features)


def test_a_change_of_knobs_asks_the_same_table() -> None:
    knobs = load_config("tiny", {}, ["data.ids=raw", "knobs.evict_ratio=0.2"]).knobs
    for policy in ("hotline", "hybrid", "device_only", "cdlrm", "xdl"):
        assert go_together(of_knobs(knobs, load_policy(policy), raw=True))
    for policy, raw, rule in [
        ("hotline", False, "knobs.evict_ratio must be 0 unless data.ids=raw, got 0.2"),
        ("fae", True, "knobs.evict_ratio must be 0 under a policy that reorders the stream, got 0.2 under fae; hotline, hybrid, "
         "slipstream and others that keep its order take it"),
    ]:
        with pytest.raises(ConfigError, match=rule):
            check_features(of_knobs(knobs, load_policy(policy), raw))
