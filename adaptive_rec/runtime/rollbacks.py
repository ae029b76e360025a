"""Rollbacks that are requested of a run: whether it can go back, and to where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaptive_rec.checkpoint.rollback_target import checked_checkpoint
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import AdaptiveRecError, ConflictError, DataError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.rollback import Rollback
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.knob_checks import check_policy
from adaptive_rec.state.run_state import RunState


class Rollbacks:
    """Checks each rollback before anything is given up for it."""

    def __init__(
        self, state: RunState, folder: Path | None, check_knobs: Callable[[Knobs, Knobs], None], replaying: bool
    ) -> None:
        """`folder`: that of the run's checkpoints, if it writes any. `check_knobs`: as `Session.check_knobs`. `replaying`:
        whether the run replays another."""
        self._state = state
        self._folder = folder
        self._check_knobs = check_knobs
        self._replaying = replaying

    def accepted(self, command: Command) -> Rollback:
        """Return the rollback of a command. Several processes must call it together. Raises ConfigError or ConflictError where
        the run cannot go back so; then training continues."""
        group, failure, found = self._state.store.group, None, None
        if group.rank == 0:
            try:
                found = self._found(**command.values)
            except AdaptiveRecError as error:
                failure = error
        found = group.tell(found)
        if failure is not None:
            raise failure
        if found is None:
            raise ConflictError("rank 0 refuses the rollback")
        name, knobs = found
        skip_to = self._state.position if command.values["skip_data"] else None
        return Rollback(command, name, self._state.step, knobs, skip_to)

    def _found(
        self, checkpoint: str | None, to_step: int | None, skip_data: bool, knobs: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return the name of the checkpoint, and the knobs that differ from its own."""
        if self._state.stopped_by_command:
            raise ConflictError("the run is about to end, so it does not go back")
        if self._folder is None:
            raise ConflictError("this run has no folder for checkpoints, so it cannot go back")
        name = checked_checkpoint(self._folder, checkpoint, to_step)
        from adaptive_rec.checkpoint import saved_knobs

        self._check_files(self._folder / name)
        before = saved_knobs(self._folder / name)
        after = before.changed(knobs)
        if after.policy != before.policy:
            check_policy(after, load_policy(before.policy))
        self._check_knobs(before, after)
        if skip_data:
            self._check_skip(before, after)
        return name, {key: each["new"] for key, each in before.differences(after).items()}

    def _check_files(self, saved: Path) -> None:
        """Raise ConflictError where followed files are gone that a run would read again from a checkpoint on."""
        if (followed := self._state.input.followed) is None:
            return
        from adaptive_rec.checkpoint import saved_followed_file

        try:
            followed.files.check_kept(saved_followed_file(saved))
        except DataError as error:
            raise ConflictError(f"the run cannot go back to checkpoint {saved.name}: {error}") from None

    def _check_skip(self, *knobs: Knobs) -> None:
        """Raise ConflictError where the run cannot pass over a part of the stream."""
        state = self._state
        arranging = [each.policy for each in knobs if load_policy(each.policy).arranges_stream]
        if state.policy.arranges_stream:
            arranging.append(state.policy.name)
        if arranging:
            raise ConflictError(
                f"skip_data must be false under a policy that arranges the stream, got true with {arranging[0]}"
            )
        if state.position.on_slice:
            raise ConflictError("skip_data must be false while the validation slice is trained on, got true")
        if state.input.followed is not None:
            raise ConflictError(
                "skip_data must be false where data is followed, which is read once and in order, got true"
            )
        if self._replaying:
            raise ConflictError(
                "skip_data must be false in a run that replays another, whose data it trains on, got true"
            )
