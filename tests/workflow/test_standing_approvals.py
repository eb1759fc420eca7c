"""Approvals that stand, at every door: given, listed and revoked by client, command line, HTTP and plain Temporal."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.client import RequestRefusedError, UnknownApprovalError, UnknownSessionError
from perdure.client.standing_approvals import ApproveMore
from perdure.testing import Reply, Script, ScriptedProvider, call
from tests.gateway import gateway, token_lines
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, refusal, update, waiting
from tests.workflow.test_people_doors import perdure

TOMORROW = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


def pays(amount: int) -> Reply:
    return call(("pay", {"amount": amount}))


def decisions(house: House) -> dict[str, float]:
    """The input requests and decisions that the last worker has counted."""
    return {
        sample.labels["decision"]: sample.value
        for family in house.registry.collect()
        for sample in family.samples
        if sample.name == "perdure_input_requests_total"
    }


async def test_a_later_call_asks_no_more_until_it_is_revoked(house: House) -> None:
    """S-84: in the next turn, by the next worker, and not in a fork; who gave it and who revoked it is kept."""
    script = Script(replies=(PAY, DONE, pays(8), DONE, pays(9), DONE))
    async with ScriptedProvider(script) as provider:
        house.use(provider)
        client, session = house.client, house.session
        async with house.worker(asker()):
            turn = await client.start("tester", "go", session=session)
            (request,) = await waiting(house)
            given = ApproveMore(always="tool", until=TOMORROW, reason="small sums", digest=request["digest"])
            receipt = await client.approve(session, request["request_id"], by="ann", **given)
            assert receipt.always is not None
            assert (receipt.always.scope, receipt.always.until, receipt.always.reason) == (
                "tool",
                TOMORROW,
                "small sums",
            )
            assert (await turn.result()).stop_reason == "finished"
        async with house.worker(asker()):
            assert (await (await client.send(session, "more")).result()).stop_reason == "finished"
            assert (PAID, decisions(house)) == ([7, 8], {"standing": 1})
            (stands,) = await client.approvals.list(session)
            assert (stands.id, stands.by, stands.reason) == (request["request_id"], "ann", "small sums")
            fork = await client.fork(session, "and in a fork", into=f"{session}-fork")

            async def asked() -> bool:
                return len(await client.inbox(fork.session)) == 1

            await eventually(asked)
            assert await client.approvals.list(fork.session) == ()
            await client.cancel(fork.session)
            revoked = await client.approvals.revoke(session, stands.id, by="bob")
            assert (revoked.revoked_by, await client.approvals.list(session)) == ("bob", ())
            assert await client.approvals.revoke(session, stands.id, by="eve") == revoked
            assert await client.approvals.list(session, ended=True) == (revoked,)
            last = await client.send(session, "again")
            (again,) = await waiting(house)
            assert again["request_id"] != stands.id
            await client.deny(session, again["request_id"], by="ann")
            await last.result()
            with pytest.raises(UnknownApprovalError, match=f"'perdure approvals {session}' lists them"):
                await client.approvals.revoke(session, "call_none", by="bob")
            with pytest.raises(UnknownSessionError):
                await client.approvals.list("nowhere")
            with pytest.raises(RequestRefusedError, match="approval"):
                await client.approvals.revoke(session, "\0", by="bob")
    assert PAID == [7, 8]


async def test_what_it_cannot_mean_is_refused_and_the_turn_waits_on(house: House) -> None:
    """S-84: also for whoever approved this call before in another way; the first approval stands."""
    async with ScriptedProvider(Script(replies=(call(*COLOUR.calls, *PAY.calls), DONE))) as provider:
        house.use(provider)
        async with house.worker(asker()):
            handle = await house.start()
            question, request = await waiting(house, 2)
            this = {"request": request["request_id"], "by": "ann"}
            past = {"always": "tool", "until": "2026-01-01T00:00:00+01:00"}
            assert "until: 2025-12-31T23:00:00+00:00 is over" in await refusal(house, "approve", **this, **past)
            naive = {"always": "tool", "until": "2126-01-01T00:00:00"}
            for wrong, said in (
                ({"always": "session"}, "always"),
                ({"until": TOMORROW.isoformat()}, "add always"),
                ({"reason": "why"}, "add always"),
                (naive, "timezone"),
            ):
                assert said in await refusal(house, "approve", **this, **wrong)
            stale = await refusal(house, "approve", **this, always="tool", digest="0" * 32)
            assert "the arguments of" in stale
            about = {"request": question["request_id"], "by": "ann"}
            assert "is a question and needs an answer" in await refusal(house, "approve", **about, always="tool")
            assert "always" in await refusal(house, "answer", **about, value="red", always="tool")
            first = await update(house, "approve", **this, always="arguments")
            assert first["always"]["arguments"] == '{"amount": 7}'
            assert await update(house, "approve", **this, always="arguments") == first
            assert await update(house, "approve", **this) == first
            other = await refusal(house, "approve", **this, always="tool")
            assert "was approved by ann at" in other
            assert other.endswith("to stand for further calls in another way; that stands")
            await update(house, "answer", **about, value="red")
            await handle.result()
        with pytest.raises(RequestRefusedError, match="in another way; that stands"):
            await house.client.approve(house.session, **this, always="tool")
        assert (await house.client.approve(house.session, **this, always="arguments")).always is not None
        assert len(await house.client.approvals.list(house.session)) == 1


async def test_an_approval_for_one_call_does_not_stand_when_it_is_asked_to_later(house: House) -> None:
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        await update(house, "approve", request=request["request_id"], by="ann")
        await handle.result()
        with pytest.raises(RequestRefusedError, match=r"approved by ann at .* for this call alone; that stands"):
            await house.client.approve(house.session, request["request_id"], by="bob", always="tool")
        assert await house.client.approvals.list(house.session) == ()


@pytest.mark.deep
async def test_the_gateway_and_the_command_line_give_list_and_revoke(house: House) -> None:
    """S-84: with the scopes of replies; another tenant sees and revokes nothing, and an erased session has none."""
    lines, tokens = token_lines(
        ann=("acme", "read,approve"), reader=("acme", "read"), root=("acme", "admin"), eve=("evil", "admin")
    )
    script = Script(replies=(PAY, pays(8), DONE))
    async with (
        ScriptedProvider(script) as provider,
        house.worker(asker()),
        gateway(house, gateway_tokens=lines) as door,
    ):
        house.use(provider)
        session = f"/v1/sessions/{house.session}"
        turn = await house.client.start("tester", "go", session=house.session, tenant="acme")
        (request,) = await waiting(house)
        place = f"{session}/answers/{request['request_id']}"
        async with (
            door.holder(tokens["ann"]) as ann,
            door.holder(tokens["reader"]) as reader,
            door.holder(tokens["root"]) as root,
            door.holder(tokens["eve"]) as eve,
        ):

            async def approve(**body: Any) -> tuple[int, dict[str, Any]]:
                answer = await ann.post(place, json={"action": "approve", **body})
                return answer.status_code, answer.json()

            for wrong in ({"until": TOMORROW.isoformat()}, {"always": "x"}, {"always": "tool", "until": "soon"}):
                assert (await approve(**wrong))[0] == 422
            code, past = await approve(always="tool", until="2026-01-01T00:00:00Z")
            assert (code, "is over" in past["detail"]) == (409, True)
            refused = await ann.post(place, json={"action": "deny", "always": "tool"})
            assert (refused.status_code, "deny takes no always" in refused.json()["detail"]) == (422, True)
            code, receipt = await approve(always="arguments", reason="small", digest=request["digest"])
            assert (code, receipt["always"]["scope"], receipt["by"]) == (200, "arguments", "ann")
            await house.wait_for_event("user_input_required", 2)
            (again,) = await waiting(house)
            code, output, errors = await perdure(
                *("approve", house.session, "--always", "--until", "3d", "--reason", "a while", "--by", "carl")
            )
            assert (code, errors) == (0, "")
            assert "it stands for all calls of the tool in this session until 20" in output
            assert (await turn.result()).stop_reason == "finished"
            listed = (await reader.get(f"{session}/standing-approvals")).json()["items"]
            assert [(item["id"], item["by"], item["scope"]) for item in listed] == [
                (request["request_id"], "ann", "arguments"),
                (again["request_id"], "carl", "tool"),
            ]
            code, output, _ = await perdure("approvals", house.session)
            assert (code, 'pay {"amount": 7}' in output, "a while" in output) == (0, True, True)
            first = f"{session}/standing-approvals/{request['request_id']}"
            assert (await reader.delete(first)).status_code == 403
            assert [
                (await eve.delete(first)).status_code,
                (await eve.get(f"{session}/standing-approvals")).status_code,
            ] == [
                404,
                404,
            ]
            revoked = await ann.delete(first)
            assert (revoked.status_code, revoked.json()["revoked_by"]) == (200, "ann")
            missing = await ann.delete(f"{session}/standing-approvals/call_none")
            assert (missing.status_code, missing.json()["code"]) == (404, "request.unknown_approval")
            code, output, _ = await perdure("revoke", house.session, again["request_id"], "--by", "carl", "--json")
            assert (code, json.loads(output)["revoked_by"]) == (0, "carl")
            code, output, _ = await perdure("approvals", house.session, "--json")
            assert (code, output) == (0, "no approval stands\n" if output else "")
            listed = (await reader.get(f"{session}/standing-approvals?ended=true")).json()["items"]
            assert [item["revoked_by"] for item in listed] == ["ann", "carl"]
            assert (await root.delete(session)).status_code == 204
            assert (await ann.get(f"{session}/standing-approvals")).status_code == 410
        assert await house.store.standing_approvals(house.session, ended=True) == ()
    assert PAID == [7, 8]


@pytest.mark.deep
async def test_an_option_without_always_is_a_mistake() -> None:
    for option in (("--same-arguments",), ("--until", "3d"), ("--reason", "why")):
        code, _, errors = await perdure("approve", "job", *option)
        assert (code, "add --always" in errors) == (2, True)
