"""Files and settings made to do harm, or spoilt: each is refused by an error of ours, soon, and takes little memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adaptive_rec.batch import Position
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.model import ModelConfig
from adaptive_rec.config.tree import Config, leaves, load_config
from adaptive_rec.data.new_rows import folder_keys
from adaptive_rec.data.open import open_source
from adaptive_rec.data.prepare import prepare as prepare_module
from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.prepare import prepare_folder
from adaptive_rec.data.prepare.raw import RawBlock, SparseColumn
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.placement import RowSpace
from adaptive_rec.run import journal
from adaptive_rec.runtime.assemble import assemble, plan_run
from tests.matrix import grid

LONGEST_SECONDS = 5.0
MOST_BYTES = 512 << 20
FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fuzzed(few: int, many: int) -> pytest.MarkDecorator:
    """Give a test a number of examples: few in `make test`, many in `make check`."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


KEYS = [key for key, _ in leaves(Config)]
NASTY = [
    0, -1, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 10**30, -(10**30), 0.0, -0.0, 1e-320, 1e308, "", "\x00", "a" * 300,
    "../../etc", "synthetic", True, [], [0], [1 << 62] * 3, {}, {"a": 1}, "9999999EiB", "1e400", "nan",
    "\u202e", "/dev/null", "os:system",
]  # fmt: skip
values = (
    st.sampled_from(NASTY) | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.integers(), max_size=4)
)


@contextlib.contextmanager
def harmless() -> Iterator[None]:
    """The body does its work, or is refused by an error of ours; soon, and with little memory."""
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(AdaptiveRecError):
        yield
    assert time.process_time() - start < LONGEST_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES


# Configurations ------------------------------------------------------------------------------------------------------


@fuzzed(40, 120)
def test_values_of_a_configuration_file(tmp_path: Path, examples: int) -> None:
    @settings(FUZZ, max_examples=examples)
    @given(st.lists(st.tuples(st.sampled_from(KEYS), values), max_size=4))
    @example([("run.host_memory", math.inf)])
    def holds(chosen: list[tuple[str, Any]]) -> None:
        tree: dict[str, Any] = {}
        for key, value in chosen:
            *sections, name = key.split(".")
            part = tree
            for section in sections:
                part = part.setdefault(section, {})
            part[name] = value
        path = tmp_path / "run.toml"
        path.write_text(tomli_w.dumps(tree), encoding="utf-8")
        with harmless():
            load_config(str(path), {})

    holds()


@FUZZ
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
@example(b"[run]\nsteps = " + b"1" * 5000)
@example(b"[run]\nsteps = " + b"[" * 5000)
@example(b"[[[[" * 2000)
@example(b"\xff\xfe[run]")
def test_bytes_of_a_configuration_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with harmless():
        load_config(str(path), {})


def test_a_configuration_file_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(AdaptiveRecError, match="must have at most"):
        load_config("/dev/zero", {})
    with pytest.raises(AdaptiveRecError, match="no preset or file named"):
        load_config("a" * 5000, {})


@FUZZ
@given(
    st.sampled_from(KEYS) | st.text(max_size=12),
    st.sampled_from([str(value) for value in NASTY]) | st.text(max_size=40),
)
@example("run.steps", "1" * 5000)
@example("run.steps", "[" * 3000)
@example("run.steps" + ".a" * 3000, "1")
@example("run.steps", "5\nseed = 9")
@example("data.source", "\udcff")
@example("data.source", "a" * 5000)
def test_values_of_set_and_of_the_environment(key: str, value: str) -> None:
    with harmless():
        load_config(None, {}, [f"{key}={value}"])
    with harmless():
        load_config(None, {f"ADAPTIVE_REC_{key.replace('.', '__').upper()}": value})


def test_a_value_of_set_says_nothing_of_other_keys() -> None:
    with pytest.raises(AdaptiveRecError, match="run.steps"):
        load_config(None, {}, ["run.steps=5\nseed = 9"])


