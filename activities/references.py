"""``${NAME}`` in settings: what the worker's environment has under that name, so that no definition has to hold it."""

from collections.abc import Mapping

from perdure.contracts.agents import REFERENCE, texts_that_say_where, with_where
from perdure.contracts.values import JsonValue


def names_in(text: str) -> list[str]:
    """The variables that a text refers to."""
    return [str(name) for name in REFERENCE.findall(text)]


def filled(text: str, environment: Mapping[str, str]) -> str:
    """The text with the values of the variables.

    Raises:
        KeyError: One is not set.
    """
    return REFERENCE.sub(lambda found: environment[found[1]], text)


def names_of_call(params: Mapping[str, JsonValue], *, secrets: bool = False) -> list[str]:
    """The variables that the arguments of a model call refer to; of secrets only, if that is asked for."""
    texts = (text for _, text, secret in texts_that_say_where(params) if secret or not secrets)
    return [name for text in texts for name in names_in(text)]


def filled_for_call(params: Mapping[str, JsonValue], environment: Mapping[str, str]) -> dict[str, JsonValue]:
    """The arguments with the values of those variables.

    Raises:
        KeyError: One is not set.
    """
    return with_where(params, lambda text: filled(text, environment))
