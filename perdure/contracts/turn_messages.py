"""Messages of webhooks about a turn: where to look, without any content.

They are made of the log alone, so that whoever makes one makes the same id and the same bytes.
"""

import json
from collections.abc import Sequence

from perdure.contracts.a2a import describe_push
from perdure.contracts.events import AgentEnd, AgentStart, Envelope, UserInputRequired
from perdure.contracts.turns import RunState
from perdure.contracts.values import JsonValue
from perdure.contracts.webhooks import Notify, Webhook, WebhookEvent, message_body


class TurnMessage:
    """The message of a turn's event, to whichever webhooks are told of it.

    Args:
        event: The kind of event.
        start: The turn's first event.
        events: The event itself; of a wait, the requests that it waits for.

    Attributes:
        id: Id of the message, the same for every webhook.
    """

    def __init__(self, event: WebhookEvent, start: AgentStart, events: Sequence[Envelope]) -> None:
        self._event, self._start, self._events = event, start, events
        last = events[-1]
        self.id = f"{last.session}:{last.turn}:{event}"
        if event is WebhookEvent.WAITING:  # a turn may wait more than once
            self.id += f":{last.seq}"

    def to(self, webhook: Webhook, store: str) -> Notify | None:
        """The delivery to a webhook of the store with that id; None if the webhook is not told of such a turn."""
        last, start = self._events[-1], self._start
        if self._event is WebhookEvent.ENDED and start.delegated_by is not None:
            return None
        if not webhook.wants(agent=start.agent, tenant=start.tenant, session=last.session, turn=last.turn):
            return None
        body = self._describe() if webhook.push is None else json.dumps(describe_push(last), separators=(",", ":"))
        return Notify(webhook=webhook.id, message=self.id, body=body, store=store)

    def _describe(self) -> str:
        last = self._events[-1]
        data: dict[str, JsonValue] = {"session": last.session, "turn": last.turn, "agent": self._start.agent}
        data["seq"] = last.seq
        if isinstance(last.event, AgentEnd):
            data |= {
                "state": RunState.ENDED,
                "stop_reason": last.event.stop_reason,
                "reason_code": last.event.reason_code,
            }
        else:
            asked = [found.event for found in self._events if isinstance(found.event, UserInputRequired)]
            data |= {"state": RunState.WAITING_FOR_INPUT, "stop_reason": None, "reason_code": None}
            data["requests"] = [request.request_id for request in asked]
            data["needs"] = [*sorted({request.needs for request in asked})]
        return message_body(f"turn.{self._event}", last.at, data)
