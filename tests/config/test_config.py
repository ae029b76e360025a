"""The configuration: layers, suggestions, strictness, presets and the written reference."""

from __future__ import annotations

import os
import tomllib
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_tests
from hypothesis import strategies as st

from adaptive_rec.config import reference as config_reference
from adaptive_rec.config.faults import value_in_sentence
from adaptive_rec.config.knobs import LARGEST, MOST_BYTES, MOST_STEPS, Knobs
from adaptive_rec.config.run import RunConfig
from adaptive_rec.config.tree import PRESETS_FOLDER, Config, leaves, load_config, presets, to_toml
from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.live.telemetry import Event
from adaptive_rec.run.journal import commands, line_of
from adaptive_rec.saved import Saved
from adaptive_rec.state.saved_run import read_knobs

VALUES = {
    "run.steps": st.integers(0, 10_000),
    "run.seed": st.integers(0, 2**31),
    "data.shuffle": st.booleans(),
    "data.source": st.sampled_from(["synthetic", "train.txt", "a b.tsv"]),
    "data.synthetic.popular_ratio": st.floats(0, 1),
    "model.top_mlp": st.lists(st.integers(1, 64), max_size=3).map(tuple),
    "optimizer.embedding_lr": st.floats(1e-6, 1),
    "knobs.action": st.sampled_from(["freeze", "drop", "subsample"]),
    "knobs.hot_budget_bytes": st.integers(0, 1 << 40),
}
LAYER = st.fixed_dictionaries({}, optional=VALUES)


def lookup(config: Config, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


@settings_of_tests(deadline=None)
@given(file=LAYER, environment=LAYER, settings=LAYER)
def test_the_later_layer_wins(tmp_path_factory, file, environment, settings):
    """Defaults < TOML file < environment < --set, key by key."""
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text("\n".join(f"{key} = {config_reference.toml_value(value)}" for key, value in file.items()))
    named = {
        f"ADAPTIVE_REC_{key.upper().replace('.', '__')}": config_reference.toml_value(value)
        for key, value in environment.items()
    }
    given_settings = [f"{key}={config_reference.toml_value(value)}" for key, value in settings.items()]
    found = load_config(str(path), named, given_settings)
    expected = {key: lookup(Config(), key) for key in VALUES} | file | environment | settings
    assert {key: lookup(found, key) for key in VALUES} == expected


@settings_of_tests(deadline=None)
@given(settings=LAYER)
def test_the_resolved_configuration_gives_itself_again(tmp_path_factory, settings):
    resolved = load_config(
        "tiny", {}, [f"{key}={config_reference.toml_value(value)}" for key, value in settings.items()]
    )
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(to_toml(resolved))
    assert load_config(str(path), {}) == resolved


def test_an_unknown_key_names_the_nearest_one_in_every_layer(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[run]\nstpes = 5\n")
    with pytest.raises(ConfigError, match=r"unknown key run\.stpes in .*run\.toml; did you mean run\.steps\?"):
        load_config(str(path), {})
    with pytest.raises(ConfigError, match=r"ADAPTIVE_REC_RUN__STPES; did you mean run\.steps\?"):
        load_config(None, {"ADAPTIVE_REC_RUN__STPES": "5"})


@pytest.mark.parametrize("name", ["ADAPTIVE_REC_RUN_STEPS", "Adaptive_Rec_Run_Steps", "adaptive_rec_run__steps"])
def test_a_variable_that_would_set_nothing_is_refused_with_what_is_meant(name: str) -> None:
    with pytest.raises(ConfigError, match=f"must be written as ADAPTIVE_REC_RUN__STEPS, got {name}"):
        load_config(None, {name: "5"})


def test_a_value_of_any_size_is_shown_in_short() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for value in ("x" * 10**6, b"\xff" * 10**6, ["p" * 10**6], 10**5000, nested):
        assert 10 < len(value_in_sentence(value)) < 200
    assert value_in_sentence(1.5) == "1.5"


def test_variables_of_other_programs_set_nothing() -> None:
    others = (
        "ADAPTIVE_REC_TOKEN", "ADAPTIVE_REC_SERVICE_HOST", "ADAPTIVE_REC_PORT", "ADAPTIVE_REC_NAME",
        "ADAPTIVE_REC_STEPS", "STEPS",
    )
    assert load_config(None, dict.fromkeys(others, "5")) == load_config(None, {})
    with pytest.raises(ConfigError, match=r"in --set; did you mean run\.steps\?"):
        load_config(None, {}, ["run.stpes=5"])
    with pytest.raises(ConfigError, match=r"did you mean knobs\.alpha\?"):
        load_config(None, {}, ["run.alpha=0.5"])  # right name, wrong section
    with pytest.raises(ConfigError, match=r"no preset or file named syntetic; did you mean synthetic\?"):
        load_config("syntetic", {})


@pytest.mark.parametrize(
    "setting",
    [
        "run.steps=true",  # a boolean is no number
        "run.steps=1.5",
        "run.steps='5'",
        "run.steps=-1",
        "data.shuffle=1",
        "optimizer.embedding_lr=true",
        "optimizer.embedding_lr=nan",
        "optimizer.embedding_lr=inf",
        "knobs.target_skip_ratio=nan",
        "knobs.stale_threshold=serch",
        "knobs.hot_budget_bytes=true",
        "knobs.hot_budget_bytes=8 parsecs",
        "knobs.hot_budget_bytes=-1",
        "knobs.hot_budget_bytes=1125899906842625",
        "knobs.max_moved_bytes=2048TiB",
        "knobs.reclassify_every=1000000001",
        "knobs.min_probe_touches=1000000001",
        "knobs.lookahead_batches=1000000001",
        "knobs.report_every=1000000000000",
        "knobs.action=frees",
        "data.train_range=[0.0, 0.95]",  # overlaps the held-out range
        "data.feature_tables=[26]",
        "model.table_dims=[16]",
        "run=5",
    ],
)
def test_wrong_values_are_refused_by_name(setting):
    with pytest.raises(ConfigError, match=setting.partition("=")[0].rpartition(".")[2]):
        load_config(None, {}, [setting])


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("256MiB", 256 << 20), ("1.5 GiB", 3 << 29), ("10kB", 10_000), ("7", 7)]
)
def test_sizes_may_be_written_with_a_unit(text, size_bytes):
    assert load_config(None, {}, [f"knobs.hot_budget_bytes={text}"]).knobs.hot_budget_bytes == size_bytes
    assert load_config(None, {"ADAPTIVE_REC_KNOBS__HOT_BUDGET_BYTES": text}).knobs.hot_budget_bytes == size_bytes


