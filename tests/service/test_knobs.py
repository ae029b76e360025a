"""Knobs over HTTP: what is shown, what is refused, and that a change happens as a whole and only on what was seen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from adaptive_rec.config.knobs import Knobs, knobs_version
from adaptive_rec.service import trainer_link

URL = "/api/v1/knobs"


def patch(client: Any, body: Any, tag: str | None = None, **query: Any) -> Any:
    tag = tag or client.get(URL).headers["etag"]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"If-Match": tag, "Content-Type": "application/merge-patch+json"}
    return client.patch(URL, content=content, headers=headers, params=query)


def test_every_knob_is_described(client: Any) -> None:
    answer = client.get(URL).json()
    assert set(answer["knobs"]) == set(Knobs.model_fields)
    assert not answer["pending"]
    for name, knob in answer["knobs"].items():
        assert knob["default"] == knob["desired"] == knob["effective"] == getattr(Knobs(), name)
        assert knob["unit"]
        assert knob["why"]
    knobs = answer["knobs"]
    assert (knobs["alpha"]["minimum"], knobs["alpha"]["exclusive_minimum"], knobs["alpha"]["maximum"]) == (0, True, 1)
    assert (knobs["hot_budget_bytes"]["type"], knobs["hot_budget_bytes"]["minimum"]) == ("integer", 0)
    assert knobs["action"]["choices"] == ["freeze", "drop", "subsample"]
    assert (knobs["stale_threshold"]["type"], knobs["stale_threshold"]["choices"]) == ("number_or_choice", ["search"])
    assert knobs["policy"]["choices"] == ["hotline", "slipstream"]


def test_a_change_names_its_step(client: Any, view: Any) -> None:
    answer = patch(client, {"alpha": 0.8, "hot_budget_bytes": "1MiB"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["applied_at_step"] == 40
    assert body["changed"]["alpha"] == {"old": 0.9, "new": 0.8}
    assert body["desired"]["hot_budget_bytes"] == body["effective"]["hot_budget_bytes"] == 1 << 20
    assert view.link.run.knobs == {**Knobs().model_dump(), "alpha": 0.8, "hot_budget_bytes": 1 << 20}
    after = client.get(URL)
    assert after.headers["etag"] == answer.headers["etag"]
    assert after.json()["effective_since_step"] == 40
    back = patch(client, {"alpha": None}).json()
    assert back["changed"] == {"alpha": {"old": 0.8, "new": 0.9}}


def test_if_match_without_an_etag_is_refused(client: Any) -> None:
    before = client.get(URL)
    for tag in ("x", '"', "W/x", "*, *", '*, "a"', '"a" "b"', '"a" more'):
        answer = patch(client, {"alpha": 0.8}, tag)
        assert answer.status_code == 400, tag
        assert answer.json()["detail"] == f"If-Match must be the ETag of GET /api/v1/knobs, with its quotes, or *; got {tag!r}"
        assert client.get(URL).headers["etag"] == before.headers["etag"], tag


def test_what_was_not_seen_is_not_changed(client: Any, view: Any) -> None:
    tag = client.get(URL).headers["etag"]
    missing = client.patch(URL, json={"alpha": 0.8})
    assert missing.status_code == 428
    assert patch(client, {"alpha": 0.8}, tag).status_code == 200
    stale = patch(client, {"alpha": 0.7}, tag)
    assert stale.status_code == 412
    assert stale.headers["etag"] == client.get(URL).headers["etag"] != tag
    assert patch(client, {"alpha": 0.7}, f'"x", {stale.headers["etag"]}').status_code == 200
    assert patch(client, {"alpha": 0.6}, "*").status_code == 200
    assert patch(client, {"alpha": 0.5}, f"W/{tag}").status_code == 412
    assert view.link.run.knobs["alpha"] == 0.6


def test_the_trainer_refuses_a_change_of_values_that_it_has_changed_itself(client: Any, view: Any, run: Any) -> None:
    """Its report of the change is still on the way when the client sends a tag that fits what the service shows."""
    tag = client.get(URL).headers["etag"]
    run.mailbox.change_knobs(decay=0.5)
    answer = patch(client, {"alpha": 0.8}, tag)
    assert (answer.status_code, run.knobs["alpha"]) == (412, 0.9)
    assert answer.headers["etag"] == client.get(URL).headers["etag"] != tag
    assert patch(client, {"alpha": 0.8}).json()["desired"]["decay"] == 0.5


WRONG: list[tuple[Any, list[str]]] = [
    (b'{"alpha": NaN}', ["alpha"]),
    (b'{"alpha": Infinity}', ["alpha"]),
    (b'{"alpha": 1e999}', ["alpha"]),
    ({"alpha": True}, ["alpha"]),
    ({"alpha": "0.5"}, ["alpha"]),
    ({"alpha": 0}, ["alpha"]),
    ({"reclassify_every": True}, ["reclassify_every"]),
    ({"reclassify_every": 1.5}, ["reclassify_every"]),
    ({"hot_budget_bytes": True}, ["hot_budget_bytes"]),
    ({"hot_budget_bytes": "much"}, ["hot_budget_bytes"]),
    ({"hot_budget_bytes": -1}, ["hot_budget_bytes"]),
    ({"hot_budget_bytes": []}, ["hot_budget_bytes"]),
    ({"stale_threshold": "none"}, ["stale_threshold"]),
    ({"stale_threshold": False}, ["stale_threshold"]),
    ({"action": "burn"}, ["action"]),
    ({"alpha": {"deep": 1}}, ["alpha"]),
    ({"hot_budget_bytes": 2**63}, ["hot_budget_bytes"]),
    (b'{"hot_budget_bytes": 1e300}', ["hot_budget_bytes"]),
    ({"hot_budget_bytes": 2**50 + 1}, ["hot_budget_bytes"]),
    (b'{"report_every": 1e12}', ["report_every"]),
    ({"alfa": 0.5}, ["alfa"]),
    ({"alpha": 2, "decay": 2, "probe_ratio": 0.5}, ["alpha", "decay"]),
    ({"policy": "nobody"}, ["policy"]),
    ({"policy": ""}, ["policy"]),
    ({"\ud800": 1}, ["\ud800"]),
    (b'{"alpha": 0.5, "decay": 0.6, "alpha": 0.7}', ["alpha"]),
]


def test_a_wrong_value_is_named_and_nothing_changes(client: Any, view: Any) -> None:
    before = client.get(URL)
    for body, named in WRONG:
        answer = patch(client, body)
        assert answer.status_code == 422, (body, answer.text)
        assert sorted(error["knob"] for error in answer.json()["errors"]) == named, body
        assert all(error["detail"] for error in answer.json()["errors"]), body
        details = [f"{each['knob']}: {each['detail']}" for each in answer.json()["errors"]]
        assert answer.json()["detail"] == "; ".join(details), body
        after = client.get(URL)
        assert after.json() == before.json(), body
        assert after.headers["etag"] == before.headers["etag"], body
        assert view.link.run.mailbox.drain() == [], body
        assert view.link.run.knobs == Knobs().model_dump(), body


def test_the_trainer_names_the_rule_and_the_value_of_every_wrong_knob(client: Any) -> None:
    answer = patch(client, {"alpha": 2, "stale_threshold": "none"})
    assert answer.json()["errors"] == [
        {
            "knob": "stale_threshold",
            "detail": "must be a number, got 'none' or must be 'search', got 'none'",
        },
        {"knob": "alpha", "detail": "must be at most 1, got 2"},
    ]
    assert patch(client, {"policy": "os:system"}).json()["errors"] == [
        {"knob": "policy", "detail": "must be one of slipstream, hotline, fae, got 'os:system'"}
    ]


def test_a_dry_run_refuses_what_cannot_be_meant(client: Any) -> None:
    headers = {"If-Match": "*", "Content-Type": "application/merge-patch+json"}
    answer = client.patch(f"{URL}?dry_run=1", content=b'{"report_every": 1e12}', headers=headers)
    fault = {"knob": "report_every", "detail": "must be at most 1000000000, got 1000000000000"}
    assert (answer.status_code, answer.json()["errors"]) == (422, [fault])
    assert client.get(URL).json()["knobs"]["report_every"]["maximum"] == 10**9


def test_an_answer_to_much_nonsense_is_short(client: Any) -> None:
    many = patch(client, {f"knob{number}": 1 for number in range(4000)})
    long = patch(client, {"action": "\u00e9" * 9_000})
    assert (many.status_code, long.status_code) == (422, 422)
    assert len(many.json()["errors"]) == 20
    assert max(len(json.dumps(answer.json())) for answer in (many, long)) < 50_000
    assert patch(client, json.loads('{"alpha":' + "[" * 500 + "]" * 500 + "}")).status_code == 422


def test_a_body_that_is_no_object(client: Any) -> None:
    bodies = {b"[]": 422, b"null": 422, b"1": 422, b"{": 422, b"": 422, b"[" * 60_000: 400, b"\xff": 400}
    for body, status in bodies.items():
        answer = patch(client, body)
        assert answer.status_code == status, body[:20]
        assert answer.headers["content-type"] == "application/problem+json", body[:20]


def test_a_body_must_say_that_it_is_json(client: Any) -> None:
    tag = client.get(URL).headers["etag"]
    for media_type, status in (("text/plain", 422), ("application/json", 200)):
        headers = {"If-Match": tag, "Content-Type": media_type}
        assert client.patch(URL, content=b'{"alpha": 0.8}', headers=headers).status_code == status


def test_three_point_nought_is_three(client: Any) -> None:
    assert patch(client, {"reclassify_every": 50.0}).json()["changed"]["reclassify_every"] == {"old": 100, "new": 50}


def test_unknown_knobs_are_named_beside_wrong_ones(client: Any) -> None:
    answer = patch(client, {"alpha": 5, "nope": 1, "evict_after": -1}).json()
    assert [each["knob"] for each in answer["errors"]] == ["nope", "alpha", "evict_after"]


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("dryrun=1", "query.dryrun: is not a known parameter; did you mean dry_run?"),
        ("dry_run=1&dry_run=0", "query.dry_run: must be given once, got it twice or more"),
    ],
)
def test_a_query_that_may_mean_a_dry_run_changes_nothing(client: Any, view: Any, query: str, rule: str) -> None:
    headers = {"If-Match": "*", "Content-Type": "application/merge-patch+json"}
    answer = client.patch(f"{URL}?{query}", content=b'{"alpha": 0.8}', headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (422, rule)
    assert view.link.run.mailbox.drain() == []


def test_a_dry_run_changes_nothing(client: Any, view: Any) -> None:
    answer = patch(client, {"alpha": 0.8}, dry_run=1).json()
    assert (answer["dry_run"], answer["applied_at_step"]) == (True, None)
    assert answer["changed"] == {"alpha": {"old": 0.9, "new": 0.8}}
    assert (answer["desired"]["alpha"], answer["effective"]["alpha"]) == (0.8, 0.9)
    assert view.link.run.mailbox.drain() == []
    assert client.get(URL).json()["knobs"]["alpha"]["desired"] == view.link.run.knobs["alpha"] == 0.9
    assert patch(client, {"alpha": 2}, dry_run=1).status_code == 422


def test_a_patch_that_changes_nothing_waits_for_no_step_boundary(client: Any, run: Any) -> None:
    run.at_boundary = False
    answer = patch(client, {"alpha": 0.9})
    assert (answer.status_code, answer.json()["changed"], answer.json()["applied_at_step"]) == (200, {}, 0)
    assert run.mailbox.drain() == []


def test_policies_that_cannot_be_switched_to(client: Any) -> None:
    answer = patch(client, {"policy": "fae"})
    assert answer.status_code == 409
    assert "arranges the stream" in answer.json()["detail"]
    assert patch(client, {"policy": "hotline"}).status_code == 200
    assert client.get("/api/v1/status").json()["policy"] == "hotline"


def test_202_then_applied(client: Any, view: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive_rec.service.waiting.REPLY_SECONDS", 0.05)
    run.at_boundary = False
    answer = patch(client, {"alpha": 0.8, "hot_budget_bytes": "1MiB"})
    assert (answer.status_code, answer.json()["applied_at_step"]) == (202, None)
    assert answer.json()["changed"]["hot_budget_bytes"] == {"old": 8 << 20, "new": 1 << 20}
    assert (answer.json()["desired"]["alpha"], answer.json()["effective"]["alpha"]) == (0.8, 0.9)
    shown = client.get(URL).json()
    assert shown["pending"]
    assert (shown["knobs"]["alpha"]["desired"], shown["knobs"]["alpha"]["effective"]) == (0.8, 0.9)
    run.step = 60
    for message in run.boundary():
        view.link.take(message)
    shown = client.get(URL).json()
    assert not shown["pending"]
    assert (shown["knobs"]["alpha"]["effective"], shown["effective_since_step"]) == (0.8, 60)


def test_a_change_that_the_trainer_has_not_checked_is_503_and_not_202(
    client: Any, view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaptive_rec.service.waiting.REPLY_SECONDS", 0.05)
    monkeypatch.setattr(trainer_link, "ACCEPT_SECONDS", 0.05)
    view.link.answers = lambda message: []
    answer = patch(client, {"alpha": 0.8})
    assert answer.status_code == 503
    assert "GET /api/v1/knobs shows whether it was accepted" in answer.json()["detail"]


def test_the_version_of_the_knobs_is_of_the_values_shown(client: Any, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often newer values come while the answer is made."""
    real, count = type(view).knobs.fget, iter(range(1000))

    def newer(self: Any) -> Any:
        knobs = real(self)
        knobs.desired = {**knobs.desired, "min_probe_touches": next(count)}
        return knobs

    monkeypatch.setattr(type(view), "knobs", property(newer))
    answer = client.get(URL)
    shown = {name: knob["desired"] for name, knob in answer.json()["knobs"].items()}
    assert answer.headers["etag"] == f'"{knobs_version(shown)}"'


