"""The command ``adaptive-rec checkpoint import`` makes a run from tables of other programs."""

from __future__ import annotations

import collections
import json
import os
import pickle
import resource
import signal
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.checkpoint import importing
from adaptive_rec.checkpoint.foreign import read_foreign
from adaptive_rec.checkpoint.importing import import_tensors
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime

ROWS = {"C1": 60, "C2": 40, "C3": 30, "C4": 12}
DIM = 8
SMALL = [
    "run.device=cpu", "run.threads=1", "run.steps=4", "run.batch_size=32", f"data.table_rows={list(ROWS.values())}",
    "data.synthetic.samples=2000", "data.synthetic.test_samples=100", "knobs.policy=slipstream",
]  # fmt: skip


def tables(seed: int = 1) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {name: torch.from_numpy(rng.standard_normal((rows, DIM), np.float32)) for name, rows in ROWS.items()}


def keyed(given: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    return {f"{prefix}embedding_bags.{name}.weight": tensor for name, tensor in given.items()}


def saved(path: Path, given: dict[str, Tensor]) -> Path:
    (save_file if path.suffix == ".safetensors" else torch.save)(given, path)
    return path


def folder(path: Path, given: dict[str, Tensor], kind: str = "npy") -> Path:
    path.mkdir()
    for name, tensor in given.items():
        if kind == "npy":
            np.save(path / f"{name}.npy", tensor.numpy())
        else:
            save_file({"weight": tensor}, path / f"{name}.safetensors")
    return path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Import to the folder ``run``; what is printed."""

    def run(source: Path, *more: str, code: int = 0) -> str:
        settings = [word for setting in SMALL for word in ("--set", setting)]
        before = {path.name for path in tmp_path.iterdir()}
        words = [
            "checkpoint",
            "import",
            str(source),
            "--config",
            "tiny",
            *settings,
            "--out",
            str(tmp_path / "run"),
            *more,
        ]
        assert main(words) == code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        new = {path.name for path in tmp_path.iterdir()} - before
        assert new == (set() if code else {"run"}), "a run directory is made whole or not at all"
        return captured.out + captured.err

    return run


def started(run: Path) -> Runtime:
    """A run directory's runtime as ``train --resume`` has it."""
    return TrainingRun(load_config(str(run / "config.toml"), {}), run, resume=True).runtime


def kept(runtime: Runtime) -> dict[str, Tensor]:
    """The tables of a runtime; their optimizer state must be fresh."""
    found = {}
    for index, table in enumerate(runtime.store.space.tables):
        weights, state = runtime.store.contents.export(index)
        assert not state.any()
        found[table.name] = torch.from_numpy(weights)
    return found


def assert_same(found: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    assert list(found) == list(given)
    assert [name for name in given if not torch.equal(found[name], given[name])] == []


def in_modules(given: dict[str, Tensor]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.EmbeddingBag.from_pretrained(tensor) for name, tensor in given.items()})


FORMS: dict[str, Callable[[Path, dict[str, Tensor]], Path]] = {
    "folder of safetensors": lambda path, given: folder(path / "t", given, "safetensors"),
    "folder of npy": lambda path, given: folder(path / "t", given),
    "torchrec": lambda path, given: saved(path / "t.safetensors", keyed(given)),
    "torchrec in a model": lambda path, given: saved(path / "t.safetensors", keyed(given, "module.sparse.ebc.")),
    "state_dict": lambda path, given: saved(path / "t.pt", keyed(given, "ebc.")),
    "ModuleDict": lambda path, given: saved(path / "t.pt", in_modules(given).state_dict()),
    "ModuleDict in a model": lambda path, given: saved(
        path / "t.bin", nn.ModuleDict({"embedding_bags": in_modules(given)}).state_dict()
    ),
    "parameters": lambda path, given: saved(
        path / "t.pt", {key: nn.Parameter(tensor) for key, tensor in keyed(given).items()}
    ),
    "columns side by side": lambda path, given: saved(
        path / "t.pt", {key: tensor.t().contiguous().t() for key, tensor in keyed(given).items()}
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_sets_every_row(
    tmp_path: Path, said: Callable[..., str], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BLOCK_BYTES", 7 * DIM * 4)
    given = tables()
    text = said(FORMS[form](tmp_path, given))
    assert "fresh: the file has no tensor 'bottom.0.weight'" in text
    runtime = started(tmp_path / "run")
    assert runtime.step_number == 0
    assert_same(kept(runtime), given)


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_an_export_is_imported_bit_by_bit(
    tmp_path: Path, said: Callable[..., str], precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*SMALL, f"run.row_precision={precision}"]
    first = TrainingRun(load_config("tiny", {}, settings), tmp_path / "first")
    list(first.events())
    first.finish()
    assert (
        main(["checkpoint", "export", str(tmp_path / "first"), "--out", str(tmp_path / "t"), "--as", "torchrec"]) == 0
    )
    capsys.readouterr()
    text = said(tmp_path / "t/state_dict.safetensors", "--set", f"run.row_precision={precision}", "--json")
    names = {"float32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    answer = json.loads(text)
    assert [(t["name"], t["rows"], t["given"], t["kept"]) for t in answer["tables"]] == [
        (name, rows, names[precision], names[precision]) for name, rows in ROWS.items()
    ]
    assert (answer["fresh"], answer["left_out"], answer["dense_tensors"]) == ([], [], 0)
    ended = {
        table.name: torch.from_numpy(first.runtime.store.contents.export(index)[0])
        for index, table in enumerate(first.runtime.store.space.tables)
    }
    assert_same(kept(started(tmp_path / "run")), ended)


def test_torchrecs_own_collection(tmp_path: Path, said: Callable[..., str]) -> None:
    modules = pytest.importorskip("torchrec.modules.embedding_modules", reason="torchrec is not installed")
    configs = pytest.importorskip("torchrec.modules.embedding_configs", reason="torchrec is not installed")
    bags = [
        configs.EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=[f"f_{name}"])
        for name, rows in ROWS.items()
    ]
    state = modules.EmbeddingBagCollection(tables=bags, device=torch.device("cpu")).state_dict()
    said(saved(tmp_path / "t.pt", state))
    assert_same(kept(started(tmp_path / "run")), {name: state[f"embedding_bags.{name}.weight"] for name in ROWS})


def test_training_resumes_and_its_first_batch_reads_the_imported_rows(
    tmp_path: Path, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = tables()
    assert "train --resume --out" in said(folder(tmp_path / "t", given))
    runtime = started(tmp_path / "run")
    batch = next(runtime.batches())
    ids_BF = batch.ids_N.reshape(batch.size, len(ROWS))
    read, run = [], runtime.dense.run
    runtime.dense.run = lambda micro: (read.append(micro.pooled[0].clone()), run(micro))[1]  # type: ignore[method-assign, func-returns-value]
    next(report for report in runtime.run() if runtime.step_number)
    assert torch.equal(read[0], torch.stack([given[name][ids_BF[:, f]] for f, name in enumerate(ROWS)], dim=1))

    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--no-serve", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["steps"], summary["resumed_at_step"]) == (4, 0)
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events][:2] == ["checkpoint", "started"]
    assert events[1]["details"]["checkpoint"] == events[0]["details"]["checkpoint"]
    assert events[0]["details"]["imported"] == str(tmp_path / "t")


def test_a_run_that_began_with_an_import_cannot_be_replayed_from_fresh_tables(
    tmp_path: Path, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(folder(tmp_path / "t", tables()))
    words = ["train", "--replay", str(tmp_path / "run"), "--out", str(tmp_path / "again"), "--no-serve"]
    assert main(words) == 3
    assert "it cannot be replayed" in capsys.readouterr().err


# Numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_numbers_are_converted_to_the_run_s_precision(tmp_path: Path, said: Callable[..., str], precision: str) -> None:
    types = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    given = {name: tensor.double() * 1.001 for name, tensor in tables().items()}
    given = {name: tensor.to(kind) for (name, tensor), kind in zip(given.items(), types, strict=True)}
    text = said(saved(tmp_path / "t.safetensors", keyed(given)), "--set", f"run.row_precision={precision}")
    target = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    patterns = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}.get(target, target)
    assert_same(kept(started(tmp_path / "run")), {n: tensor.to(target).view(patterns) for n, tensor in given.items()})
    for name, kind in zip(ROWS, types, strict=True):
        line = next(line for line in text.splitlines() if line.startswith(name))
        assert line.split()[3:] == [str(kind).removeprefix("torch."), str(target).removeprefix("torch.")]


@pytest.mark.parametrize(
    ("value", "kind", "precision", "wanted"),
    [
        (float("nan"), torch.float32, "float32", "finite numbers of float32, got nan"),
        (float("-inf"), torch.float16, "bf16", "finite numbers of bfloat16, got -inf"),
        (65520.0, torch.float32, "fp16", "finite numbers of float16, got 65520.0"),
        (1e39, torch.float64, "float32", "finite numbers of float32, got 1e+39"),
        (3.4e38, torch.float32, "bf16", "finite numbers of bfloat16, got 3.39"),
    ],
)
def test_no_row_that_is_not_finite_reaches_a_checkpoint(
    tmp_path: Path, said: Callable[..., str], value: float, kind: torch.dtype, precision: str, wanted: str
) -> None:
    given = {name: tensor.to(kind) for name, tensor in tables().items()}
    given["C3"][17, 5] = value
    source = saved(tmp_path / "t.pt", keyed(given))
    text = said(source, "--set", f"run.row_precision={precision}", code=5)
    assert f"row 17 of table 'C3' must hold {wanted}" in text


def test_the_reported_row_is_numbered_within_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "BLOCK_BYTES", 100 * 4 * 4)
    tensor = torch.zeros(300, 4)
    tensor[250, 1] = torch.inf
    with pytest.raises(CheckpointError, match="row 250 of table 'C1'"):
        list(importing.row_blocks("C1", tensor, torch.float32))


def test_a_large_file_is_mapped(tmp_path: Path) -> None:
    """1 GiB with holes, of which a few rows are read."""
    rows, dim = 1 << 22, 64
    header = json.dumps(
        {"weight": {"dtype": "F32", "shape": [rows, dim], "data_offsets": [0, rows * dim * 4]}}
    ).encode()
    head = struct.pack("<Q", len(header)) + header
    for kind in ("safetensors", "npy"):
        path = tmp_path / kind / f"C1.{kind}"
        path.parent.mkdir()
        with open(path, "wb") as file:
            if kind == "npy":
                described = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
                np.lib.format.write_array_header_1_0(file, described)
                file.truncate(file.tell() + rows * dim * 4)
            else:
                file.write(head)
                file.truncate(len(head) + rows * dim * 4)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        table = read_foreign(path.parent).tables["C1"]
        assert table.shape == (rows, dim)
        first, read_ND = next(importing.row_blocks("C1", table, torch.bfloat16))
        assert (first, read_ND.shape) == (0, ((4 << 20) // (dim * 4), dim))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "C1.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30))
    os.truncate(tmp_path / "C1.npy", 2 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="must be version 1.0"):
        read_foreign(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


# What does not fit ---------------------------------------------------------------------------------------------------


def test_tables_that_are_missing_or_unknown_are_named(tmp_path: Path, said: Callable[..., str]) -> None:
    given = tables()
    del given["C2"]
    source = folder(tmp_path / "t", given)
    assert "1 of 4 are missing: 'C2'; with --partial" in said(source, code=5)
    text = said(folder(tmp_path / "u", {**tables(), "C5": given["C1"]}), code=5)
    assert "must be tables of the run, 1 are not: 'C5'" in text
    assert "1 are not: 'c2'; did you mean C2?" in said(folder(tmp_path / "w", {**given, "c2": given["C1"]}), code=5)
    text = said(folder(tmp_path / "v", {"D1": given["C1"]}), "--partial", code=5)
    assert "must hold tables of the run ('C1', 'C2', 'C3', 'C4')" in text
    assert "got 'D1'" in text


def test_partial_imports_some_of_the_tables(tmp_path: Path, said: Callable[..., str]) -> None:
    given = tables()
    source = saved(tmp_path / "t.pt", keyed({"C3": given["C3"], "C9": given["C1"]}) | {"step": torch.ones(())})
    answer = json.loads(said(source, "--partial", "--json"))
    assert ([t["name"] for t in answer["tables"]], answer["fresh"]) == (["C3"], ["C1", "C2", "C4"])
    assert answer["left_out"] == ["C9", "step"]
    fresh = kept(assemble(load_config("tiny", {}, SMALL)))
    assert_same(kept(started(tmp_path / "run")), {**fresh, "C3": given["C3"]})


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (torch.zeros(61, DIM), r"\(61, 8\) of float32"),
        (torch.zeros(60, DIM + 1), r"\(60, 9\) of float32"),
        (torch.zeros(60 * DIM), r"\(480,\) of float32"),
        (torch.zeros(60, DIM, dtype=torch.int32), r"\(60, 8\) of int32"),
        (torch.zeros(60, DIM, dtype=torch.complex64), r"\(60, 8\) of complex64"),
        (torch.zeros(60, DIM, dtype=torch.uint16), r"\(60, 8\) of uint16"),
        (torch.zeros(60, DIM).to_sparse(), r"\(60, 8\) of float32 \(torch.sparse_coo on cpu\)"),
        (torch.zeros(60, DIM, device="meta"), r"\(60, 8\) of float32 \(torch.strided on meta\)"),
    ],
)
def test_a_table_of_another_shape_or_type_is_refused(
    tmp_path: Path, said: Callable[..., str], wrong: Tensor, got: str
) -> None:
    text = said(saved(tmp_path / "t.pt", keyed({**tables(), "C1": wrong})), code=5)
    assert "table 'C1' must be of shape (60, 8) and of float16, bfloat16, float32 or float64, got " in text
    assert pytest.RaisesExc(Exception, match=got).matches(Exception(text))


def test_several_candidates_for_a_table_are_refused(tmp_path: Path, said: Callable[..., str]) -> None:
    given = tables()
    source = saved(tmp_path / "t.safetensors", keyed(given) | keyed(tables(2), "ema."))
    assert "must have table 'C1' once" in said(source, code=5)
    source = folder(tmp_path / "t", {**given, "table-0002": given["C3"]})
    assert "must have table 'C3' once" in said(source, code=5)


def test_tables_whose_names_cannot_be_files_are_exported_and_imported_by_their_numbers(
    tmp_path: Path, memory_source: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that leads elsewhere, and one that is another table's number: table-N is the table of that number."""
    specs = (TableSpec("../odd", 5, 2), TableSpec("table-0000", 5, 2), TableSpec("C3", 5, 2))
    batch = Batch.one_hot(np.zeros((3, 1), np.float32), np.zeros((3, 3), np.int64), np.zeros(3, np.float32))
    source = memory_source([batch], specs, tuple(FeatureSpec(table.name, i) for i, table in enumerate(specs)))
    settings = ["run.device=cpu", "model.embedding_dim=2", "knobs.policy=hybrid"]
    one, other = (assemble(load_config("tiny", {}, [*settings, f"run.seed={seed}"]), source) for seed in (1, 2))
    found = checkpoint.save(one.parts, tmp_path / "checkpoints")
    for form, ending in (("safetensors", ".safetensors"), ("npy", ".npy")):
        assert main(["checkpoint", "export", str(found), "--out", str(tmp_path / form), "--as", form]) == 0
        names = sorted(path.name for path in (tmp_path / form).iterdir())
        assert names == [*(f"{name}{ending}" for name in ("C3", "table-0000", "table-0001")), "tables.json"]
    capsys.readouterr()
    assert not torch.equal(kept(other)["../odd"], kept(one)["../odd"])
    import_tensors(other.store, other.dense.model, read_foreign(tmp_path / "npy"))
    assert_same(kept(other), kept(one))


# The dense part ------------------------------------------------------------------------------------------------------


def dense(prefix: str = "") -> dict[str, Tensor]:
    model = assemble(load_config("tiny", {}, [*SMALL, "run.seed=9"])).dense.model
    return {prefix + name: tensor for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("prefix", ["", "model.over."])
def test_a_dense_part_with_the_same_names_is_imported(tmp_path: Path, said: Callable[..., str], prefix: str) -> None:
    given = dense(prefix)
    text = said(saved(tmp_path / "t.safetensors", keyed(tables()) | given | {"epoch": torch.ones(1)}))
    assert f"{len(given)} tensors" in text
    assert "left out     'epoch'" in text
    state = started(tmp_path / "run").dense.model.state_dict()
    assert [name for name, tensor in state.items() if not torch.equal(tensor, given[prefix + name])] == []


def test_a_dense_part_that_does_not_fit_is_an_error(tmp_path: Path, said: Callable[..., str]) -> None:
    whole = keyed(tables()) | dense("a.")
    source = saved(tmp_path / "a.pt", {**whole, "a.top.0.weight": torch.zeros(3)})
    assert "tensor 'top.0.weight' must be of shape" in said(source, code=5)
    source = saved(tmp_path / "b.pt", {**whole, "a.top.0.bias": torch.full_like(whole["a.top.0.bias"], torch.nan)})
    assert "tensor 'a.top.0.bias' must hold finite numbers" in said(source, code=5)
    source = saved(tmp_path / "c.pt", {**whole, **dense("b.")})
    assert "must have the dense part once, got it under 'a.', 'b.'" in said(source, code=5)
    text = said(saved(tmp_path / "d.pt", {**whole, "a.top.0.weight": torch.zeros(3)}), "--partial")
    assert "dense part   fresh: tensor 'top.0.weight' must be of shape" in text
    fresh = assemble(load_config("tiny", {}, SMALL)).dense.model.state_dict()
    state = started(tmp_path / "run").dense.model.state_dict()
    assert [name for name in fresh if not torch.equal(fresh[name], state[name])] == []


def test_an_incomplete_dense_part_is_not_imported(tmp_path: Path, said: Callable[..., str]) -> None:
    given = dense()
    del given["top.0.bias"]
    text = said(saved(tmp_path / "t.pt", keyed(tables()) | given))
    assert "fresh: the file has no tensor 'top.0.bias', one of the" in text


# Files that mean harm ------------------------------------------------------------------------------------------------


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("where", ["value", "key", "whole", "plain", "old"])
def test_a_pickle_runs_nothing(tmp_path: Path, said: Callable[..., str], where: str) -> None:
    marker, path = tmp_path / "marker", tmp_path / "t.pt"
    evil = Runs(marker)
    if where == "plain":
        path.write_bytes(pickle.dumps(evil))
    else:
        content = {"value": keyed(tables()) | {"x": evil}, "key": {evil: 1}}.get(where, evil)
        torch.save(content, path, _use_new_zipfile_serialization=where != "old")
    text = said(path, code=5)
    assert not marker.exists()
    assert ("it needs 'posix.mkdir'" if where in ("value", "key", "whole") else "it is something else") in text
    assert "likely succeed" not in text, "no advice to read it in an unsafe way"


def test_no_setting_of_the_environment_makes_a_pickle_run(
    tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(Runs(tmp_path / "marker"), tmp_path / "t.pt")
    said(tmp_path / "t.pt", code=5)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "content", [[torch.zeros(2)], {"model": keyed(tables())}, {1: torch.zeros(2)}, 7, {"epoch": 3}]
)
def test_a_file_that_is_no_state_dict_is_refused(tmp_path: Path, said: Callable[..., str], content: Any) -> None:
    torch.save(content, tmp_path / "t.pt")
    assert "must hold a state_dict, tensors by name, got " in said(tmp_path / "t.pt", code=5)


@pytest.mark.parametrize("name", ["t.pt", "t.safetensors"])
@pytest.mark.parametrize("left", [0, 5, 100, 0.5, -1])
def test_a_file_that_is_cut_is_refused(tmp_path: Path, said: Callable[..., str], name: str, left: float) -> None:
    path = saved(tmp_path / name, keyed(tables()))
    data = path.read_bytes()
    path.write_bytes(data[: int(left if isinstance(left, int) else left * len(data))])
    assert f"{name}" in said(path, code=5)


def test_a_state_dict_with_compressed_parts_is_refused(tmp_path: Path, said: Callable[..., str]) -> None:
    """Such a part may grow to any size when it is read."""
    saved(tmp_path / "t.pt", keyed(tables()))
    with zipfile.ZipFile(tmp_path / "t.pt") as plain, zipfile.ZipFile(tmp_path / "p.pt", "w") as packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry), zipfile.ZIP_DEFLATED)
    assert "must have no compressed parts, got 't/data.pkl'" in said(tmp_path / "p.pt", code=5)


NPY: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(npy()[:500]),
    "objects": lambda path: np.save(path, np.array([[Runs(path)]], dtype=object)),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Runs(path.parent / "marker"))),
    "archive": lambda path: np.savez(path, weight=np.zeros((60, DIM))),
    "other bytes": lambda path: np.save(path, np.zeros((60, DIM), ">f4")),
    "no rows": lambda path: np.save(path, np.zeros((0, DIM), np.float32)),
    "shape": lambda path: path.write_bytes(npy().replace(b"(60, 8), ", b"(-6, 8), ")),
    "much": lambda path: path.write_bytes(npy().replace(b"(60, 8), }          ", b"(60, 8999999999), } ")),
    "code": lambda path: path.write_bytes(npy().replace(b"'descr'", b"exit()+")),
    "version 2": lambda path: path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + npy()[10:]),
}


