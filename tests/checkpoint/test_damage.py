"""Every flipped bit and every missing byte is detected."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adaptive_rec.checkpoint.draft import Draft
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import read_manifest, verify_generation
from adaptive_rec.checkpoint.history import newest_valid, prune, verify_all
from adaptive_rec.checkpoint.manifest import CHUNK_BYTES, unsealed
from adaptive_rec.cli import main
from adaptive_rec.errors import CheckpointError
from tests.checkpoint.histories import CHAINS, TWO_CHAINS, found_step, name_of, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two chains on the disk: 7, 40, 123 and 180, 222, 260."""
    for step in TWO_CHAINS:
        write(DISK, step, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def damage_and_look(folder: Path, count: int) -> None:
    """Flip a bit or cut an end off, in any file of all generations, and see that it is the newest that does not build on it that
    is found."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(count):
        spoilt = rng.choice(TWO_CHAINS)
        path = rng.choice(sorted((folder / name_of(spoilt)).iterdir()))
        whole = path.read_bytes()
        if rng.random() < 0.5:
            damage = f"bit {(bit := rng.randrange(8 * len(whole)))} of {path.name}"
            flip(path, bit)
        else:
            damage = f"{path.name} cut to {(length := rng.randrange(len(whole)))} bytes"
            path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=path.name):
            verify_generation(DISK, path.parent)
        for step in TWO_CHAINS:
            if spoilt in CHAINS[step]:
                with pytest.raises(CheckpointError, match=path.name):
                    verify_all(DISK, folder / name_of(step))
            elif number % 10 == 0:
                verify_all(DISK, folder / name_of(step))
        good = [step for step in TWO_CHAINS if spoilt not in CHAINS[step]]
        found = newest_valid(DISK, folder)
        assert found_step(DISK, folder) == max(good), f"seed {seed}, {number}: {damage}"
        assert [name for name, _ in found.skipped] == [
            name_of(step) for step in reversed(TWO_CHAINS) if step > max(good)
        ]
        assert all(f"{spoilt:09d}" in why and path.name in why for _, why in found.skipped), found.skipped
        path.write_bytes(whole)
    assert found_step(DISK, folder) == TWO_CHAINS[-1]


def test_every_damage_is_detected(folder: Path) -> None:
    damage_and_look(folder, 200)


@pytest.mark.slow
def test_every_one_of_2000_damages_is_detected(folder: Path) -> None:
    damage_and_look(folder, 2000)


def test_every_flipped_bit_of_the_manifest_is_detected(tmp_path: Path) -> None:
    path = Draft(DISK, tmp_path, 7).commit({}) / "MANIFEST.json"
    data = bytearray(path.read_bytes())
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError, match=r"MANIFEST\.json"):
            unsealed(bytes(data), path)
        data[bit // 8] ^= 1 << bit % 8
    assert unsealed(bytes(data), path).step == 7


@pytest.mark.parametrize("where", ["first", "last of the first chunk", "first of the second", "last"])
def test_the_place_of_damage_is_named(tmp_path: Path, where: str) -> None:
    draft = Draft(DISK, tmp_path, 7)
    draft.arrays("rows-00000.safetensors", {"weight": np.arange(2_500_000, dtype=np.float32)})
    generation = draft.commit({})
    path = generation / "rows-00000.safetensors"
    size_bytes = path.stat().st_size
    byte = {
        "first": 0,
        "last of the first chunk": CHUNK_BYTES - 1,
        "first of the second": CHUNK_BYTES,
        "last": size_bytes - 1,
    }
    flip(path, 8 * byte[where])
    start = byte[where] // CHUNK_BYTES * CHUNK_BYTES
    place = f"between byte {start} and {min(start + CHUNK_BYTES, size_bytes)}"
    with pytest.raises(
        CheckpointError, match=rf"rows-00000.safetensors is damaged {place}: crc32 must be \w{{8}}, got \w{{8}}"
    ):
        verify_generation(DISK, generation)


SPOILINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file that is missing": (lambda g: (g / "state.json").unlink(), r"state\.json is missing"),
    "a file too many": (lambda g: (g / "notes.json").write_text("{}"), r"notes\.json must not be there"),
    "bytes too many": (lambda g: (g / "state.json").open("a").write(" "), r"state\.json must have \d+ bytes, got \d+"),
    "an empty file": (lambda g: (g / "state.json").write_text(""), r"state\.json must have \d+ bytes, got 0"),
    "no manifest": (lambda g: (g / "MANIFEST.json").unlink(), r"MANIFEST\.json: reading failed: No such file"),
    "another step": (lambda g: shutil.copy(g.parent / "step-000000040/MANIFEST.json", g), "must be of step 260.* got 40"),
    "a link": (lambda g: relink(g / "state.json"), r"state\.json: reading failed"),
    "a folder": (lambda g: ((g / "state.json").unlink(), (g / "state.json").mkdir()), r"state\.json: reading failed"),
    "format 1": (lambda g: (g / "MANIFEST.json").rename(g / "checkpoint.json"), "of format 3, got one of format 1"),
}  # fmt: skip


def relink(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere.json")
    path.symlink_to(path.parent.parent / "elsewhere.json")


@pytest.mark.parametrize("spoiling", SPOILINGS)
def test_the_damage_of_a_skipped_generation_is_reported(folder: Path, spoiling: str) -> None:
    spoil, message = SPOILINGS[spoiling]
    spoil(folder / name_of(260))
    found = newest_valid(DISK, folder)
    assert found.generation == folder / name_of(222)
    [(name, why)] = found.skipped
    assert name == name_of(260)
    with pytest.raises(CheckpointError, match=message):
        raise CheckpointError(why)


def test_a_pipe_does_not_block_a_reader(folder: Path) -> None:
    import os

    path = folder / name_of(260) / "state.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="must be a regular file"):
        verify_generation(DISK, path.parent)


def test_where_all_are_damaged_none_is_found_and_each_is_reported(folder: Path) -> None:
    for step in TWO_CHAINS:
        flip(folder / f"step-{step:09d}" / "state.json", 9)
    found = newest_valid(DISK, folder)
    assert found.generation is None
    assert [name for name, _ in found.skipped] == [f"step-{step:09d}" for step in reversed(TWO_CHAINS)]


def test_nothing_is_found_in_a_missing_or_empty_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        assert newest_valid(DISK, folder).generation is None
        assert prune(DISK, folder, keep=2) == []


def test_steps_are_ordered_by_number(tmp_path: Path) -> None:
    for step in (999_999_999, 1_000_000_000, 12):
        Draft(DISK, tmp_path, step).commit({})
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-000000012x").mkdir()
    assert newest_valid(DISK, tmp_path).generation == tmp_path / "step-1000000000"


@pytest.mark.parametrize("spoiling", [kind for kind in SPOILINGS if kind not in ("another step", "a file too many")])
def test_a_damaged_base_makes_all_that_build_on_it_unusable(folder: Path, spoiling: str) -> None:
    spoil, message = SPOILINGS[spoiling]
    spoil(folder / name_of(180))
    found = newest_valid(DISK, folder)
    assert found.generation == folder / name_of(123)
    assert [name for name, _ in found.skipped] == [name_of(step) for step in (260, 222, 180)]
    for name, why in found.skipped:
        with pytest.raises(CheckpointError, match=message):
            raise CheckpointError(why)
        assert name in why
        assert name_of(180) in why
        assert "builds on" in why or name == name_of(180)


def test_verify_returns_the_manifest(folder: Path) -> None:
    manifest = verify_generation(DISK, folder / name_of(222))
    rows = ["rows-00000.safetensors", "rows-00001.safetensors"]
    assert [entry.name for entry in manifest.files] == [*rows, "state.safetensors", "state.json"]
    assert (
        manifest.size_bytes
        == sum(path.stat().st_size for path in (folder / name_of(222)).iterdir())
        - (folder / name_of(222) / "MANIFEST.json").stat().st_size
    )
    assert read_manifest(DISK, folder / name_of(222)).description == {"config_hash": "of step 222"}


def test_pruning_keeps_whole_generations_only_and_what_they_build_on_and_removes_drafts(folder: Path) -> None:
    (folder / ".step-000000300.draft").mkdir()
    flip(folder / name_of(222) / "rows-00000.safetensors", 77)
    assert prune(DISK, folder, keep=2) == [".step-000000300.draft"]
    assert DISK.names(folder) == [name_of(step) for step in TWO_CHAINS], (
        "another base stays, whatever becomes of the newer one"
    )
    write(DISK, 300, folder)
    assert prune(DISK, folder, keep=2) == [name_of(step) for step in (7, 40, 123)], "300 and 180 are whole"
    write(DISK, 310, folder, on=(300,))
    assert prune(DISK, folder, keep=2) == [], "310 and 300 share a base: another one stays, which is not read for that"
    write(DISK, 320, folder)
    assert prune(DISK, folder, keep=2) == [name_of(step) for step in (180, 222, 260)]
    assert DISK.names(folder) == [name_of(300), name_of(310), name_of(320)]


def test_pruning_reports_a_damaged_newest_generation(folder: Path) -> None:
    write(DISK, 300, folder)
    flip(folder / name_of(300) / "state.safetensors", 1000)
    with pytest.raises(CheckpointError, match=r"step-000000300/state\.safetensors is damaged"):
        prune(DISK, folder, keep=2)
    kept = "two that are whole have been kept, and as they share a base, another one"
    assert DISK.names(folder) == [name_of(step) for step in (*TWO_CHAINS, 300)], kept
    assert found_step(DISK, folder) == 260


def test_pruning_reports_a_damaged_newest_one_when_nothing_is_removed(folder: Path) -> None:
    prune(DISK, folder, keep=2)
    assert prune(DISK, folder, keep=2) == []
    flip(folder / name_of(260) / "state.safetensors", 1000)
    with pytest.raises(CheckpointError, match=r"step-000000260/state\.safetensors is damaged"):
        prune(DISK, folder, keep=2)


def test_keeping_fewer_than_two_generations_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="must be 2 or more, got 1"):
        prune(DISK, folder, keep=1)


def test_another_base_that_cannot_be_read_for_a_moment_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(DISK, 300, folder)
    write(DISK, 310, folder, on=(300,))
    write(DISK, 320, folder, on=(300, 310))
    reads = type(DISK).read

    def failing(self: object, path: Path) -> bytes:
        if path.parent.name in (name_of(180), name_of(7)):
            raise OSError(5, "Input/output error")
        return reads(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(type(DISK), "read", failing)
    before = DISK.names(folder)
    assert prune(DISK, folder, keep=2) == []
    assert DISK.names(folder) == before


@pytest.mark.parametrize("operation", ["read", "chunks", "names"])
def test_a_checkpoint_that_may_not_be_read_is_an_error_and_is_not_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be whole, so an older one must not take its place, nor may it be set aside."""
    real = getattr(type(DISK), operation)

    def denied(self: object, path: Path, *words: int) -> object:
        if name_of(260) in path.parts:
            raise PermissionError(13, "Permission denied")
        return real(self, path, *words)

    before = DISK.names(folder)
    monkeypatch.setattr(type(DISK), operation, denied)
    with pytest.raises(CheckpointError, match=rf"{name_of(260)}.* failed: Permission denied"):
        newest_valid(DISK, folder)
    assert main(["checkpoint", "verify", str(folder / name_of(260))]) == CheckpointError.exit_code
    out, err = capsys.readouterr()
    assert "Permission denied" in err
    assert "damaged" not in out + err
    assert DISK.names(folder) == before