def test_what_the_trainer_refuses_is_not_desired(client: Any, view: Any) -> None:
    before = client.get(URL).headers["etag"]
    view.link.answers = lambda message: [{"id": message["id"], "status": 409, "error": "not now"}]
    answer = patch(client, {"alpha": 0.8})
    assert (answer.status_code, answer.json()["detail"]) == (409, "not now")
    assert client.get(URL).headers["etag"] == before


def test_a_finished_run_takes_no_changes(finished: Any) -> None:
    assert patch(finished, {"alpha": 0.8}).status_code == 409


def test_schema(client: Any) -> None:
    schema = client.get(f"{URL}/schema").json()
    assert schema["properties"]["policy"]["enum"] == ["hotline", "slipstream"]
    assert schema["additionalProperties"] is False


def test_changes_that_only_the_board_has_are_seen(client: Any, view: Any, run: Any) -> None:
    """Replayed ones, ones made by a program that trains, ones whose message was lost."""
    view.link.knobs.take_report({"desired": {**run.knobs, "decay": 0.5}, "effective": run.knobs, "step": 0})
    run.board("training", run.snapshot(40), knobs={**run.knobs, "alpha": 0.8}, knobs_step=437)
    shown = client.get(URL).json()
    assert {key: shown["knobs"]["alpha"][key] for key in ("effective", "desired")} == {"effective": 0.8, "desired": 0.8}
    assert (shown["knobs"]["decay"]["desired"], shown["pending"], shown["effective_since_step"]) == (0.5, True, 437)
    run.board("training", run.snapshot(40), knobs={**run.knobs, "policy": "hotline", "decay": 0.5}, knobs_step=440)
    assert client.get("/api/v1/status").json()["policy"] == "hotline"
    shown = client.get(URL).json()
    assert (shown["knobs"]["alpha"]["desired"], shown["pending"], shown["effective_since_step"]) == (0.9, False, 440)


