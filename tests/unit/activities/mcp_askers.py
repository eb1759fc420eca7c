"""An MCP server that asks people something before its tools have a result."""

from typing import Any

from mcp.server.mcpserver import Context, MCPServer, RequestStateSecurity
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)

FORM = {"type": "object", "properties": {"colour": {"type": "string", "pattern": "(a+)+$"}}, "required": ["colour"]}
KEY = "a key that outlives the process of the server"


def form(message: str, schema: dict[str, Any]) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


class Asker:
    """Notes of what the server was told, and a server that can be made anew, as after a restart."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.said: list[dict[str, Any]] = []

    def server(self) -> MCPServer:
        server = MCPServer("asker", request_state_security=RequestStateSecurity(keys=[KEY], ttl=1e9))

        @server.tool()
        async def paint(what: str, ctx: Context) -> str | InputRequiredResult:
            self.calls.append(what)
            if ctx.input_responses is None:
                return InputRequiredResult(
                    input_requests={"which": form("Which colour?", FORM)}, request_state=f"painting {what}"
                )
            answer = ctx.input_responses["which"]
            assert isinstance(answer, ElicitResult)
            self.said.append({"action": answer.action, "content": answer.content, "state": ctx.request_state})
            if answer.action != "accept":
                return f"not painted: {answer.action}"
            return f"{what} is {(answer.content or {})['colour']}"

        @server.tool()
        async def twice(ctx: Context) -> str | InputRequiredResult:
            answers = ctx.input_responses
            self.calls.append(f"twice {ctx.request_state}")
            if answers is None:
                return InputRequiredResult(input_requests={"a": form("First?", FORM)}, request_state="1")
            (answer,) = answers.values()
            assert isinstance(answer, ElicitResult)
            colour = str((answer.content or {})["colour"])
            if ctx.request_state == "1":
                return InputRequiredResult(input_requests={"b": form("Second?", FORM)}, request_state=colour)
            return f"{ctx.request_state}, then {colour}"

        @server.tool()
        async def sign(ctx: Context) -> str | InputRequiredResult:
            if ctx.input_responses is None:
                page = ElicitRequestURLParams(message="Sign the paper", url="https://sign.example/7")
                more = form("Which size?", {"type": "object", "properties": {"size": {"type": "integer"}}})
                colour = form("Which colour?", FORM)
                return InputRequiredResult(input_requests={"p": ElicitRequest(params=page), "s": more, "c": colour})
            said = {
                key: answer.model_dump(include={"action", "content"}) for key, answer in ctx.input_responses.items()
            }
            self.said.append(said)
            return "signed"

        @server.tool()
        async def patient(ctx: Context) -> str | InputRequiredResult:
            """Has a result once it was asked three times."""
            times = int(ctx.request_state or "0")
            return f"asked {times} times" if times == 3 else InputRequiredResult(request_state=str(times + 1))

        return server
