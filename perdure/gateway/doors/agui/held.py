"""Messages that a client has: it appends what comes to them, so that a run which it reads again tells only the rest."""

from collections.abc import Iterable, Mapping

from perdure.contracts.values import JsonValue
from perdure.gateway.doors.responses.objects import Item
from perdure.gateway.doors.responses.requests import Object


class Held:
    """Texts and results of a run that the messages of a request hold, as the events of the run come.

    Args:
        messages: The messages, as the client has them.
    """

    def __init__(self, messages: Iterable[Object] = ()) -> None:
        self._texts: dict[JsonValue, str] = {}
        self._results: set[JsonValue] = set()
        for message in messages:
            name, content, calls = message.get("id"), message.get("content"), message.get("toolCalls")
            if not isinstance(name, str):
                continue
            if message.get("role") == "tool":
                self._results.add(name)
            elif isinstance(content, str):
                self._texts[name] = content
            for call in calls if isinstance(calls, list) else []:
                self._texts |= _arguments_of(call)

    def rest_of(self, event: Item) -> Item | None:
        """The event without what the client has of it; None if that is all."""
        match event["type"]:
            case "TEXT_MESSAGE_CONTENT" | "TOOL_CALL_ARGS":
                name, told = event.get("messageId") or event.get("toolCallId"), str(event["delta"])
                held = self._texts.pop(name, "")
                if held.startswith(told):
                    self._texts[name] = held[len(told) :]
                    return None
                return {**event, "delta": told.removeprefix(held)}
            case "TOOL_CALL_RESULT":
                return None if event["messageId"] in self._results else event
            case _:
                return event


def _arguments_of(call: JsonValue) -> Mapping[JsonValue, str]:
    """The arguments of a call, by its id; of one that is none, nothing."""
    told = call if isinstance(call, dict) else {}
    name, function = told.get("id"), told.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return {name: arguments} if isinstance(name, str) and isinstance(arguments, str) else {}