def test_the_newest_of_board_and_link_counts(view: Any, run: Any) -> None:
    newer, older = {**run.knobs, "alpha": 0.8}, {**run.knobs, "alpha": 0.7}
    run.board("training", None, knobs=newer, knobs_step=60)
    assert view.knobs.effective == newer
    view.link.knobs.take_report({"desired": {**older, "decay": 0.5}, "effective": older, "step": 40})  # late
    assert (view.knobs.effective, view.knobs.effective_since_step) == (newer, 60)
    assert view.knobs.desired == {**newer, "decay": 0.5}
    view.link.knobs.take_report({"desired": older, "effective": older, "step": 80})
    run.board("training", None, knobs=newer, knobs_step=60)
    assert (view.knobs.effective, view.knobs.effective_since_step) == (older, 80)


def test_of_two_changes_at_one_step_the_later_one_counts(view: Any, run: Any) -> None:
    """The board of the first one is read after the link's report of the second."""
    first, second = {**run.knobs, "alpha": 0.8}, {**run.knobs, "alpha": 0.7}
    run.board("training", None, knobs=first, knobs_step=60, knob_changes=1)
    view.link.knobs.take_report({"desired": second, "effective": second, "step": 60, "changes": 2})
    assert (view.knobs.desired, view.knobs.effective) == (second, second)
    run.board("training", None, knobs=second, knobs_step=60, knob_changes=2)
    assert view.knobs.desired == second
    third = {**run.knobs, "alpha": 0.6}
    run.board("training", None, knobs=third, knobs_step=60, knob_changes=3)
    assert (view.knobs.desired, view.knobs.effective) == (third, third)


