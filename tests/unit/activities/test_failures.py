"""Exceptions of any form as facts; ``test_wire_failures.py`` has those of real calls."""

from perdure.activities.models.failures import MAX_TEXT, facts_of
from tests.unit.activities.calls import KEY, NOW


class OddError(Exception):
    """An exception with everything in unexpected forms."""

    status_code = b"500"
    litellm_response_headers = None
    body = "text"


def test_an_exception_of_any_form_has_facts() -> None:
    facts = facts_of(OddError(), NOW)
    assert (facts.status, facts.retry_after_seconds, facts.text) == (None, None, "OddError, without a message")


def test_a_cause_chain_that_is_a_ring_ends() -> None:
    first, second = ValueError("a"), OSError("b")
    first.__cause__, second.__cause__ = second, first
    assert facts_of(first, NOW).causes == ("OSError",)


def test_a_long_text_is_cut_after_it_was_redacted() -> None:
    text = facts_of(ValueError("x" * (MAX_TEXT - 10) + KEY + "y" * 100_000), NOW, {KEY}).text
    assert len(text) == MAX_TEXT
    assert "sk-" not in text


def test_the_text_is_one_line() -> None:
    """Proxies answer with pages of HTML; what is shown of an error is a line, in logs and in the Temporal UI too."""
    assert facts_of(ValueError("<html>\r\n  <h1>502</h1>\n\n</html>"), NOW).text == "<html> <h1>502</h1> </html>"
    assert "\n" not in facts_of(ValueError("x" * 2 * MAX_TEXT), NOW).text
