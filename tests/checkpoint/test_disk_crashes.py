"""Rows on a disk after a loss of power, and with flipped bits.

A small run with tiny segments, many checkpoints and compaction is recorded, call by call. `make study-disk-crashes` looks at more
states than the tests do.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adaptive_rec.checkpoint import history
from adaptive_rec.checkpoint.disk_entry import saved_logs
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations
from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.checkpoint.saved_log import verify_segments
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.errors import AdaptiveRecError, CheckpointError
from adaptive_rec.run.training_run import TrainingRun
from tests.checkpoint import sim_files
from tests.checkpoint.recorded_calls import FailingCalls, RecordedCalls, put_down
from tests.checkpoint.sim_files import SimFiles, Tree, choices, disk_after, frozen, state

SETTINGS = [
    "run.device=cpu", "run.threads=1", "run.steps=48", "run.batch_size=64", "data.synthetic.samples=6000",
    "data.synthetic.test_samples=200", "knobs.report_every=50", "knobs.reclassify_every=5", "knobs.policy=hotline",
    "knobs.hot_budget_bytes=8KiB", "checkpoint.every_steps=4",
]  # fmt: skip
ON_DISK = "run.host_memory=1MiB"
SECTOR_BYTES = 1024
"""A page of rows may be torn: parts of it are kept or lost each for itself."""

Rows = list[bytes]


def begin(out: Path, *changes: str, resume: bool = False) -> TrainingRun:
    return TrainingRun(load_config("tiny", {}, [*SETTINGS, *changes]), out, resume=resume)


def train(out: Path, *changes: str, resume: bool = False) -> TrainingRun:
    run = begin(out, *changes, resume=resume)
    list(run.events())
    run.finish()
    return run


def rows_of(generation: Path) -> Rows:
    saved = SavedRows(DISK, generation)
    return [part.tobytes() for table in saved.tables for part in saved.read(table, 0, table.rows)]


def step_of(name: str) -> int:
    return int(name[5:14])


@dataclass
class Recorded:
    """A run whose calls were recorded."""

    out: Path
    files: SimFiles
    expected: dict[int, Rows]
    """All rows at each checkpoint's step, from a run in memory."""
    rows_moved: int
    calls: int
    """How many there were, of all kinds."""

    def moments(self) -> list[tuple[int, int, int]]:
        """(step, entry of the log that shows it, entry behind which it stays) of each checkpoint."""
        found, log = [], self.files.log
        for entry, step in enumerate(log):
            if step.kind == "names" and step.names[1].startswith("step-"):
                end = next(at for at in range(entry, len(log)) if log[at].kind == "sync" and log[at].node is step.node)
                found.append((step_of(step.names[1]), entry + 1, end + 1))
        return found

    def allowed(self, entries: int) -> tuple[int | None, set[int]]:
        """The newest step that must not be lost after so many entries, and those that may be found instead."""
        committed = [step for step, _, end in self.moments() if end <= entries]
        return (committed[-1] if committed else None), {
            step for step, shown, end in self.moments() if shown <= entries < end
        }

    def states(self, most: int, dice: random.Random) -> Iterator[tuple[Tree, int | None, set[int]]]:
        """Distinct states of the disk after a loss of power behind each entry of the log, at most so many behind each."""
        seen = set()
        for entries in range(len(self.files.log) + 1):
            disk, allowed = disk_after(self.files.log[:entries], self.files.root), self.allowed(entries)
            picked = choices(len(disk.late), most, dice) if len(disk.late) < most // 4 else (
                [dice.random() < share for _ in disk.late] for share in (0, 1, *(dice.random() for _ in range(most - 2)))
            )  # fmt: skip
            for kept in picked:
                tree = state(disk, self.files.root, kept)
                if (key := hash((frozen(tree), str(allowed)))) not in seen:
                    seen.add(key)
                    yield tree, *allowed

    def wrong(self, tree: Tree, least: int | None, others: set[int]) -> str:
        """What is wrong with what is found on a disk, or nothing."""
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
            put_down(tree, Path(folder))
            checkpoints = Path(folder) / "checkpoints"
            try:
                found = history.newest_valid(DISK, checkpoints).generation
                step = None if found is None else step_of(found.name)
                if found is not None and rows_of(found) != self.expected[step_of(found.name)]:
                    return f"rows of step {step} are not those of that step"
                if step != least and step not in others:
                    return f"found step {step}, must be {least} or one of {sorted(others)}"
                if least is not None:
                    older = [name for name in generations(DISK.names(checkpoints)) if step_of(name) < least][-1:]
                    for name in older:
                        if rows_of(checkpoints / name) != self.expected[step_of(name)]:
                            return f"rows of the older step {name} are not those of that step"
            except CheckpointError as error:
                return str(error)
        return ""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("crashes")
    memory = folder / "memory"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
        patch.setattr(row_log, "_KEPT_BYTES", 0)
        patch.setattr(sim_files, "PAGE_BYTES", SECTOR_BYTES)
        train(memory, "checkpoint.keep=99")
        names = generations(DISK.names(memory / "checkpoints"))
        expected = {step_of(name): rows_of(memory / "checkpoints" / name) for name in names}
        out = folder / "run"
        with pytest.MonkeyPatch.context() as calls:
            recorder = RecordedCalls(out, ("checkpoints", "rows"), calls)
            counted = FailingCalls(out, ("checkpoints", "rows"), calls)
            run = train(out, ON_DISK)
        store = run.runtime.store
        assert store.cold.on_disk
        moved = sum(log.counts.rows_moved for log in store.cold.types.logs)
        yield Recorded(out, recorder.files, expected, moved, counted.done)


