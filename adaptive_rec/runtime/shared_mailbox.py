"""The mailbox of several processes: rank 0 takes the commands, and all ranks carry them out at the same step."""

from __future__ import annotations

import numpy as np

from adaptive_rec.live.mailbox import Command, Mailbox, WaitingChange
from adaptive_rec.state.run_state import RunState
from adaptive_rec.system.group import Group


class SharedMailbox(Mailbox):
    """A mailbox that every rank empties together. A rank that was asked to hurry, by a signal, makes all of them hurry."""

    def __init__(self, group: Group, state: RunState) -> None:
        super().__init__(state.knobs)
        self._group = group
        self._state: RunState | None = state

    def follow(self, state: RunState) -> None:
        """Hold commands for another run."""
        self._state = state

    def let_go(self, reason: str) -> None:
        super().let_go(reason)
        self._state = None

    def put_back(self, commands: list[Command]) -> None:
        """Rank 0 keeps them, and the others hear of them again."""
        if self._group.rank == 0:
            super().put_back(commands)
        else:
            changes = sum(command.verb == "change_knobs" for command in commands)
            del self._waiting[len(self._waiting) - changes :]

    def drain(self) -> list[Command]:
        return self._told(self.take())

    def wait(self, seconds: float) -> list[Command]:
        return self._told(self.take(seconds) if self._group.rank == 0 else [])

    def _told(self, own: list[Command]) -> list[Command]:
        """Return rank 0's commands on every rank."""
        assert self._state is not None, "commands are taken out by a run that trains"
        ranks_W2 = self._group.gather(np.array([len(own), self._state.hurry_requested], np.int64))
        if ranks_W2[:, 1].any():
            self._state.leave()
        if not ranks_W2[0, 0]:
            return []
        told = self._group.tell([[command.verb, dict(command.values), dict(command.note)] for command in own])
        if self._group.rank == 0:
            return own
        commands = [Command(verb, values, note=note) for verb, values, note in told]
        self._waiting += [WaitingChange(each.values, each.note) for each in commands if each.verb == "change_knobs"]
        return commands
