"""Requests as a client of each wire sends them."""

from typing import Any

import httpx

from perdure.testing import ScriptedProvider

KEY = "sk-scripted-0123456789"


async def post(provider: ScriptedProvider, wire: str, **body: Any) -> httpx.Response:
    messages = {"messages": [{"role": "user", "content": "hello"}]}
    async with httpx.AsyncClient(timeout=60) as http:
        if wire == "openai":
            url, headers = f"{provider.url}/chat/completions", {"authorization": f"Bearer {KEY}"}
            return await http.post(url, headers=headers, json={"model": "m", **messages, **body})
        url, headers = f"{provider.anthropic_url}/v1/messages", {"x-api-key": KEY}
        return await http.post(url, headers=headers, json={"model": "m", "max_tokens": 9, **messages, **body})
