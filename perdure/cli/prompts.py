"""Prompts of the command line: as they are written, from stdin with ``-``, from a file with ``@file``."""

import sys
from pathlib import Path

import click


class Prompt(click.ParamType[str]):
    """A prompt; ``-`` reads stdin to its end, ``@file`` a file, and ``@@`` begins a prompt that begins with ``@``."""

    name = "prompt"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read what the argument stands for."""
        text = str(value)
        if text.startswith("@@"):
            return text[1:]
        if text != "-" and not (text.startswith("@") and len(text) > 1):
            return text
        where = "stdin" if text == "-" else f"the file {text[1:]!r}"
        try:
            raw = sys.stdin.buffer.read() if text == "-" else Path(text[1:]).read_bytes()
            read = raw.decode()
        except OSError as error:
            why = (error.strerror or "cannot be read").lower()
            self.fail(f"{where}: {why}; write @@ for a prompt that begins with @", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{where} is not UTF-8 text", param, ctx)
        if not read.strip():
            self.fail(f"{where} is empty", param, ctx)
        return read


PROMPT = Prompt()
