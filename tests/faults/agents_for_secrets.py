"""An agent whose tools handle secrets, and drop them wherever a careless author would."""

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

from perdure import Agent, RetryPolicy, Secret, tool
from perdure.agents.context import ToolContext
from perdure.agents.tool import Tool
from perdure.contracts.values import JsonValue

logger = logging.getLogger("vault")


class VaultError(Exception):
    """Keeps what it was refused with in its arguments, and says all of it."""


def _refuse(*refused: object) -> None:
    """Raise from an error of the network, whose request holds the key."""
    try:
        headers = {"authorization": f"Bearer {os.environ['PLANTED_BEARER']}"}
        request = httpx.Request("GET", f"https://user:{os.environ['PLANTED_URL']}@vault.test", headers=headers)
        msg = f"refused: {request.url} {request.headers.raw!r} {request.headers['authorization']}"
        raise ConnectionError(msg, request)  # noqa: TRY301 - the chain is what matters
    except ConnectionError as error:
        raise VaultError(*refused, str(error)) from error


@tool(masked=["pin"])
def login(  # noqa: PLR0913 - one argument for each kind
    password: str,
    pin: str,
    number: int,
    argv: list[str],
    command: str,
    url: str,
    script: str,
    options: dict[str, Any],
) -> str:
    """Log in, in vain."""
    logger.debug("login with %s", password, extra={"api_key": pin, "note": f"token={options['auth_token']}"})
    try:
        raise KeyError(options)  # noqa: TRY301 - the chain is what matters
    except KeyError:
        # The parts alone, as a library would repeat them.
        words = [word for text in (*argv, command) for word in text.replace("=", " ").replace("@", " ").split()]
        _refuse(
            password, pin, number, options, options["password"], options["auth"][0]["password"], url, script, *words
        )
    return ""


@tool
def found() -> str:
    """Give what nobody knows to be a secret."""
    return "ghp_" + "f" * 36


@tool
def hard_coded() -> str:
    """Fail in a line that holds a key."""
    raise VaultError("sk-hard-28coded0key")


@tool
def keep(password: str, note: str) -> str:
    """Work, and say nothing."""
    logger.info("kept %s", password)
    return f"kept {password}"


@tool
def hold(context: ToolContext, password: str) -> str:
    """Run until the turn is cancelled."""
    Path(os.environ["HELD"]).touch()
    context.wait(600)
    return password


@tool
def environment(form: str) -> JsonValue:
    """Give what the process knows, as text or as JSON."""
    names = ("OPENAI_API_KEY", "VAULT_TOKEN", "ODD_SECRET", "DB_PASS", "MY_PAT", "HTTPS_PROXY")
    known: dict[str, JsonValue] = {name: os.environ[name] for name in names}
    known["DECODED"] = unquote(os.environ["HTTPS_PROXY"])
    return "\n".join(f"{name}={value}" for name, value in known.items()) if form == "text" else [known]


@tool
def dump() -> str:
    """Write more than the conversation takes."""
    return "x" * 20_000 + os.environ["VAULT_TOKEN"] + "y" * 20_000


@tool(needs={"held": Secret("PLANTED_NEED")})
def borrow(fail: bool, held: str) -> JsonValue:
    """Use what the worker holds, and tell everybody."""
    logger.info("borrowed %s", held, extra={"note": held})
    if fail:
        raise VaultError(held)
    return {"held": held, "lines": [f"x={held}"]}


TOOLS: tuple[Tool[..., Any], ...] = (login, keep, hold, environment, dump, found, hard_coded, borrow)
RETRY = RetryPolicy(max_retries=1, base=timedelta(milliseconds=10), jitter=timedelta(0))
WAITING = RETRY.model_copy(update={"base": timedelta(minutes=4), "max_time": timedelta(minutes=10)})

careless = Agent(name="careless", model="openai/scripted", tools=TOOLS, on_tool_error="feed_back", retry=RETRY)
strict = Agent(name="strict", model="openai/scripted", tools=TOOLS, retry=RETRY)
waiting = Agent(name="waiting", model="openai/scripted", retry=WAITING)
told = Agent(name="told", model="openai/scripted", retry=RETRY.model_copy(update={"on_retry": "tell_model"}))
