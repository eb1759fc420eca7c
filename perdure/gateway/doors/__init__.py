"""Doors: protocols of others beside our own, each on paths of its own, imported only where ``PERDURE_DOORS`` names it.

A door is a pure fold of the log into what its protocol sends, and a map of its requests to the client's verbs. It has
no state, so any replica answers; it starts turns by :func:`perdure.gateway.starts.start_once` alone; the guard looks at
its requests as at our own, and its refusals have the protocol's own form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from fastapi import APIRouter

from perdure.gateway.problems import Form
from perdure.settings import Settings

DOORS: Mapping[str, str] = {
    "a2a": "perdure.gateway.doors.a2a.routes",
    "agui": "perdure.gateway.doors.agui.routes",
    "chat": "perdure.gateway.doors.chat.routes",
    "responses": "perdure.gateway.doors.responses.routes",
}
"""The modules of the doors by their names; each has its ``DOOR``."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """A protocol.

    Attributes:
        prefix: Of its paths, with a slash behind it; they need a token.
        router: Its routes. They are not in the OpenAPI document: the protocol is another's.
        form: Makes the protocol's own answer of a problem.
        check: Checks the settings that are the door's alone; it raises SettingsError.
    """

    prefix: str
    router: APIRouter
    form: Form
    check: Callable[[Settings], object] = id


def open_doors(names: Sequence[str]) -> tuple[Door, ...]:
    """The doors of these names that are the gateway's."""
    found: list[Door] = [import_module(DOORS[name]).DOOR for name in dict.fromkeys(names) if name in DOORS]
    return tuple(found)
