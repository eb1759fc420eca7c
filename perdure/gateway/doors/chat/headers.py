"""Headers of front ends: which conversation a request is of, who speaks in it, and what is asked beside it.

The operator names them, as the front end can send them. One key stands for all people of a front end: what it says of a
person is its claim, and no login.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from urllib.parse import unquote

from starlette.requests import Request

from perdure.gateway.callers import Caller
from perdure.gateway.doors.responses.settings import refusal
from perdure.settings import Settings

LONGEST = 500
"""Most characters of such a header."""

LONGEST_PERSON = 100

_NAME_CHARACTERS = 80

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\$\{")
_NOTHING = frozenset({"", "new", "none", "null", "undefined"})
"""Values of front ends that have no conversation yet, or no person."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """Contents of a request's headers; each is empty without one.

    Attributes:
        conversation: Id of the front end's conversation.
        person: Name of who speaks.
        task: What is asked beside the conversation, such as a title.
    """

    conversation: str = ""
    person: str = ""
    task: str = ""

    def by(self, caller: Caller) -> Caller:
        """The caller, with the person in its name."""
        return replace(caller, name=f"{caller.name}:{self.person}") if self.person else caller

    def session_for(self, tenant: str, agent: str) -> str | None:
        """The session of the conversation with an agent; None without one.

        It has the conversation's id in its name. The same id of another person, or in another tenant, is another
        session; and so is what another agent is told in it, which front ends ask at the same time.
        """
        if not self.conversation:
            return None
        told = json.dumps([tenant, self.person, self.conversation, agent])
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.conversation)[:_NAME_CHARACTERS]
        return f"chat-{name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def read_headers(request: Request, settings: Settings, model: str) -> Told:
    """Read the headers, by the names that the operator has given them.

    Raises:
        RequestRefusedError: One cannot be used, or nobody says whose a conversation is; or something is asked beside
            one, and no agent is for that.
    """
    conversation = _read(request, settings.chat_conversation_header)
    person = unquote(_read(request, settings.chat_person_header, LONGEST_PERSON))
    task = _read(request, settings.chat_task_header)
    if task and not settings.chat_task_agent:
        why = f"this gateway answers no {task[:100]!r} beside a chat"
        raise refusal(settings.chat_task_header, f"{why}; switch it off, or set PERDURE_CHAT_TASK_AGENT")
    if task or model == settings.chat_task_agent:
        return Told(person=person, task=task)
    if conversation and settings.chat_person_header and not person:
        why = "is missing, so that nobody knows whose the conversation is"
        send = "have the front end send it, or unset PERDURE_CHAT_PERSON_HEADER"
        raise refusal(settings.chat_person_header, f"{why}; {send}")
    return Told(conversation=conversation, person=person)


def _read(request: Request, name: str, longest: int = LONGEST) -> str:
    given = {_decode(value).strip() for value in (request.headers.getlist(name) if name else ())}
    if len(given) > 1:
        raise refusal(name, "is there more than once, with different values; have the front end send one")
    told = next(iter(given), "")
    if len(told) > longest:
        raise refusal(name, f"has {len(told)} characters, the limit is {longest}")
    if not told.isprintable() or _PLACEHOLDER.search(told):
        raise refusal(name, f"{told[:100]!r} is no value but a placeholder that the front end has not filled in")
    return "" if told.lower() in _NOTHING else told


def _decode(value: str) -> str:
    """A header's value; clients send UTF-8, which is read as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