def test_no_update_is_lost(view: Any) -> None:
    """Many clients add to one knob, reading and writing as they like; the trainer answers late."""
    from httpx2 import ASGITransport, AsyncClient

    from adaptive_rec.service.app import create_app
    from adaptive_rec.service.security import RequestLimits, Security

    limits = RequestLimits(reads_per_second=1e6, reads_burst=1e6, writes_per_second=1e6, writes_burst=1e6)
    app = create_app(view, Security("c", "r", "127.0.0.1", 8470, ("127.0.0.1",), limits))
    clients, rounds = 8, 10

    async def add_up(http: AsyncClient) -> None:
        for _ in range(rounds):
            status = 412
            while status == 412:
                seen = await http.get(URL)
                new = seen.json()["knobs"]["reclassify_every"]["desired"] + 1
                answer = await http.patch(
                    URL, json={"reclassify_every": new}, headers={"If-Match": seen.headers["etag"]}
                )
                status = answer.status_code
            assert status == 200

    async def all_at_once() -> None:
        headers = {"Authorization": "Bearer c"}
        async with AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1:8470", headers=headers) as http:
            await asyncio.gather(*(add_up(http) for _ in range(clients)))

    asyncio.run(all_at_once())
    assert view.knobs.desired["reclassify_every"] == 100 + clients * rounds
    assert view.link.run.knobs["reclassify_every"] == 100 + clients * rounds


