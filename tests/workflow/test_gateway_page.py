"""The gateway's page without a browser: its files, their headers, the log-in by a cookie, and who is logged in."""

import pytest

from perdure.contracts.errors import REASONS
from tests.gateway import gateway, token_lines
from tests.house import House

pytestmark = pytest.mark.deep

TOKENS, MADE = token_lines(ann=("acme", "read,approve"), bob=("other", "admin"))
SCRIPTS = ("app.js", "fold.js", "vendor/htm-preact-standalone.module.js")


async def test_the_page_and_its_files_are_served_with_a_strict_policy(house: House) -> None:
    async with gateway(house) as door:
        for path in ("/ui", "/ui/sessions/job-1", "/ui/errors"):
            page = await door.http.get(path)
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert "<script>" not in page.text
            assert "style=" not in page.text
        for name in SCRIPTS:
            found = await door.http.get(f"/ui/static/{name}")
            assert (found.status_code, found.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
            again = await door.http.get(f"/ui/static/{name}", headers={"If-None-Match": found.headers["etag"]})
            assert again.status_code == 304
        reasons = (await door.http.get("/ui/reasons.json")).json()
        assert {reason["code"] for reason in reasons} == {code.value for code in REASONS}


@pytest.mark.parametrize("path", ["nothing.js", "../app.py", "%2e%2e/app.py", "vendor", "index.html", ""])
async def test_nothing_else_is_served(house: House, path: str) -> None:
    async with gateway(house) as door:
        found = await door.http.get(f"/ui/static/{path}")
        assert (found.status_code, found.json()["code"]) == (404, "request.not_found")


async def test_a_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(house: House) -> None:
    async with gateway(house, gateway_tokens=TOKENS) as door:
        http = door.http
        assert (await http.get("/ui")).status_code == 200
        assert (await http.get("/v1/whoami")).status_code == 401
        entered = await http.post("/ui/login", json={"token": MADE["ann"]})
        assert (entered.status_code, entered.content) == (204, b"")
        kept = entered.headers["set-cookie"].lower()
        assert all(word in kept for word in ("httponly", "samesite=strict", "path=/", "max-age="))
        assert "secure" not in kept  # loopback has no TLS
        who = (await http.get("/v1/whoami")).json()
        assert (who["name"], who["tenant"], who["scopes"]) == ("ann", "acme", ["approve", "read"])
        foreign = {"Origin": "https://evil.example"}
        refused = await http.post("/v1/sessions/job/cancel", json={}, headers=foreign)
        assert (refused.status_code, refused.json()["code"]) == (403, "request.foreign_origin")
        own = await http.post("/v1/sessions/job/cancel", json={}, headers={"Origin": door.url})
        assert own.json()["code"] == "request.forbidden"  # ann may not cancel
        assert (await http.post("/ui/logout")).status_code == 204
        assert (await http.get("/v1/whoami")).status_code == 401


async def test_away_from_this_machine_the_cookie_goes_over_tls_only(house: House) -> None:
    async with gateway(house, gateway_tokens=TOKENS) as door:
        entered = await door.http.post("/ui/login", json={"token": MADE["ann"]}, headers={"Host": "jobs.example"})
        assert "secure" in entered.headers["set-cookie"].lower()


async def test_without_tokens_nobody_logs_in(house: House) -> None:
    async with gateway(house) as door:
        who = (await door.http.get("/v1/whoami")).json()
        assert (who["name"], who["logged_in"], "admin" in who["scopes"]) == ("local", False, True)
        refused = await door.http.post("/ui/login", json={"token": "any"})
        assert (refused.status_code, refused.json()["detail"]) == (401, "no token is needed here")


async def test_the_way_to_the_temporal_ui_is_told_if_it_is_known(house: House) -> None:
    async with gateway(house, ui_url="https://temporal.example/") as door:
        who = (await door.http.get("/v1/whoami")).json()
        assert who["temporal_ui"] == "https://temporal.example/namespaces/default/workflows"
