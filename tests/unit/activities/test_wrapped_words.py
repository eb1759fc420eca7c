"""What litellm writes around a provider's words is taken off again, whichever provider and status it is."""

import ast
import contextlib
import inspect
import io
from collections.abc import Iterator

import httpx
import litellm
import pytest
from litellm.exceptions import APIError
from litellm.litellm_core_utils import exception_mapping_utils
from litellm.llms.base_llm.chat.transformation import BaseLLMException

from perdure.activities.models.failures import facts_of
from tests.unit.activities.calls import NOW

WORDS = "the words of the provider"
PROVIDERS = sorted({str(getattr(provider, "value", provider)) for provider in litellm.provider_list})
ADVICE = ("This can happen due to missing AZURE_API_VERSION", "Use 'watsonx_text' route instead")
"""Litellm's own words, which help."""

STATUSES = (400, 401, 404, 408, 422, 429, 500, 503)


def raised_by_litellm(provider: str, status: int) -> Exception:
    """What litellm makes of a provider's reply."""
    request = httpx.Request("POST", "https://models.example/v1")
    reply = httpx.Response(status, request=request, text=WORDS)
    original = BaseLLMException(status_code=status, message=WORDS, request=request, response=reply)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints an advertisement
            litellm.exception_type(model="m", original_exception=original, custom_llm_provider=provider)
    except Exception as error:  # noqa: BLE001 - of any class
        error.__cause__ = error.__context__ = None  # the text alone, as of an exception that lost its reply
        return error
    pytest.fail(f"{provider} {status}: litellm raises nothing")


@pytest.mark.parametrize("status", STATUSES)
def test_the_words_of_each_provider_come_without_litellms(status: int) -> None:
    texts = {provider: facts_of(raised_by_litellm(provider, status), NOW).text for provider in PROVIDERS}
    assert len(texts) > 100
    assert {provider: text for provider, text in texts.items() if text != WORDS} == {}


def prefixes() -> Iterator[str]:
    """The texts that litellm's mapping writes before what a provider said."""
    for node in ast.walk(ast.parse(inspect.getsource(exception_mapping_utils))):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        lead = ""
        if parts and isinstance(parts[0], ast.FormattedValue):  # the provider's name, with or without "Exception"
            said = parts[1].value if len(parts) > 1 and isinstance(parts[1], ast.Constant) else ""
            lead, parts = "Some-provider" if str(said).startswith("Exception") else "Some-providerException", parts[1:]
        if len(parts) > 1 and isinstance(parts[0], ast.Constant) and isinstance(parts[1], ast.FormattedValue):
            text = lead + str(parts[0].value)
            if (
                ("Exception" in text or "Error" in text)
                and text.endswith((" - ", ": "))
                and not any(advice in text for advice in ADVICE)
            ):
                yield text


@pytest.mark.parametrize("prefix", sorted(text for text in set(prefixes()) if not any(said in text for said in ADVICE)))
def test_each_text_that_litellm_writes_before_the_words_is_taken_off(prefix: str) -> None:
    error = APIError(500, message=prefix + WORDS, llm_provider="openai", model="m")
    assert facts_of(error, NOW).text == WORDS


@pytest.mark.parametrize(
    "words",
    [
        "Exception handling is not enabled - see the docs",
        "The model o-1 - a preview - is overloaded",
        "Rate limit reached for gpt-4o: try again in 20 s",
        "Validation Error in field x - it must be a number",
        "Unknown Error",
    ],
)
def test_words_of_a_provider_that_look_alike_stay(words: str) -> None:
    assert facts_of(APIError(500, message=words, llm_provider="openai", model="m"), NOW).text == words