SMALL = [
    "run.device=cpu",
    "run.threads=1",
    "run.steps=1",
    "data.table_rows=[9, 5]",
    "model.bottom_mlp=[4]",
    "model.top_mlp=[4]",
]


@pytest.mark.parametrize(
    "setting",
    [
        "run.batch_size=1000000000000", "model.embedding_dim=1000000000000", "model.bottom_mlp=[1000000, 1000000]",
        "model.table_dims=[4000000000, 1]", "model.top_mlp=[9000000000000000000]", "data.dense_features=100000000000",
        "data.source='aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
        f"data.source='{'a' * 300}'", "data.source='a\x00b'", "data.source='/dev/null'", "data.source='/'",
    ],
)  # fmt: skip
def test_what_no_machine_can_hold_is_refused_before_it_is_made(setting: str) -> None:
    with harmless(), pytest.raises(AdaptiveRecError):
        assemble(load_config(None, {}, [*SMALL, setting]))


@pytest.mark.parametrize("setting", ["data.max_table_rows=9223372036854775807", "data.epochs=9223372036854775807",
                                     "run.steps=9223372036854775807", "knobs.hot_budget_bytes=1125899906842624"])  # fmt: skip
def test_the_largest_numbers_do_no_harm(setting: str) -> None:
    with harmless():
        plan_run(load_config(None, {}, [*SMALL, setting]))


# Prepared folders ----------------------------------------------------------------------------------------------------

ROWS = 40


