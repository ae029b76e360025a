"""After a loss of power at any moment the newest committed generation is found, whatever unsynced data was lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptive_rec.checkpoint.draft import Draft, SyncedFile
from adaptive_rec.checkpoint.generation import generations
from adaptive_rec.checkpoint.history import prune
from tests.checkpoint.histories import (
    CHAINS,
    CHECKPOINTS,
    LAST,
    STEPS,
    History,
    checked_step,
    found_step,
    name_of,
    write,
    write_history,
    wrong,
)
from tests.checkpoint.sim_files import Meddling, SimFiles, Tree, choices, disk_after, frozen, state
from tests.matrix import always, grid, only


def every_sync() -> list[tuple[str, Path]]:
    """All that a history syncs, in this order."""
    syncs = []

    def meddle(operation: str, path: Path) -> bool:
        if operation in ("sync", "sync_folder"):
            syncs.append((operation, path))
        return True

    files = SimFiles()
    write_history(Meddling(files, meddle), files.log)
    return syncs


SYNCS = every_sync()


def states(
    files: SimFiles, history: History, most: int, rng: random.Random, first: int = 0
) -> Iterator[tuple[Tree, set[int | None]]]:
    """Distinct states of the disk after a loss of power behind each entry of the log from `first` on, and what may be found."""
    seen = set()
    for entries in range(first, len(files.log) + 1):
        disk, allowed = disk_after(files.log[:entries], files.root), history.allowed(entries)
        for kept in choices(len(disk.late), most, rng):
            tree = state(disk, files.root, kept)
            key = hash((frozen(tree), frozenset(allowed)))
            if key not in seen:
                seen.add(key)
                yield tree, allowed


@pytest.fixture(scope="module")
def written() -> tuple[SimFiles, History]:
    files = SimFiles()
    return files, write_history(files, files.log)


def test_the_uninterrupted_history_ends_with_its_newest_two_and_their_base(written: tuple[SimFiles, History]) -> None:
    files, _ = written
    assert files.names(CHECKPOINTS) == [name_of(step) for step in LAST]
    assert found_step(files) == STEPS[-1]


def test_after_each_generation_the_newest_two_are_whole_and_an_unneeded_chain_is_removed() -> None:
    files, left = SimFiles(), []
    for number, step in enumerate(STEPS):
        write(files, step)
        prune(files, CHECKPOINTS, keep=2)
        left.append([int(name.removeprefix("step-")) for name in files.names(CHECKPOINTS)])
        for newer in STEPS[max(0, number - 1) : number + 1]:
            assert checked_step(files, CHECKPOINTS / name_of(newer)) == newer
    assert left == [[7], [7, 40], [7, 40, 123], [7, 40, 123, 180], [7, 40, 123, 180, 222],
                    [7, 40, 123, 180, 222, 260], [180, 222, 260, 300], [180, 222, 260, 300, 333]]  # fmt: skip


@pytest.mark.parametrize(("states_seen", "most"), [(60, 32), pytest.param(400, 256, marks=pytest.mark.slow)])
def test_after_a_loss_of_power_the_newest_generation_is_found(
    written: tuple[SimFiles, History], states_seen: int, most: int
) -> None:
    """Others each time. In every tenth the run goes on: a generation more, of which the newest is found again."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    files, history = written
    every = list(states(files, history, most, random.Random(seed)))
    sample = random.Random(seed).sample(every, min(states_seen, len(every)))
    assert len(sample) == states_seen, f"{len(every)} states"
    for number, (tree, allowed) in enumerate(sample):
        assert not wrong(tree, allowed), f"seed {seed}, state {number}: {wrong(tree, allowed)}"
        if number % 10 == 0:
            after = SimFiles(tree)
            on = found_step(after)
            write(after, 500, on=CHAINS[on] if on else ())
            prune(after, CHECKPOINTS, keep=2)
            write(after, 510)
            prune(after, CHECKPOINTS, keep=2)
            assert found_step(after) == 510
            assert checked_step(after, CHECKPOINTS / name_of(500)) == 500
            assert after.names(CHECKPOINTS) == generations(after.names(CHECKPOINTS)), "drafts of before are gone"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_after_any_loss_of_power_the_newest_generation_is_found(written: tuple[SimFiles, History]) -> None:
    """Every state that there is, but where more than 10 things were not synced, of which 1,024 choices are looked at."""
    files, history = written
    seed = random.randrange(1 << 32)
    count = 0
    for tree, allowed in states(files, history, 1 << 10, random.Random(seed)):
        assert not wrong(tree, allowed), f"seed {seed}: {wrong(tree, allowed)}"
        count += 1
    late = max(len(disk_after(files.log[:entries], files.root).late) for entries in range(len(files.log)))
    print(f"{count} distinct states of {len(files.log)} operations, at most {late} of them pending, seed {seed}")
    assert count >= 10_000


@grid(always, only(STEPS[:2]), steps=[STEPS[:2], STEPS], with_manifest=[False, True])
def test_leftovers_of_a_kill_survive_a_loss_of_power_harmlessly(steps: tuple[int, ...], with_manifest: bool) -> None:
    """A draft of the same step, and a file of it, are removed by the next one; that need not be on the disk yet."""
    files, history = SimFiles(), History()
    for step in steps:
        started = len(files.log)
        draft = Draft(files, CHECKPOINTS, step)
        draft.json("state.json", {"step": step, "half": True})
        if with_manifest:  # killed right before the draft got its name
            left = SyncedFile(files, CHECKPOINTS / f".step-{step:09d}.draft" / "MANIFEST.json")
            left.write(b"{}")
            left.sync()
        write(files, step)
        history.moments.append((step, started, len(files.log)))
        prune(files, CHECKPOINTS, keep=2)
    for tree, allowed in states(files, history, 64, random.Random(2)):
        assert not wrong(tree, allowed), wrong(tree, allowed)


@pytest.mark.parametrize(
    "left_out",
    [
        pytest.param(number, id=f"{number} {path}", marks=[] if number in range(8, 16) else [pytest.mark.slow])
        for number, (_, path) in enumerate(SYNCS)
    ],
)
def test_every_sync_is_needed_to_survive_a_loss_of_power(left_out: int) -> None:
    """So the states above are those that matter, and no sync is there in vain."""
    files = SimFiles()
    syncs = moment = 0

    def meddle(operation: str, path: Path) -> bool:
        nonlocal syncs, moment
        if operation not in ("sync", "sync_folder"):
            return True
        syncs += 1
        moment = len(files.log) if syncs == left_out + 1 else moment
        return syncs != left_out + 1

    history = write_history(Meddling(files, meddle), files.log)
    assert syncs == len(SYNCS)
    assert any(wrong(tree, allowed) for tree, allowed in states(files, history, 64, random.Random(1), moment))


def test_files_manifest_draft_and_parent_are_synced_in_this_order() -> None:
    named = [path.name for _, path in SYNCS]
    others = ["state.safetensors", "state.json", "MANIFEST.json"]
    one = {
        step: [f"rows-{shard:05d}.safetensors" for shard in range(1 if step in (123, 333) else 2)] + others
        for step in STEPS
    }
    hidden = {300: ["checkpoints"] * 3}  # the first chain goes, one by one
    assert named == [
        "",
        *(n for step in STEPS for n in [*one[step], f".{name_of(step)}.draft", "checkpoints", *hidden.get(step, [])]),
    ]
