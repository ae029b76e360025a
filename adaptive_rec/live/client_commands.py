"""Commands of clients, which the sidecar passes on: checked, sent to the training thread, answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from adaptive_rec.config.knobs import KnobError
from adaptive_rec.errors import AdaptiveRecError, CheckpointError, ConfigError, ConflictError
from adaptive_rec.live.knob_patch import KnobPatches
from adaptive_rec.live.mailbox import Answer, Command, StaleError, Verb
from adaptive_rec.live.rollback import requested_rollback
from adaptive_rec.live.served_run import ServedRun

FIND_KEYS = "find_keys"
"""A question, which is answered at once, between two steps or not."""
OF_JOURNALS = {"note", "choose_split", "halve_budget", "skip_data", "fail", "evaluate", "put_off_trial"}
"""Commands that the runtime itself sends, or that a journal has for a replay: no client may."""
VERBS = frozenset(get_args(Verb)) - OF_JOURNALS | {FIND_KEYS}


class ClientCommands:
    """Passes commands on to the training thread, or refuses them with an error. The sidecar's thread calls it."""

    def __init__(
        self,
        training: ServedRun | None,
        description: Mapping[str, Any],
        send_knobs: Callable[[], None],
        released: Callable[[], None],
    ) -> None:
        """`training`: None for a run that has ended. `description`: its `run.json`. `send_knobs` shows clients the present knobs;
        `released` is called when a client stops a run that has finished."""
        self._training = training
        if training is not None:
            self._patches = KnobPatches(training.mailbox, description)
        self._send_knobs, self._released = send_knobs, released

    def take(self, message: Mapping[str, Any], answer: Answer) -> None:
        """Have a command carried out; `answer` is called with its outcome or the error, at once or later."""
        verb = message.get("command")
        try:
            self._pass_on(verb, message, answer)
        except AdaptiveRecError as error:
            if verb == "change_knobs":
                self._send_knobs()  # the client is shown the values that the change was refused for
            answer(error)

    def _pass_on(self, verb: Any, message: Mapping[str, Any], answer: Answer) -> None:
        if not (isinstance(verb, str) and verb in VERBS):
            raise ConfigError(f"command must be one of {', '.join(sorted(VERBS))}, got {verb!r}")
        if verb != "change_knobs" and message.get("changes"):
            raise ConfigError(f"changes must come with change_knobs, got {message['changes']!r} with {verb}")
        if self._training is None:
            raise ConflictError("the run has ended")
        if verb == "change_knobs":
            answer(self._patches.take(message, answer))
            return
        if verb == FIND_KEYS:
            answer(self._training.find_keys(message["table"], message["keys"]))
            return
        command = Command(cast(Verb, verb), answer=answer)
        if verb == "rollback":
            command = requested_rollback(message, self._patches, answer)
        try:
            self._training.mailbox.send(command)
            answer({"accepted": {}})
        except ConflictError:
            if verb != "stop" or self._training.state.phase != "finished":
                raise
            answer({"step": self._training.state.step})
            self._released()

    def knobs(self) -> dict[str, Any]:
        """Return the knobs in effect and those requested; nothing for a run that has ended."""
        if self._training is None:
            return {}
        state = self._training.state
        return {
            "desired": self._training.mailbox.desired.model_dump(),
            "effective": state.knobs.model_dump(),
            "step": state.knobs_step,
            "changes": state.knob_changes,
            "rollbacks": state.rollbacks,
            "waiting": self._training.mailbox.waiting,
        }


def answer_message(number: int, outcome: Mapping[str, Any] | AdaptiveRecError) -> dict[str, Any]:
    """Return the answer to a command as a message: its outcome, or its error with a status and the wrong knobs."""
    if isinstance(outcome, KnobError):
        return {"id": number, "status": 422, "error": outcome.detail, "errors": outcome.errors}
    if isinstance(outcome, AdaptiveRecError):
        return {"id": number, "status": _status(outcome), "error": str(outcome)}
    return {"id": number, **outcome}


def _status(error: AdaptiveRecError) -> int:
    """The HTTP status that fits an error."""
    kinds: list[tuple[type[AdaptiveRecError], int]] = [
        (ConfigError, 422),
        (StaleError, 412),
        (ConflictError, 409),
        (CheckpointError, 507),
    ]
    return next((status for kind, status in kinds if isinstance(error, kind)), 500)