class MadeReader:
    """Rows of one dense feature, a column and a column with bags."""

    dense_names = ("number",)
    dense_transform = "none"
    schema = None
    has_times = False
    sequence = None
    columns = (SparseColumn("one", "one"), SparseColumn("bag", "things", bag=True))
    bad_rows, bad_of = 0, {}
    read_ratio = 1.0

    def blocks(self) -> Iterator[RawBlock]:
        part = np.arange(ROWS)
        lengths = (part % 3).astype(np.int32)
        bags = np.arange(int(lengths.sum()), dtype=np.uint64) % 7 + 1
        keys = [(part + 1).astype(np.uint32), bags]
        yield RawBlock(part.astype(np.float32)[:, None], (part % 2).astype(np.float32), keys, [None, lengths])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of 40 rows."""
    path = tmp_path_factory.mktemp("prepared")
    (path / "made").write_text("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_module, "open_readers", lambda *_: [MadeReader()])
        prepare_folder(Request((path / "made",), path / "out", format="criteo"), lambda progress: None)
    train_from(path / "out")  # kernels are compiled before anything is timed
    return path / "out"


def train_from(folder: Path) -> None:
    """Read what a run would read of a data set's first batches, and bring it into the form that its step takes."""
    config = Config(data=DataConfig(source=str(folder)), model=ModelConfig(embedding_dim=2))
    source = open_source(config)
    space = RowSpace.of(source.tables, source.features)
    for batches in (source.train_batches(Position(seed=1), 8), source.test_batches(8)):
        for _, batch in zip(range(6), batches, strict=False):
            ClassifiedBatch(batch, space)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value of a JSON tree."""
    if path:
        yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def spoilt_copy(folder: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(folder, copy))


@fuzzed(50, 150)
def test_values_of_meta_json(folder: Path, tmp_path: Path, examples: int) -> None:
    @settings(FUZZ, max_examples=examples)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        copy = spoilt_copy(folder, tmp_path)
        meta = json.loads((copy / "meta.json").read_text())
        del meta["meta_sha256"]  # which would find everything
        *path, last = data.draw(st.sampled_from(list(places(meta))))
        part = meta
        for key in path:
            part = part[key]
        if data.draw(st.booleans()) and isinstance(part, dict):
            del part[last]
        else:
            part[last] = data.draw(values | st.none())
        (copy / "meta.json").write_text(json.dumps(meta))
        with harmless():
            train_from(copy)

    holds()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b'{"rows": ' * 20_000, b"\xff", b"1" * 5000, b"null", b'"x"']
)
def test_bytes_of_meta_json(folder: Path, tmp_path: Path, content: bytes) -> None:
    copy = spoilt_copy(folder, tmp_path)
    (copy / "meta.json").write_bytes(content)
    with harmless(), pytest.raises(AdaptiveRecError, match=r"meta.json breaks the rules of its format: \S") as caught:
        train_from(copy)
    assert len(str(caught.value)) < len(str(copy)) + 200


def test_a_meta_json_that_would_fill_the_memory(folder: Path, tmp_path: Path) -> None:
    copy = spoilt_copy(folder, tmp_path)
    with (copy / "meta.json").open("r+b") as file:
        file.truncate(1 << 34)  # without taking the disk's room
    with harmless(), pytest.raises(AdaptiveRecError, match="must have at most"):
        train_from(copy)


HEADERS = [
    "", "{", "(", "'" * 50, "[" * 60, "\\\n", "__import__('os')", "{'shape': 1L}",
    *(
        str({"descr": descr, "fortran_order": order, "shape": shape})
        for descr, order, shape in [
            ("<i4", False, (10**12, 1)), ("<i4", False, (-1, -1)), ("<i4", False, 40), ("<i4", True, (40, 1)),
            ("|O", False, (40, 1)),
            ([("a", "<i4")], False, (40,)), (("<i4", (99999999,)), False, (40,)), ("<i4", False, ((40,),)),
            ("V0", False, (40, 1)),
        ]
    ),
]  # fmt: skip


@fuzzed(50, 150)
def test_headers_of_arrays(folder: Path, tmp_path: Path, examples: int) -> None:
    """The file keeps its size, which is checked before: only what it says of itself changes."""
    @settings(FUZZ, max_examples=examples)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        copy = spoilt_copy(folder, tmp_path)
        path = data.draw(st.sampled_from(sorted(copy.glob("*.npy"))))
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            header = data.draw(st.sampled_from(HEADERS) | st.text(max_size=80)).encode("latin-1", "replace")[:117]
            content[10:128] = header.ljust(117) + b"\n"
        else:
            for _ in range(data.draw(st.integers(1, 4))):
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(content))
        with harmless():
            train_from(copy)

    holds()


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"PK\x03\x04" + b"\0" * 200, b"\x80\x04N.", b"\x93NUMPY\x03\x00\xff\xff\xff\xff"]
)
def test_files_that_are_no_arrays(folder: Path, tmp_path: Path, content: bytes) -> None:
    for path in sorted(folder.glob("*.npy")):
        copy = spoilt_copy(folder, tmp_path)
        (copy / path.name).write_bytes(content.ljust(path.stat().st_size, b"\0") if content else content)
        of_keys = path.name.endswith("_keys.npy")  # what new files are scored by; training reads none
        use = (lambda spoilt: folder_keys(load_meta(spoilt), spoilt)) if of_keys else train_from
        with harmless(), pytest.raises(AdaptiveRecError):
            use(copy)


# Journals ------------------------------------------------------------------------------------------------------------

EVENTS = [
    {"time": 1.0, "step": 0, "kind": "started", "text": "", "details": {}},
    {"time": 1.0, "step": 3, "kind": "knobs", "text": "", "details": {"changed": {"decay": {"old": 0.5, "new": 0.6}}}},
    {"time": 1.0, "step": 4, "kind": "knobs", "text": "",
     "details": {"changed": {"hot_budget_bytes": {"old": 9, "new": 5}}, "before_step": True}},
    {"time": 1.0, "step": 5, "kind": "split", "text": "", "details": {"split": True, "whole_seconds": 1.0, "split_seconds": 0.5}},
    {"time": 1.0, "step": 6, "kind": "reclassified", "text": "", "details": {"asked_for": True}},
    {"time": 1.0, "step": 6, "kind": "checkpoint", "text": "", "details": {"checkpoint": "step-000000006"}},
]  # fmt: skip


@fuzzed(50, 200)
def test_values_of_a_journal(tmp_path: Path, examples: int) -> None:
    @settings(FUZZ, max_examples=examples)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        events = json.loads(json.dumps(EVENTS))
        *path, last = data.draw(st.sampled_from(list(places(events))))
        part = events
        for key in path:
            part = part[key]
        part[last] = data.draw(
            values | st.none() | st.recursive(st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
        )
        (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        with harmless():
            check_commands(tmp_path)

    holds()


def check_commands(run: Path) -> None:
    """What a run would be asked to do is what a run can be asked."""
    for step, commands in journal.commands(run).items():
        assert type(step) is int
        for command in commands:
            expected = {"choose_split": {"split", "whole_seconds", "split_seconds"}}
            assert set(command.values) == expected.get(command.verb, set(command.values))


@FUZZ
@given(st.lists(st.binary(max_size=60) | st.sampled_from([json.dumps(event).encode() for event in EVENTS]), max_size=6))
@example([b"[" * 100_000])
@example([b'{"kind": ' * 5000])
@example([b"\xff\xfe"])
@example([b'{"kind": "started", "details": [], "step": 1}'])
@example([b'{"kind": "knobs", "details": {"changed": {"policy": {"new": 5}}}, "step": 1}'])
@example([b'{"kind": "split", "details": {"self": 1}, "step": 1}'])
def test_bytes_of_a_journal(tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    with harmless():
        check_commands(tmp_path)


# Data files ----------------------------------------------------------------------------------------------------------

cells = st.sampled_from(["", "0", "1", "-5", "68fd1e64", "ffffffffffff", "999999999999", "\r", "x", "\0", "1e5"])
rows = st.lists(cells, max_size=8).map("\t".join)


def read_file(path: Path, on_bad_row: str, ids: str) -> None:
    data = DataConfig(
        source=str(path), table_rows=(9, 5), dense_features=2, on_bad_row=on_bad_row, ids=ids,  # type: ignore[arg-type]
        train_range=(0.0, 0.6), test_range=(0.6, 1.0),
    )  # fmt: skip
    source = open_source(Config(data=data))
    for batches in (source.train_batches(Position(seed=1), 4), source.test_batches(4)):
        for _, batch in zip(range(5), batches, strict=False):
            ClassifiedBatch(batch, RowSpace.of(source.tables, source.features))


@pytest.fixture(scope="module", autouse=True)
def kernels_compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    path.write_text("1\t5\t6\t0a\tff\n" * 9)
    for ids in ("hash", "contiguous"):
        read_file(path, "error", ids)
    list(assemble(load_config(None, {}, SMALL)).run())


@FUZZ
@given(
    st.lists(rows, max_size=6).map(lambda lines: "\n".join(lines).encode()) | st.binary(max_size=100),
    st.sampled_from(["error", "skip"]), st.sampled_from(["hash", "contiguous"]), st.sampled_from(["", ".gz", ".zst"]),
    st.integers(0, 60),
)  # fmt: skip
def test_bytes_of_data_files(tmp_path: Path, content: bytes, on_bad_row: str, ids: str, suffix: str, cut: int) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    path = tmp_path / f"rows.tsv{suffix}"
    path.write_bytes(pack(content)[: max(0, 100 - cut)])
    with harmless():
        read_file(path, on_bad_row, ids)
    path.write_bytes(content)  # not what its name says
    with harmless():
        read_file(path, on_bad_row, ids)


@grid(fill=[b"\0", b"\n", b"1\t"], suffix=[".gz", ".zst"], ids=["hash", "contiguous"])
def test_small_files_that_unpack_to_large_ones(tmp_path: Path, suffix: str, fill: bytes, ids: str) -> None:
    """64 MiB in a few kilobytes: one line without an end, or nothing but lines."""
    content = fill * ((64 << 20) // len(fill))
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(gzip.compress(content, 1) if suffix == ".gz" else zstandard.ZstdCompressor().compress(content))
    with harmless(), pytest.raises(AdaptiveRecError):
        read_file(path, "error", ids)
