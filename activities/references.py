"""``${NAME}`` in settings: what the worker's environment has under that name, so that no definition has to hold it."""

from collections.abc import Mapping

from perdure.contracts.model_calls import REFERENCE, with_where
from perdure.contracts.values import JsonValue


def names_in(text: str) -> list[str]:
    """The variables that a text refers to."""
    return REFERENCE.findall(text)


def filled(text: str, environment: Mapping[str, str]) -> str:
    """The text with the values of the variables.

    Raises:
        KeyError: One is not set.
    """
    return REFERENCE.sub(lambda found: environment[found[1]], text)


def names_of_call(params: Mapping[str, JsonValue]) -> list[str]:
    """The variables that the arguments of a model call refer to where they say where it goes."""
    names: list[str] = []

    def note(_name: str, text: str) -> str:
        names.extend(names_in(text))
        return text

    with_where(params, note)
    return names


def filled_for_call(params: Mapping[str, JsonValue], environment: Mapping[str, str]) -> dict[str, JsonValue]:
    """The arguments with the values of those variables.

    Raises:
        KeyError: One is not set.
    """
    return with_where(params, lambda _, text: filled(text, environment))
