"""Running work of a turn, and its cost: by a table that the gateway's page reads too.

A rule says what an event does. ``model`` is what the model does from then on; null is nothing. ``opens`` and ``closes``
are about one thing of a kind, by the field that has its id. What has closed stays closed: a start may be written late,
even behind the end of its turn.
"""

import json
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.resources import files
from typing import Final, TypedDict

from perdure.contracts.budgets import Usage
from perdure.contracts.events import CompactionEvent, Envelope


class Rule(TypedDict, total=False):
    """Effect of an event; each thing is named by its kind and the field that has its id."""

    turn: str
    model: str | None
    pays: bool
    opens: tuple[str, str]
    closes: tuple[str, str]


_SCRIPT = files("perdure.gateway") / "ui" / "rules.js"

RULES: Final[dict[str, Rule]] = json.loads(_SCRIPT.read_text(encoding="utf-8").removeprefix("export default "))
"""By the type of an event; some have a rule for one of its states."""

BESIDE_THE_MODEL = ("tools", "delegates")


@dataclass
class Activity:
    """The activity of a turn, as far as its events tell; ``perdure/gateway/ui/activity.js`` is the same for the page.

    Attributes:
        model: What the model does, and the event that says so.
        open: The event that opened each thing that is open, by its kind and id.
    """

    model: tuple[str, Envelope] | None = None
    open: dict[str, Envelope] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    cost: Decimal = Decimal(0)
    _since: int = 0  # the first turn that may open anything
    _closed: set[str] = field(default_factory=set)

    def note(self, envelope: Envelope) -> None:
        """Take an event into account."""
        event = envelope.event
        state = f" {event.compaction_status}" if isinstance(event, CompactionEvent) else ""
        rule = RULES.get(f"{event.type}{state}") or RULES.get(event.type) or Rule()
        is_late = envelope.turn < self._since
        if (turn := rule.get("turn")) is not None:
            self.model = None
            self.open.clear()
            self._since = envelope.turn + (turn == "ends")
            if turn == "begins":
                self.usage, self.cost = Usage(), Decimal(0)
                self._closed.clear()
        if "model" in rule and not is_late:
            self.model = (rule["model"], envelope) if rule["model"] is not None else None
        if rule.get("pays"):
            self.usage = self.usage.plus(getattr(event, "usage", None) or Usage())
            self.cost += getattr(event, "cost_usd", None) or 0
        if "opens" in rule and not is_late and (key := _key(rule["opens"], envelope)) not in self._closed:
            self.open.setdefault(key, envelope)
        if "closes" in rule:
            key = _key(rule["closes"], envelope)
            self.open.pop(key, None)
            self._closed.add(key)

    @property
    def tokens(self) -> int:
        """Tokens that are paid."""
        return self.usage.total_tokens

    def of(self, kind: str) -> list[Envelope]:
        """The events that opened what is open of a kind."""
        return [envelope for key, envelope in self.open.items() if key.startswith(f"{kind} ")]

    @property
    def kind(self) -> str | None:
        """Kind of the open work to tell of: people, what the model does, tools, delegates; None without any."""
        if self.of("people"):
            return "people"
        if self.model is not None:
            return self.model[0]
        return next((kind for kind in BESIDE_THE_MODEL if self.of(kind)), None)


def _key(named: tuple[str, str], envelope: Envelope) -> str:
    kind, name = named
    return f"{kind} {getattr(envelope.event, name)}"
