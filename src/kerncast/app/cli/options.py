"""Rewrite messages about arguments into messages about options: `folds=3` becomes --folds 3."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")


def in_options(text: str, command: click.Command | None) -> str:
    """Replace arguments in backticks by the command's options; anything that is not one of its options stays."""
    known = {} if command is None else _options(command)

    def said(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in known:
            return found[0]
        option = known[name]
        return option if value in (None, "True", "False") else f"{option} {value}"

    return _ARGUMENT.sub(said, text)


def _options(command: click.Command) -> dict[str, str]:
    # `get_params`, because a command may add options, as `train` does for the knobs of every kind of model.
    options = (item for item in command.get_params(click.Context(command)) if isinstance(item, click.Option))
    return {str(item.name): max(item.opts, key=len) for item in options}


def called(program: click.Group, args: Sequence[str]) -> click.Command | None:
    """The command that a command line names, or None."""
    found: click.Command | None = program
    for word in args:
        if not isinstance(found, click.Group) or word.startswith("-"):
            break
        inner = found.get_command(click.Context(found), word)
        if inner is None:
            break
        found = inner
    return None if found is program else found