def npy() -> bytes:
    file = __import__("io").BytesIO()
    np.save(file, np.zeros((60, DIM), np.float32))
    return bytes(file.getvalue())


@pytest.mark.parametrize("kind", NPY)
def test_a_npy_file_that_is_no_table_is_refused(tmp_path: Path, said: Callable[..., str], kind: str) -> None:
    source = folder(tmp_path / "t", tables())
    (source / "C1.npy").unlink()
    NPY[kind](source / "C1.npy")
    for made in source.glob("C1.npy.*"):
        made.rename(source / "C1.npy")
    text = said(source, code=5)
    assert "C1.npy must be a .npy file of numbers" in text or "table 'C1' must be of" in text
    assert not (source / "marker").exists()


def header_of(header: Any, length: int | None = None, more: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + more


SAFETENSORS = {
    "huge": header_of(b"{}", length=1 << 62),
    "long": header_of(b'{"a": ' + b" " * (5 << 20) + b"1}"),
    "deep": header_of(b'{"a":' * 50_000),
    "outside": header_of({"weight": {"dtype": "F32", "shape": [60, 8], "data_offsets": [0, 1920]}}),
    "negative": header_of(
        {"weight": {"dtype": "F32", "shape": [-60, -8], "data_offsets": [0, 1920]}}, more=b"\0" * 1920
    ),
    "nothing": header_of({"weight": {"dtype": "F32", "shape": [0, 1 << 61, 8], "data_offsets": [0, 0]}}),
    "other names": header_of({"w": {"dtype": "F32", "shape": [60, 8], "data_offsets": [0, 1920]}}, more=b"\0" * 1920),
    "no names": header_of({}),
}


@pytest.mark.parametrize("kind", SAFETENSORS)
def test_a_safetensors_file_that_is_no_table_is_refused(tmp_path: Path, said: Callable[..., str], kind: str) -> None:
    source = folder(tmp_path / "t", tables(), "safetensors")
    (source / "C1.safetensors").write_bytes(SAFETENSORS[kind])
    assert "C1.safetensors" in said(source, code=5)


def test_table_names_that_look_like_paths_are_only_names(tmp_path: Path, said: Callable[..., str]) -> None:
    given = tables()
    names = ["../../run", "/etc/passwd", "C1/../C2", "\x1b[2J\n", "C1\0", "x" * 500]
    source = saved(tmp_path / "t.pt", keyed({**given, **{name: given["C1"] for name in names}}))
    text = said(source, code=5)
    assert "6 are not: '../../run', '/etc/passwd', 'C1/../C2', '\\x1b[2J\\n', 'C1\\x00', 'xxx" in text
    assert len(text) < 1000
    text = said(source, "--partial")
    assert "\x1b" not in text
    assert_same(kept(started(tmp_path / "run")), given)


def test_links_in_a_folder_are_not_followed(tmp_path: Path, said: Callable[..., str]) -> None:
    source = folder(tmp_path / "t", tables())
    (source / "C1.npy").rename(tmp_path / "elsewhere.npy")
    (source / "C1.npy").symlink_to(tmp_path / "elsewhere.npy")
    assert "C1.npy must be a regular file, not a link" in said(source, code=5)
    (source / "C1.npy").unlink()
    os.mkfifo(source / "C1.npy")
    assert "C1.npy must be a regular file, not a link" in said(source, code=5)


def test_a_link_given_by_the_user_is_followed(tmp_path: Path, said: Callable[..., str]) -> None:
    """Folders of downloaded models are full of them."""
    saved(tmp_path / "t.safetensors", keyed(tables())).rename(tmp_path / "blob")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    said(tmp_path / "model.safetensors")
    assert_same(kept(started(tmp_path / "run")), tables())


def test_an_invalid_source_or_target_is_an_error(tmp_path: Path, said: Callable[..., str]) -> None:
    (tmp_path / "empty").mkdir()
    source = folder(tmp_path / "t", tables())
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "none", "must be a file or a folder"),
        (tmp_path / "pipe", "must be a file or a folder"),
        (tmp_path / "empty", "has neither"),
        (source / "C1.npy", "must be the folder with all tables"),
    ):
        assert words in said(path, code=2)
    save_file({"weight": torch.zeros(1)}, source / "C9.safetensors")
    assert "has both" in said(source, code=2)
    (source / "C9.safetensors").unlink()
    (tmp_path / "run").mkdir()
    assert "must be a folder that can be made: File exists" in said(source, code=2)
    (tmp_path / "run").rmdir()
    assert "unknown key" in said(source, "--set", "run.stepz=3", code=2)


