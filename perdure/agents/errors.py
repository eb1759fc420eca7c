"""What authors and callers of tools may meet."""


class ToolDefinitionError(TypeError):
    """A function or a toolset cannot become tools; the message names the cause and the fix."""


class ToolUnavailableError(Exception):
    """The tool cannot run here and now, so nothing was done; always told to whoever called it."""


class InvalidInputError(Exception):
    """Arguments do not fit the tool; always told to whoever sent them."""


class InvalidOutputError(Exception):
    """A tool returned a value that does not fit its annotation or has no JSON form, or more than may be stored."""