def undo(client: Any, **query: Any) -> Any:
    return client.post(f"{URL}/undo", params=query)


def last_event(client: Any) -> Any:
    return client.get("/api/v1/events", params={"kind": "knobs", "limit": 1}).json()["events"][0]


def test_changes_are_undone_one_after_the_other_with_their_reason(client: Any, view: Any) -> None:
    assert undo(client).status_code == 409
    patch(client, {"alpha": 0.8, "decay": 0.5}, why="it is slow")
    assert last_event(client)["details"]["why"] == "it is slow"
    first = last_event(client)["id"]
    patch(client, {"alpha": 0.7})
    second = last_event(client)["id"]
    assert undo(client, dry_run=1).json()["changed"] == {"alpha": {"old": 0.7, "new": 0.8}}
    assert undo(client, why="no help").json()["changed"] == {"alpha": {"old": 0.7, "new": 0.8}}
    assert last_event(client)["details"] | {"changed": 0} == {"changed": 0, "why": "no help", "undoes": second}
    assert undo(client).json()["changed"] == {"alpha": {"old": 0.8, "new": 0.9}, "decay": {"old": 0.5, "new": 0.6}}
    assert last_event(client)["details"]["undoes"] == first
    assert view.link.run.knobs == Knobs().model_dump()
    assert undo(client).json()["detail"] == "there is no change of knobs left to undo"