@pytest.mark.parametrize("text", [".5", "+.5", "0.5", "5.e-1", ".05e1"])
def test_a_number_need_not_have_digits_on_both_sides_of_its_point(text: str) -> None:
    assert load_config("tiny", {}, [f"knobs.target_skip_ratio={text}"]).knobs.target_skip_ratio == 0.5


def test_broken_files_are_configuration_errors(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("[run\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(str(path), {})
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(str(tmp_path / "absent.toml"), {})
    data = tmp_path / "ads.csv"
    data.write_text("user,clicked\nu1,0\n")
    with pytest.raises(ConfigError, match=f"not valid TOML: .*; a file of data is named with --data {data}"):
        load_config(str(data), {})


@pytest.mark.parametrize("name", presets())
def test_presets_load(name):
    assert isinstance(load_config(name, {}), Config)


def test_the_written_reference_is_in_step():
    """base.toml is what the code says: `python -m adaptive_rec.config.reference > configs/base.toml`."""
    text = (PRESETS_FOLDER / "base.toml").read_text()
    assert text == config_reference.render_base()
    assert load_config("base", {}) == Config()


def test_the_reference_has_unit_and_purpose_of_every_key():
    lines, written, told = config_reference.render_base().splitlines(), set[str](), ""
    section = ""
    comments: dict[str, str] = {}
    for line in lines:
        name, equals, _ = line.partition(" = ")
        if line.startswith("#"):
            told += line.removeprefix("#")
        elif line.startswith("["):
            section = line.strip("[]")
        elif equals:
            comments[f"{section}.{name}"] = told
            written.add(f"{section}.{name}")
        if not line.startswith("#"):
            told = ""
    fields = dict(leaves(Config))
    assert written == set(fields)
    for key, field in fields.items():
        assert config_reference.key_unit(field), f"{key} has no unit"
        assert field.description in comments[key], key
        assert config_reference.key_unit(field) in comments[key], key


def test_presets_say_numbers_only():
    """A preset is data: nothing in it but sections of the tree (unknown keys are refused anyway)."""
    for path in Path(PRESETS_FOLDER).glob("*.toml"):
        assert set(tomllib.loads(path.read_text())) <= set(Config.model_fields), path.name


@pytest.mark.parametrize(
    ("cores", "on_device", "settings", "expected"),
    [
        (1, True, [], (1, 1, 1)),
        (2, True, [], (2, 1, 1)),
        (2, False, [], (2, 0, 1)),
        (7, False, [], (7, 0, 3)),
        (8, False, [], (8, 2, 4)),
        (16, True, [], (16, 4, 8)),
        (64, False, [], (64, 16, 8)),
        (2, False, ["run.threads=3", "run.classify_threads=5", "run.copy_threads=9"], (3, 5, 9)),
    ],
)
def test_threads_follow_from_the_cores_unless_configured(
    monkeypatch: pytest.MonkeyPatch, cores: int, on_device: bool, settings: list[str], expected: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert astuple(load_config(None, {}, settings).run.thread_budget(on_device)) == expected


@pytest.mark.parametrize("key", ["threads", "classify_threads", "copy_threads"])
def test_threads_below_zero_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"run.{key} must be at least 0, got -1"):
        load_config(None, {}, [f"run.{key}=-1"])


HUGE = {"report_every": 10**12, "reclassify_every": LARGEST, "hot_budget_bytes": LARGEST}


def test_a_count_that_cannot_be_meant_is_refused_with_rule_name_and_value():
    with pytest.raises(ConfigError) as error:
        load_config(None, {"ADAPTIVE_REC_KNOBS__REPORT_EVERY": "1000000000000"})
    assert str(error.value) == "knobs.report_every must be at most 1000000000, got 1000000000000"
    assert load_config(None, {}, ["knobs.report_every=1000000000"]).knobs.report_every == MOST_STEPS


def test_a_run_of_before_the_bounds_still_loads(tmp_path):
    """Its configuration, its checkpoints and its journal may hold a huge number for never or everything."""
    toml = "[knobs]\n" + "\n".join(f"{name} = {value}" for name, value in HUGE.items())
    (tmp_path / "config.toml").write_text(toml)
    with pytest.raises(ConfigError, match="report_every must be at most"):
        load_config(str(tmp_path / "config.toml"), {})
    (tmp_path / "run.json").write_text("{}")
    lowered = {"report_every": MOST_STEPS, "reclassify_every": MOST_STEPS, "hot_budget_bytes": MOST_BYTES}
    for knobs in (load_config(str(tmp_path / "config.toml"), {}).knobs, read_knobs(Saved(HUGE))):
        assert knobs == Knobs(**lowered)
    event = Event(7, "knobs", "", {"changed": {name: {"old": 1, "new": value} for name, value in HUGE.items()}})
    (tmp_path / "events.jsonl").write_text(line_of(event) + "\n")
    [command] = commands(tmp_path)[7]
    assert command.values == lowered
    with pytest.raises(CheckpointError, match="report_every"):
        read_knobs(Saved({"report_every": LARGEST + 1}))


def test_a_printed_configuration_has_the_comments_of_the_reference_and_reads_back(tmp_path):
    settings = [
        'data.source="a \\"b\\" ü 😀.csv"', "optimizer.dense_options={eps=1e-5, \"odd key\"=true}", "run.steps=7",
        "knobs.hot_budget_bytes=1000", "data.train_range=[0.25, 0.5]", 'run.track=["tensorboard"]',
    ]  # fmt: skip
    config = load_config("tiny", {}, settings)
    text = config_reference.render(config)
    (tmp_path / "my.toml").write_text(text)
    assert load_config(str(tmp_path / "my.toml"), {}) == config
    assert "# Samples of a mini-batch. (samples, above 0)\nbatch_size = " in text
    assert text.count("\n# ") > 60


def test_where_batches_are_classified() -> None:
    def where(bags: int, skips: bool = False, ranks: int = 1, **settings: Any) -> bool:
        return RunConfig(**settings).classifies_on_device(bags, skips, ranks)

    assert where(50_000)
    assert not where(49_999)
    assert not where(50_000, skips=True)
    assert not where(50_000, ranks=2)
    assert not where(50_000, host_memory=1 << 30)
    assert not where(50_000, classify="host")
    assert where(1, skips=True, classify="device")
