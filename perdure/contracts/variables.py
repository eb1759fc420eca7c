"""Variables of a worker's environment that stand for values, and names of values that no text may hold."""

import re
from collections.abc import Mapping

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the worker's environment, in place of its value."""

_CREDENTIAL = re.compile(
    r"(key|token|secret|password|passwd|credentials?|auth|authorization|jwt|cookies?)$", re.IGNORECASE
)
_NO_CREDENTIAL = re.compile(
    r"((idempotency|cache|partition|routing|sort)[-_]?key|(stop|bos|eos|pad)[-_]token)$", re.IGNORECASE
)


def is_credential(name: str) -> bool:
    """Whether a name says that its value is a credential."""
    return _CREDENTIAL.search(name) is not None and _NO_CREDENTIAL.search(name) is None


def names_in(text: str) -> list[str]:
    """The variables that a text refers to."""
    return [str(name) for name in REFERENCE.findall(text)]


def fill_variables(text: str, environment: Mapping[str, str]) -> str:
    """The text with the values of the variables.

    Raises:
        KeyError: One is not set.
    """
    return REFERENCE.sub(lambda found: environment[found[1]], text)
