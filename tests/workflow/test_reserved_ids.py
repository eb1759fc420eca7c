"""Ids that perdure derives: no door takes one from a caller for a session that does not exist."""

import asyncio
import re
import subprocess
import sys

import pytest

from perdure import Agent
from perdure.client import ReservedIdError
from perdure.contracts.ids import FORMS, MARK
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import gateway, token_lines
from tests.house import House
from tests.workflow.test_mcp_door import host, refused

AGENT = Agent(name="tester", model="openai/scripted")
BODY = {"agent": "tester", "prompt": "go"}
DERIVED = (
    "bank.helper~d" + "0" * 24,
    "tester~k" + "0" * 32,
    f"nightly~r{'0' * 32}-2026-11-25T08:00:00Z",
    "mine~",
    "knock:nightly-2026-11-25T08:00:00Z",
    "notify:wh_1:bank:1:ended",
    f"notify:wh_1:bank:1:ended~n{'0' * 32}",
    "perdure-retention-2026-11-25T08:00:00Z",
    f"perdure-retention~s{'0' * 32}-2026-11-25T08:00:00Z",
    "perdure:acme/nightly".replace("/", ":"),
    "temporal-sys-scheduler:perdure-retention",
)
"""An id of each form, and of each form as perdure writes it."""


async def test_over_http_an_id_of_a_derived_form_is_refused_with_a_sentence(house: House) -> None:
    """T-03."""
    lines, tokens = token_lines(ann=("acme", "admin"))
    async with ScriptedProvider(Script(replies=(say("2"),))) as provider, house.worker(AGENT):
        house.use(provider)
        async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["ann"]) as ann:
            await ann.post("/v1/sessions", json={**BODY, "session": "hers"})
            await (await house.client.attach("hers", 1)).result()
            for session in DERIVED:
                for path, body in (
                    ("", {**BODY, "session": session}),
                    ("/hers/fork", {"prompt": "x", "into": session}),
                ):
                    refused = await ann.post(f"/v1/sessions{path}", json=body)
                    assert (refused.status_code, refused.json()["code"]) == (422, "request.reserved_id"), refused.text
                    assert "are perdure's own" in refused.json()["detail"]
                    assert await house.store.tenant_of(session) is None
            hidden = {**BODY, "request_id": "delegate:call_1"}
            for path, body in (("", hidden), ("/hers/messages", {"prompt": "x", "request_id": "delegate:call_1"})):
                refused = await ann.post(f"/v1/sessions{path}", json=body)
                assert (refused.status_code, refused.json()["code"]) == (422, "request.reserved_id"), refused.text


async def test_a_session_that_has_a_derived_id_is_named_like_any_other_by_its_tenant(house: House) -> None:
    """And the key finds it again after the store's secret was rotated."""
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    async with ScriptedProvider(lambda _: say("2")) as provider, house.worker(AGENT):
        house.use(provider)
        async with (
            gateway(house, gateway_tokens=lines) as door,
            door.holder(tokens["ann"]) as ann,
            door.holder(tokens["eve"]) as eve,
        ):
            begun = await ann.post("/v1/sessions", json=BODY, headers={"Idempotency-Key": "one"})
            session = begun.json()["session"]
            assert MARK in session
            await (await house.client.attach(session, 1)).result()
            await house.store.rotate_id_secret()
            again = await ann.post("/v1/sessions", json=BODY, headers={"Idempotency-Key": "one"})
            assert (again.status_code, again.json()) == (202, begun.json())
            other = await eve.post("/v1/sessions", json=BODY, headers={"Idempotency-Key": "one"})
            assert (other.status_code, other.json()["session"] == session) == (202, False)
            taken = await eve.post("/v1/sessions", json={**BODY, "session": session})
            assert (taken.status_code, taken.json()["code"]) == (422, "request.reserved_id")
            more = await ann.post("/v1/sessions", json={**BODY, "session": session})
            assert (more.status_code, more.json()["turn"]) == (202, 2)
            assert (await ann.get(f"/v1/sessions/{session}")).status_code == 200
            await (await house.client.attach(session, 2)).result()
            await (await house.client.attach(other.json()["session"], 1)).result()


async def test_the_client_refuses_an_id_of_a_derived_form_and_so_does_a_worker(house: House) -> None:
    """What the client does not send, somebody else can: the turn that a worker opens is refused all the same."""
    async with ScriptedProvider(lambda _: say("2")) as provider, house.worker(AGENT):
        house.use(provider)
        await (await house.client.start("tester", "go", session=house.session)).result()
        for session in DERIVED:
            with pytest.raises(ReservedIdError, match="are perdure's own"):
                await house.client.start("tester", "go", session=session)
            with pytest.raises(ReservedIdError, match="are perdure's own"):
                await house.client.fork(house.session, "go", into=session)
        house.session = DERIVED[0]
        refused = await house.run()
        assert (refused["stop_reason"], refused["reason_code"]) == ("error", "request.reserved_id")
        assert "are perdure's own" in refused["error"]


@pytest.mark.deep
async def test_the_command_and_an_mcp_host_are_refused_in_the_same_words(house: House) -> None:
    async with ScriptedProvider(lambda _: say("2")) as provider, house.worker(AGENT):
        house.use(provider)
        await (await house.client.start("tester", "go", session=house.session)).result()
        async with host() as client:
            for session in DERIVED:
                said = await refused(client, "start", agent="tester", prompt="go", session=session)
                assert "are perdure's own" in said
        command = [sys.executable, "-m", "perdure.cli"]
        for session in DERIVED[:2]:
            for verb in (
                ["run", "tester", "go", "--session", session],
                ["fork", house.session, "go", "--as", session],
            ):
                done = await asyncio.to_thread(
                    subprocess.run, [*command, *verb], capture_output=True, text=True, check=False
                )
                assert (done.returncode, "are perdure's own" in done.stderr) == (2, True), done.stderr


def test_each_form_is_tried() -> None:
    tried = {next(form.pattern for form in FORMS if re.search(form.pattern, session)) for session in DERIVED}
    assert tried == {form.pattern for form in FORMS}
