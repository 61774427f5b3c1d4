"""Ask the operator, or take the defaults in a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import typer

from torana.cli.terminal import on_one_line, printable
from torana.errors import OperatorError


class Questions:
    """Answers to the questions of a command: the default of each question.

    ``flag`` names the option that answers a question in a script. ``OperatorError`` names it if there is no
    default.
    """

    #: True if a person answers.
    interactive = False

    def choose(self, question: str, options: Mapping[str, str], *, default: str | None, flag: str) -> str:
        """Return the name of one of the options, which have a description each."""
        return self.ask(question, default=default if default in options else None, flag=flag)

    def ask(self, question: str, *, default: str | None = None, flag: str) -> str:
        """Return a text that is not empty."""
        if default is None:
            raise OperatorError(f"{question}: there is no terminal to ask on; give {flag}")
        return default

    def secret(self, question: str, *, flag: str) -> str:
        """Return a text that is not shown while it is typed."""
        return self.ask(question, flag=flag)

    def confirm(self, question: str, *, default: bool) -> bool:
        """Return whether the answer is yes."""
        return default


class OnTerminal(Questions):
    """Asks on the terminal. Ctrl-C and Ctrl-D raise ``typer.Abort``."""

    interactive = True

    def choose(self, question: str, options: Mapping[str, str], *, default: str | None, flag: str) -> str:
        names = list(options)
        typer.echo(f"\n{question}")
        for number, name in enumerate(names, 1):
            typer.echo(on_one_line(f"  {number:2}  {name:{max(map(len, names))}}  {options[name]}").rstrip())
        while True:
            answer = self.ask("Number or name", default=default, flag=flag).strip()
            if answer in options:
                return answer
            if answer.isdecimal() and 0 < int(answer) <= len(names):
                return names[int(answer) - 1]
            typer.echo(printable(f"{answer!r} is not one of the options."))

    def ask(self, question: str, *, default: str | None = None, flag: str) -> str:
        del flag
        shown = None if default is None else on_one_line(default)
        answer = str(typer.prompt(question, default=shown))
        return default if default is not None and answer == shown else answer

    def secret(self, question: str, *, flag: str) -> str:
        del flag
        return str(typer.prompt(f"{question} (not shown)", hide_input=True)).strip()

    def confirm(self, question: str, *, default: bool) -> bool:
        return typer.confirm(question, default=default)


def questions(*, defaults: bool) -> Questions:
    """Return questions on the terminal, or their defaults if these are wanted or there is no terminal."""
    return OnTerminal() if sys.stdin.isatty() and not defaults else Questions()


def known_secret(ask: Questions, variable: str, environ: Mapping[str, str]) -> str | None:
    """Return the secret in a variable, or None if a person wants to replace it.

    A variable of the process cannot be replaced, because it outweighs ``.env``.
    """
    known = environ.get(variable)
    if known and (variable in os.environ or ask.confirm(f"Use {variable} in .env?", default=True)):
        typer.echo(f"Using {variable}.")
        return known
    return None
