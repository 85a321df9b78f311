"""`kerncast doctor`."""

from __future__ import annotations

import platform

import kerncast
from kerncast.app.api.doctor import doctor
from kerncast.app.api.printing import echo
from kerncast.app.cli.verb import Call, verb
from kerncast.app.cli.views.output import Json, print_json, table


@verb("doctor", doctor)
def command(call: Call, *, as_json: Json = False) -> None:
    """Say what works on this machine, and what to install for the rest.

    Exit code 1 when a package that kerncast requires is missing.
    """
    found = call()
    if as_json:
        print_json(found.as_json())
    else:
        echo(f"kerncast {kerncast.__version__}, Python {platform.python_version()} on {platform.platform()}")
        rows = [(item.kind, item.what, "yes" if item.works else "no", item.detail) for item in found.checks]
        table(("kind", "what", "works", "detail"), rows)
        if not found.compiles:
            echo("no C compiler: exporting and measuring on the CPU need one; apt install gcc, or xcode-select --install")
    if not found.healthy:
        raise SystemExit(1)