def test_nothing_is_left_of_an_import_that_is_interrupted(
    tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    source = folder(tmp_path / "t", tables())
    monkeypatch.setattr(checkpoint, "save", interrupted)
    said(source, code=130)


def test_nothing_is_left_of_an_import_that_is_terminated(
    tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_handled(*_: object) -> None:
        raise AssertionError("SIGTERM ends the process")

    source = folder(tmp_path / "t", tables())
    monkeypatch.setattr(checkpoint, "save", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, not_handled)
    try:
        with pytest.raises(SystemExit) as ended:
            said(source)
        assert signal.getsignal(signal.SIGTERM) is not_handled
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_tensors_with_torch_s_negative_flag_are_read(tmp_path: Path, said: Callable[..., str], precision: str) -> None:
    given = tables()
    marked = {name: torch._neg_view(tensor) for name, tensor in given.items()}
    part = {name: torch._neg_view(tensor) for name, tensor in dense().items()}
    said(saved(tmp_path / "t.pt", keyed(marked) | part), "--set", f"run.row_precision={precision}")
    runtime = started(tmp_path / "run")
    patterns = {"float32": torch.float32, "fp16": torch.int16}[precision]
    kind = {"float32": torch.float32, "fp16": torch.float16}[precision]
    assert_same(kept(runtime), {name: (-tensor).to(kind).view(patterns) for name, tensor in given.items()})
    state = runtime.dense.model.state_dict()
    assert all(torch.equal(state[name], -tensor) for name, tensor in dense().items())


def test_a_state_dict_with_torch_s_metadata_is_read(tmp_path: Path, said: Callable[..., str]) -> None:
    """`state_dict()` is an OrderedDict with an attribute of its own."""
    state = nn.ModuleDict({"embedding_bags": in_modules(tables())}).state_dict()
    assert isinstance(state, collections.OrderedDict)
    assert hasattr(state, "_metadata")
    said(saved(tmp_path / "t.pth", state))