def check(recorded: Recorded, count: int, most: int) -> int:
    """Look at so many states, or all where there are fewer. Returns their number."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    every = recorded.states(most, dice)
    picked = dice.sample(list(every), count) if count else every
    number = 0
    for tree, least, others in picked:
        number += 1
        assert not (what := recorded.wrong(tree, least, others)), f"seed {seed}, state {number}: {what}"
    return number


@pytest.mark.parametrize(("count", "most"), [(20, 3), pytest.param(400, 16, marks=pytest.mark.slow)])
def test_after_a_loss_of_power_the_newest_checkpoint_has_its_rows(recorded: Recorded, count: int, most: int) -> None:
    assert len(recorded.moments()) == 12
    assert recorded.rows_moved > 100, "rows are moved meanwhile"
    assert any(step.names[0].endswith(".rows") for step in recorded.files.log), "segments are removed meanwhile"
    assert check(recorded, count, most) == count


@dataclass
class Flips:
    """What became of flipped bits."""

    found: int = 0
    passed_over: int = 0
    """The checkpoint was found damaged, and an older one taken."""
    unread: int = 0
    """No row that is in use has it; `checkpoint verify` found it."""


def flip(recorded: Recorded, path: Path, place: int) -> Flips:
    """Flip a bit, load the newest checkpoint, and flip it back."""
    with open(path, "r+b") as file:
        file.seek(place // 8)
        was = file.read(1)
        file.seek(place // 8)
        file.write(bytes([was[0] ^ 1 << place % 8]))
    try:
        found = history.newest_valid(DISK, recorded.out / "checkpoints")
        if found.generation is None or rows_of(found.generation) != recorded.expected[step_of(found.generation.name)]:
            raise AssertionError(f"a flipped bit {place} of {path} gives other rows, {found.skipped}")
        skipped = [why for _, why in found.skipped]
        if not skipped:
            links = history.chain(DISK, found.generation)
            with pytest.raises(CheckpointError, match=f"{path.name} is damaged"):
                verify_segments(saved_logs(links[-1].manifest, links[-1].path))
    except CheckpointError as error:
        if path.name not in str(error) or "damaged" not in str(error):
            raise
        return Flips(found=1)
    finally:
        with open(path, "r+b") as file:
            file.seek(place // 8)
            file.write(was)
    assert all(path.name in why for why in skipped)
    return Flips(passed_over=1) if skipped else Flips(unread=1)


def used_bytes(out: Path) -> dict[Path, int]:
    """How many bytes of each file a loading of the newest checkpoint reads: its manifest, its files, those that it builds on,
    and pages of rows."""
    links = history.chain(DISK, out / "checkpoints" / generations(DISK.names(out / "checkpoints"))[-1])
    disk = links[-1].manifest.disk
    assert disk is not None
    files = {path: path.stat().st_size for link in links for path in link.path.iterdir()}
    return files | dict(disk[0].segments(links[-1].path))


def flipped(recorded: Recorded, count: int) -> Flips:
    """Flip so many bits, half of them in segments. None may give a wrong row."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice, used, outcome = random.Random(seed), used_bytes(recorded.out), Flips()
    segments = [path for path in used if path.suffix == ".rows"]
    others = [path for path in used if path.suffix != ".rows"]
    for number in range(count):
        path = dice.choice(segments if number % 2 else others)
        one = flip(recorded, path, dice.randrange(8 * used[path]))
        for name, value in vars(one).items():
            setattr(outcome, name, getattr(outcome, name) + value)
    return outcome