def test_a_change_is_undone_only_while_its_knobs_are_as_it_left_them(client: Any, view: Any) -> None:
    patch(client, {"alpha": 0.8})
    first = last_event(client)["id"]
    patch(client, {"alpha": 0.7})
    refused = undo(client, event=first)
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        f"event {first} cannot be undone, as its knobs have changed since: alpha",
    )
    patch(client, {"decay": 0.5})
    assert undo(client, event=first + 1).json()["changed"] == {"alpha": {"old": 0.7, "new": 0.8}}
    assert undo(client, event=first).json()["changed"] == {"alpha": {"old": 0.8, "new": 0.9}}
    assert view.link.run.knobs["decay"] == 0.5
    for wrong in (999, last_event(client)["id"]):  # no event, and an undo
        assert undo(client, event=wrong).status_code == 404


def test_what_a_client_says_of_a_change_is_bounded(client: Any) -> None:
    assert patch(client, {"alpha": 0.8}, why="x" * 501).status_code == 422
    assert undo(client, event=2**60).status_code == 422
    assert undo(client, event=0).status_code == 422


def journalled(run: Any, knob: str, old: float, new: float, **note: Any) -> None:
    """A change of a knob in the journal alone."""
    run.event("knobs", changed={knob: {"old": old, "new": new}}, **note)


def test_changes_that_a_resumed_run_lost_are_not_undone(client: Any, run: Any) -> None:
    run.event("started")
    patch(client, {"alpha": 0.8})
    first = last_event(client)["id"]
    run.event("saving", checkpoint="step-000000010")
    journalled(run, "decay", 0.6, 0.5)
    lost = last_event(client)["id"]
    journalled(run, "alpha", 0.8, 0.9, undoes=first)
    run.event("started", checkpoint="step-000000010")
    assert undo(client, event=lost).status_code == 404
    assert undo(client).json()["changed"] == {"alpha": {"old": 0.8, "new": 0.9}}
    run.event("started")
    assert undo(client).status_code == 409, "the run has started from its beginning"


def test_changes_that_were_undone_in_a_replayed_run_are_found_by_their_values(client: Any, run: Any) -> None:
    """Events of a replay have numbers of their own."""
    patch(client, {"alpha": 0.8})
    journalled(run, "decay", 0.6, 0.5)
    journalled(run, "decay", 0.5, 0.6, undoes=1000)
    assert undo(client).json()["changed"] == {"alpha": {"old": 0.8, "new": 0.9}}


def test_an_undo_beside_another_change_names_what_happened(
    client: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(client, {"alpha": 0.8})
    taken = run.patches.take
    monkeypatch.setattr(
        run.patches, "take", lambda message, answer: taken({**message, "versions": ["another"]}, answer)
    )
    refused = undo(client)
    assert refused.status_code == 409
    assert "the knobs have changed while this undo was under way" in refused.json()["detail"]
