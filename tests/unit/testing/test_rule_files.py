"""The rules by which providers refuse: each is broken by one request and kept by one like it, and says its source."""

import json
from typing import Any

import pytest

from perdure.testing.rules import providers, rulebook, rules_at
from tests.unit.testing.rule_cases import chat, converse, gemini, messages, responses

CASES: dict[str, dict[str, tuple[Any, Any]]] = {
    "chat": chat.CHAT,
    "openai": chat.OPENAI,
    "azure": chat.AZURE,
    "mistral": chat.MISTRAL,
    "deepseek": chat.DEEPSEEK,
    "groq": chat.GROQ,
    "xai": chat.XAI,
    "vllm": chat.VLLM,
    "anthropic": messages.ANTHROPIC,
    "gemini": gemini.GEMINI,
    "bedrock": converse.BEDROCK,
    "openai_responses": responses.RESPONSES,
}
RULES = [(provider, rule) for provider, cases in CASES.items() for rule in cases]


def refuse(provider: str, body: Any) -> Any:
    """The refusal of a request; the model of Gemini and Bedrock stands in the path, here in a field of its own."""
    model = body.get("model") or body.get("modelId") or ""
    sent = {name: part for name, part in body.items() if provider != "gemini" or name != "model"}
    return rulebook(provider).refuse(json.loads(json.dumps(sent)), model)


@pytest.mark.parametrize(("provider", "rule"), RULES, ids=[f"{provider}-{rule}" for provider, rule in RULES])
def test_a_rule_refuses_what_breaks_it_and_takes_what_keeps_it(provider: str, rule: str) -> None:
    breaks, keeps = CASES[provider][rule]
    kept, refused = refuse(provider, keeps), refuse(provider, breaks)
    assert kept is None, kept.sentence
    assert refused is not None
    assert refused.rule == rule
    told = json.dumps(refused.body)
    assert f"refuses this request by rule {rule}: " in told
    assert refused.reason in json.loads(json.dumps(refused.sentence))


@pytest.mark.parametrize("provider", providers())
def test_each_rule_has_a_case_a_source_and_words(provider: str) -> None:
    file = rulebook(provider).file
    assert [rule.id for rule in file.rules if rule.id not in CASES[provider]] == []
    assert CASES[provider].keys() == {rule.id for rule in file.rules}
    assert len({rule.id for rule in rulebook(provider).rules}) == len(rulebook(provider).rules)
    for rule in file.rules:
        assert rule.source
        assert rule.sure
        assert rule.rule.endswith(".")
        assert 400 <= rule.status < 500


@pytest.mark.parametrize(
    ("provider", "rule", "status", "body"),
    [
        ("openai", "oc.max_tokens", 400, {"error": {"type": "invalid_request_error", "code": "unsupported_parameter"}}),
        ("mistral", "mi.call.id", 400, {"object": "error", "type": "invalid_function_call", "code": "3280"}),
        ("mistral", "mi.unknown", 422, {"object": "error"}),
        ("anthropic", "an.id.form", 400, {"type": "error", "error": {"type": "invalid_request_error"}}),
        ("gemini", "ge.pair.count", 400, {"error": {"code": 400, "status": "INVALID_ARGUMENT"}}),
        ("bedrock", "bc.first", 400, {}),
        ("xai", "xa.stop", 400, {"code": "Client specified an invalid argument"}),
        ("vllm", "vl.tools.empty", 400, {"error": {"type": "BadRequestError", "code": 400}}),
    ],
)
def test_a_refusal_has_the_form_of_its_provider(provider: str, rule: str, status: int, body: Any) -> None:
    refused = refuse(provider, CASES[provider][rule][0])
    assert refused.status == status
    told = {**refused.body, "error": {**refused.body["error"]}} if isinstance(body.get("error"), dict) else refused.body
    for name, value in body.items():
        assert told[name] == value if not isinstance(value, dict) else value.items() <= told[name].items()
    assert ("x-amzn-errortype" in refused.headers) == (provider == "bedrock")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://api.openai.com/v1/chat/completions", ("groq", "")),
        ("https://api.openai.com/v1/responses", ("openai_responses", "")),
        ("https://api.anthropic.com/v1/messages", ("anthropic", "")),
        ("https://x/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse", ("gemini", "gemini-3-pro")),
        ("https://x/v1beta/models/gemini-3-pro:generateContent", ("gemini", "gemini-3-pro")),
        ("https://x/model/a.b-v1%3A0/converse-stream", ("bedrock", "a.b-v1:0")),
    ],
)
def test_the_address_says_whose_rules_a_request_keeps(url: str, told: tuple[str, str]) -> None:
    assert rules_at(url, "groq") == told


def test_rules_of_nobody_are_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(ValueError, match="no rules of 'nobody'; there are those of anthropic, azure"):
        rulebook("nobody")
