"""Rules by which model providers refuse requests: one JSON file for each provider, and who reads them.

A rule says where it looks (``at``), what must hold there (``check``), when it is asked at all (``when``, ``models``),
and how the provider refuses: status, type, code and words. Each has its source, and how sure it is. The rules of the
files that a file is ``like`` hold as well, ``without`` those that it names.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field

from perdure.contracts.values import JsonValue, Value
from perdure.testing.rules.checks import OF_ALL, OF_VALUES, Breach, Holds
from perdure.testing.rules.conversations import FUNCTIONS
from perdure.testing.rules.paths import Body, Match, bracketed, dotted, in_camel_case
from perdure.testing.rules.schemas import dialect

Check = Mapping[str, Any]


class Condition(Value):
    """When a rule is asked: something is there (``has``), is not there (``lacks``), or holds ``at`` a path.

    Attributes:
        has: A path with a value that is neither null nor empty.
        lacks: A path without one.
        at: A path, of whose values one must pass ``check``.
        check: A check of single values.
        unless: Whether the condition is that none passes.
    """

    has: str | None = None
    lacks: str | None = None
    at: str | None = None
    check: Check = Field(default_factory=dict)
    unless: bool = False


class Rule(Value):
    """A row of a rule file.

    Attributes:
        id: Its name, which a refusal tells.
        rule: What the provider wants, in a sentence.
        at: Paths of the values that ``check`` looks at.
        check: Checks by name, with their limits; ``function`` names one of ``conversations``.
        when: All must be so, or the rule is not asked.
        models: A regular expression; the rule holds for models in whose name it is found.
        status: Of the refusal.
        type: Of the error object, and likewise ``code``, where the provider has them.
        words: Of the refusal; ``{at}`` and ``{dots}`` are the place, ``{what}`` what is there, ``{model}`` the model.
        source: Where the rule was read, or who was refused.
        sure: How sure it is: documented, or attested by so many.
        since: When, or from which version on, as far as it is known.
    """

    id: str
    rule: str
    at: str | tuple[str, ...] = ()
    check: Check
    when: tuple[Condition, ...] = ()
    models: str | None = None
    status: int = 400
    type: str | None = None
    code: str | None = None
    words: str
    source: str
    sure: str
    since: str = ""


class RuleFile(Value):
    """A provider's rules.

    Attributes:
        name: The provider's, as people write it.
        wire: The wire that it speaks.
        read: The day on which the sources were read.
        like: Files whose rules hold here too.
        without: Ids of such rules that do not.
        type: The usual type of its errors.
        bodies: Bodies of refusals by status, ``*`` of any other; ``$message``, ``$type``, ``$code`` are filled in.
        headers: Further headers of a refusal.
        rules: In the order in which they are asked.
    """

    name: str
    wire: Literal["chat", "messages", "gemini", "converse", "responses"]
    read: date
    like: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    type: str = "invalid_request_error"
    bodies: Mapping[str, JsonValue] = {}
    headers: Mapping[str, str] = {}
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Refusal:
    """A provider's refusal of a request.

    Attributes:
        provider: The provider's name.
        rule: Id of the rule.
        reason: The rule in a sentence.
        status: Of the reply, likewise ``body`` and ``headers``.
    """

    provider: str
    rule: str
    reason: str
    status: int
    body: JsonValue
    headers: Mapping[str, str]

    @property
    def sentence(self) -> str:
        """Who refuses, by which rule, and why."""
        return f"{self.provider} refuses this request by rule {self.rule}: {self.reason}"


class Rulebook:
    """The rules of one provider, ready to be asked."""

    def __init__(self, file: RuleFile, rules: Sequence[Rule]) -> None:
        self.file = file
        self.rules = rules
        self._asked = [(rule, _keys_of(rule), _pattern_of(rule.models), _breaches(rule)) for rule in rules]

    def refuse(self, body: Mapping[str, JsonValue], model: str = "") -> Refusal | None:
        """The refusal of a request by the first rule that it breaks; None if it breaks none."""
        given = in_camel_case(dict(body)) if self.file.wire == "gemini" else None
        looked_at = Body(given if isinstance(given, dict) else body, model or str(body.get("model", "")))
        for rule, keys, concerns, breaches in self._asked:
            if not keys.isdisjoint(looked_at.body) and concerns(looked_at.model):
                broken = next(breaches(looked_at), None)
                if broken is not None:
                    return self._refusal(rule, broken, looked_at.model)
        return None

    def _refusal(self, rule: Rule, broken: Breach, model: str) -> Refusal:
        places = {"at": bracketed(broken.place), "dots": dotted(broken.place)}
        words = rule.words.format(**places, what=broken.what[:200], model=model)
        told = f"{words} ({self.file.name} refuses this request by rule {rule.id}: {rule.rule})"
        filled = {"$message": told, "$type": rule.type or self.file.type, "$code": rule.code, "$status": rule.status}
        shape = self.file.bodies.get(str(rule.status), self.file.bodies.get("*"))
        return Refusal(self.file.name, rule.id, rule.rule, rule.status, _fill(shape, filled), self.file.headers)


@cache
def rulebook(provider: str) -> Rulebook:
    """The rules of a provider, by the name of its file.

    Raises:
        ValueError: There are no rules of this provider.
    """
    file = _read(provider)
    shared = [rule for other in file.like for rule in rulebook(other).rules if rule.id not in file.without]
    return Rulebook(file, [*shared, *file.rules])


@cache
def providers() -> tuple[str, ...]:
    """The names of all rule files."""
    folder = resources.files(__name__)
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def provider_of(prefix: str) -> str:
    """The rule file of a model's prefix: a server of the chat wire that has none of its own is taken as any such."""
    named = {"hosted_vllm": "vllm", "bedrock_converse": "bedrock"}.get(prefix, prefix)
    return named if named in providers() else "chat"