def test_a_flipped_bit_is_found_before_a_row_is_used(recorded: Recorded) -> None:
    outcome = flipped(recorded, 120)
    assert outcome.passed_over + outcome.found + outcome.unread == 120
    assert outcome.found >= 15, "56 % of the 60 in segments lie in rows that are in use or in heads of their pages"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_2000_flipped_bits_are_found_before_a_row_is_used(recorded: Recorded) -> None:
    print(flipped(recorded, 2000))


def outcome_of(recorded: Recorded, out: Path, failing: int, code: int, lasting: bool, short: bool) -> str:
    """Train while a call fails, then go on without faults. Returns how the first run ended, and checks that nothing that was
    acknowledged is lost, and that the second one ends as one that nothing happened to."""
    newest, said = 0, "went on"
    with pytest.MonkeyPatch.context() as patch:
        calls = FailingCalls(out, ("checkpoints", "rows"), patch)
        calls.failing, calls.code, calls.lasting, calls.short = failing, code, lasting, short
        try:
            run = begin(out, ON_DISK)
            for event in run.events():
                if getattr(event, "kind", "") == "checkpoint":
                    newest = step_of(event.details["checkpoint"])
            run.finish()
            said = f"ended with {run.failure}" if run.failure else said
        except AdaptiveRecError as error:
            said = f"ended with {error}"
            assert os.strerror(code) in said, said
            assert str(out) in said, said
        assert calls.done > failing
    found = history.newest_valid(DISK, out / "checkpoints").generation if (out / "checkpoints").exists() else None
    step = 0 if found is None else step_of(found.name)
    assert step >= newest, f"step {newest} was acknowledged, {step} is found; {said}"
    assert found is None or rows_of(found) == recorded.expected[step], said
    again = train(out, ON_DISK, resume=True)
    assert again.failure is None
    last = history.newest_valid(DISK, out / "checkpoints").generation
    assert last is not None
    assert rows_of(last) == recorded.expected[48], said
    return said


def check_faults(recorded: Recorded, folder: Path, count: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice, ended = random.Random(seed), 0
    for number in range(count):
        failing, code = dice.randrange(int(0.8 * recorded.calls)), dice.choice((errno.EIO, errno.ENOSPC))
        out, lasting, short = folder / f"{number}", dice.random() < 1 / 3, dice.random() < 1 / 2
        said = outcome_of(recorded, out, failing, code, lasting, short)
        ended += said != "went on"
        shutil.rmtree(out)
    print(f"{ended} of {count} runs ended early")


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_survives_a_failing_call_or_ends_and_goes_on_later(
    recorded: Recorded, tmp_path: Path, count: int
) -> None:
    check_faults(recorded, tmp_path, count)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_survives_any_failing_call_or_ends_and_goes_on_later(recorded: Recorded, tmp_path: Path) -> None:
    check_faults(recorded, tmp_path, int(os.environ.get("ADAPTIVE_REC_FAULTS", "300")))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_after_any_loss_of_power_the_newest_checkpoint_has_its_rows(recorded: Recorded) -> None:
    count = check(recorded, 0, int(os.environ.get("ADAPTIVE_REC_STATES", "40")))
    print(f"{count} distinct states of {len(recorded.files.log)} calls")
    assert count >= 10_000


@pytest.mark.parametrize("what", ["files of segments", "the folder of a pool", "the folder of all rows"])
def test_every_sync_of_rows_is_needed(recorded: Recorded, what: str) -> None:
    """So the states above are those that matter."""
    files, log = SimFiles(), recorded.files.log
    rows = next(step.child for step in log if step.names[1] == "rows")
    pool = next(step.child for step in log if step.names[1] == "pool-0")
    segments = [step.child for step in log if step.names[1].endswith(".rows")]
    left_out = {"files of segments": segments, "the folder of a pool": [pool], "the folder of all rows": [rows]}[what]
    files.root = recorded.files.root
    files.log = [step for step in log if step.kind != "sync" or step.node not in left_out]
    without = Recorded(recorded.out, files, recorded.expected, 0, 0)
    states = without.states(6, random.Random(1))
    assert any(without.wrong(*found) for found in states)
