"""Changes of knobs that come over the link. The trainer checks each of them once, and its reply carries what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptive_rec.config.knobs import LONGEST_WHY, KnobError, Knobs
from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.live.mailbox import Answer, Mailbox


class KnobPatches:
    """Takes merge patches of the knobs from clients, who may choose only among the policies in the run's description."""

    def __init__(self, mailbox: Mailbox, description: Mapping[str, Any]) -> None:
        self._mailbox = mailbox
        self._policies: list[dict[str, Any]] = description["policies"]
        self._configured = Knobs().changed(description["defaults"])

    def take(self, message: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
        """Request a change and return the reply to it: what it changes, and the knobs as they will be.

        Where the change waits for a step boundary, both stand under `accepted`, and `answer` is called there. Raises KnobError
        for wrong names and values, ConflictError where the run cannot make the change.
        """
        patch, versions, dry_run = message.get("changes"), message.get("versions"), message.get("dry_run", False)
        if not isinstance(patch, dict):
            raise ConfigError(f"changes must be an object of knobs, got {patch!r}")
        note = noted(message)
        before, after = self._mailbox.patch_knobs(
            lambda knobs: self._changed(knobs, patch), answer, versions, dry_run, note
        )
        changed = before.differences(after)
        reply = {"changed": changed, "desired": after.model_dump()}
        return {"accepted": reply} if changed and not dry_run else reply

    def values(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that a merge patch sets knobs to, null standing for the configured one. Raises as `take` does."""
        after = self._changed(self._mailbox.desired, patch).model_dump()
        return {name: after[name] for name in patch}

    def _changed(self, before: Knobs, patch: Mapping[str, Any]) -> Knobs:
        after = before.patched(patch, self._configured)
        if after.policy != before.policy:
            self._check_policy(after.policy)
        return after

    def _check_policy(self, name: str) -> None:
        """Raise an error unless the run knows this policy and may change to it. No client can make the run load other code."""
        choice = next((choice for choice in self._policies if choice["name"] == name), None)
        if choice is None:
            known = ", ".join(choice["name"] for choice in self._policies)
            rule = f"must be one of {known}, got {name[:100]!r}"
            raise KnobError(f"knobs.policy {rule}", [("policy", rule)])
        if not choice["live"]:
            raise ConflictError(f"policy cannot become {name} while a run is under way: {choice['reason']}")


def noted(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client says of a change. Raises ConfigError."""
    note = {name: message[name] for name in ("why", "undoes") if message.get(name) is not None}
    why, undoes = note.get("why", ""), note.get("undoes", 0)
    if not isinstance(why, str) or len(why) > LONGEST_WHY:
        raise ConfigError(f"why must be a text of at most {LONGEST_WHY} characters, got {str(why)[:50]!r}")
    if type(undoes) is not int:
        raise ConfigError(f"undoes must be the number of an event, got {str(undoes)[:50]!r}")
    return note
