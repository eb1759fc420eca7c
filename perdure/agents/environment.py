"""A tool's needs of its worker's environment, by reference: a definition holds names, never values."""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perdure.agents.context import ToolUnavailableError
from perdure.contracts.values import describe_mistake

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class UnmetNeedError(ToolUnavailableError):
    """A variable that a tool needs is not there, or cannot be used; the message is one line with the fix."""


@dataclass(frozen=True)
class Variable:
    """A variable of the worker's environment, by its name."""

    name: str

    def __post_init__(self) -> None:
        """Refuse anything but a name; the text may be the value, so the error does not repeat it."""
        if not _NAME.fullmatch(self.name):
            kind = type(self).__name__
            msg = f"{kind} takes the name of an environment variable, as in {kind}('GITHUB_TOKEN'); this is no name"
            raise ValueError(msg)


@dataclass(frozen=True)
class Secret(Variable):
    """A credential of the worker: its value is cut out of whatever a call gives, raises and logs."""


@dataclass(frozen=True)
class Setting(Variable):
    """A public setting of the worker; ``default`` is taken where the variable is not set."""

    default: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Needed:
    """A parameter that is filled in from the environment when its tool runs.

    Attributes:
        accepts: The type that the parameter is annotated with.
        optional: Whether the function has a default of its own.
    """

    parameter: str
    variable: Variable
    accepts: TypeAdapter[Any]
    optional: bool

    def problem(self, environment: Mapping[str, str]) -> str | None:
        """Problem of the environment for this parameter, or None."""
        try:
            self.arguments(environment)
        except UnmetNeedError as error:
            return str(error)
        return None

    def arguments(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The parameter with its value; nothing if the function's own default holds.

        Raises:
            UnmetNeedError: The variable is not set, or its value is not of the parameter's type.
        """
        text = environment.get(self.variable.name)
        if text:
            return {self.parameter: self._check(text)}
        if isinstance(self.variable, Setting) and self.variable.default is not inspect.Parameter.empty:
            return {self.parameter: self.variable.default}
        if self.optional:
            return {}
        msg = f"it needs the variable {self.variable.name}, which is not set; set it where the process is started"
        raise UnmetNeedError(msg)

    def _check(self, text: str) -> Any:  # noqa: ANN401 - of the parameter's type
        try:
            return self.accepts.validate_strings(text)
        except ValidationError as error:
            # What pydantic says may hold the value.
            is_secret = isinstance(self.variable, Secret)
            why = "it is of another type" if is_secret else f"{describe_mistake(error)}, got {text!r}"
            name = self.variable.name
            msg = f"the variable {name} does not fit its parameter {self.parameter!r} ({why}); correct it"
            raise UnmetNeedError(msg) from None


def problems_of(tool: str, needs: Iterable[Needed], environment: Mapping[str, str]) -> list[str]:
    """Reasons a tool cannot run in this environment: a sentence for each variable."""
    found = (needed.problem(environment) for needed in needs)
    return [f"{tool} cannot run here: {problem}" for problem in found if problem is not None]


def from_environment(needs: Iterable[Needed], environment: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that are filled in."""
    return {name: value for needed in needs for name, value in needed.arguments(environment).items()}


def secrets_among(needs: Iterable[Needed], environment: Mapping[str, str]) -> frozenset[str]:
    """The values of the secrets among them, which no text may show."""
    values = (environment.get(need.variable.name, "") for need in needs if isinstance(need.variable, Secret))
    return frozenset(value for value in values if value)
