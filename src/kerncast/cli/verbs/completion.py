"""`kerncast completion`."""

from __future__ import annotations

import click

from kerncast.api.printing import echo_exactly
from kerncast.cli.completing import SHELLS, VARIABLE
from kerncast.cli.views.output import json_option, print_json


@click.command("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@json_option
def command(shell: str, as_json: bool) -> None:
    """Print the script with which a shell completes verbs, options, ops, families, devices, formats, models and columns.

    SHELL is bash (4.4 or newer), zsh or fish.

    \b
    eval "$(kerncast completion bash)"      # in ~/.bashrc
    eval "$(kerncast completion zsh)"       # in ~/.zshrc, after compinit
    kerncast completion fish > ~/.config/fish/completions/kerncast.fish
    """
    from click.shell_completion import get_completion_class

    from kerncast.cli import program

    found = get_completion_class(shell)
    assert found is not None  # click knows all of SHELLS
    # `source` would also ask bash for its version; the script is the same.
    made = found(program, {}, "kerncast", VARIABLE)
    script = (made.source_template % made.source_vars()).strip("\n") + "\n"
    print_json({"shell": shell, "script": script}) if as_json else echo_exactly(script, nl=False)