def rules_at(url: str, chat: str = "openai") -> tuple[str, str]:
    """The rule file that a request at a URL is judged by, and the model that its path names.

    Args:
        url: The URL, or its path.
        chat: The rule file of the chat wire, which many providers speak.
    """
    path = unquote(urlsplit(url).path)
    last = path.rpartition("/")[2]
    if "generateContent" in last.replace("streamGenerate", "generate"):
        return "gemini", last.partition(":")[0]
    if last in {"converse", "converse-stream"}:
        return "bedrock", path.rstrip("/").rpartition("/")[0].rpartition("/model/")[2]
    if last == "responses":
        return "openai_responses", ""
    return ("anthropic", "") if last == "messages" else (chat, "")


def _read(provider: str) -> RuleFile:
    if provider not in providers():
        msg = f"there are no rules of {provider!r}; there are those of {', '.join(providers())}"
        raise ValueError(msg)
    return RuleFile.model_validate_json(resources.files(__name__).joinpath(f"{provider}.json").read_bytes())


def _keys_of(rule: Rule) -> frozenset[str]:
    """The keys of which a body needs one to be asked by a rule; most rules cost nothing then."""
    paths = (rule.at,) if isinstance(rule.at, str) else rule.at
    keys = frozenset(path.partition(".")[0].partition("[")[0] for path in paths)
    return keys if keys and not keys & {"$", "@keys"} else _ALWAYS


_ALWAYS = frozenset({"messages", "contents", "input", "model"})
"""Keys of which each body has one."""


def _pattern_of(models: str | None) -> Callable[[str], bool]:
    if models is None:
        return lambda _: True
    found = re.compile(models).search
    return lambda model: found(model) is not None


def _breaches(rule: Rule) -> Callable[[Body], Iterator[Breach]]:
    """The search for the places that break a rule, compiled once."""
    conditions = [_holds_of(condition) for condition in rule.when]
    paths = (rule.at,) if isinstance(rule.at, str) else rule.at
    function = FUNCTIONS[rule.check["function"]] if "function" in rule.check else None
    of_values = _checks_of_values(rule.check)
    of_all = [(OF_ALL[name], limit) for name, limit in rule.check.items() if name in OF_ALL]

    def find(body: Body) -> Iterator[Breach]:
        if not all(holds(body) for holds in conditions):
            return
        if function is not None:
            yield from function(body)
        matches: list[Match] = [match for path in paths for match in body.find(path)]
        for check in of_values:
            for place, value in matches:
                what = check(value)
                if what is not None:
                    yield Breach(place, what)
        for check_all, limit in of_all:
            yield from check_all(matches, limit, body)

    return find


def _checks_of_values(check: Check) -> list[Holds]:
    made = [OF_VALUES[name](limit) for name, limit in check.items() if name in OF_VALUES]
    schemas = [dialect(said) for name, said in check.items() if name == "schema"]
    strange = check.keys() - OF_VALUES.keys() - OF_ALL.keys() - {"schema", "function"}
    if strange:
        msg = f"no checks: {', '.join(sorted(strange))}"
        raise ValueError(msg)
    return [*made, *schemas]


def _holds_of(condition: Condition) -> Callable[[Body], bool]:
    if condition.has is not None:
        there = condition.has
        return lambda body: any(value not in _NOTHING for _, value in body.find(there))
    if condition.lacks is not None:
        away = condition.lacks
        return lambda body: all(value in _NOTHING for _, value in body.find(away))
    at, checks = condition.at or "", _checks_of_values(condition.check)
    wanted = not condition.unless
    return lambda body: wanted is any(all(check(value) is None for check in checks) for _, value in body.find(at))


_NOTHING: tuple[JsonValue, ...] = (None, [], {}, "")


def _fill(shape: JsonValue, filled: Mapping[str, JsonValue]) -> JsonValue:
    """A body with its texts in place."""
    if isinstance(shape, str):
        return filled.get(shape, shape)
    if isinstance(shape, dict):
        return {name: _fill(part, filled) for name, part in shape.items()}
    return [_fill(part, filled) for part in shape] if isinstance(shape, list) else shape
