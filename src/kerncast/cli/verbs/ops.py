"""`kerncast ops`."""

from __future__ import annotations

from typing import Any

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.device import hardware_namespace
from kerncast.op import Op
from kerncast.registry import FAMILIES, OPS
from kerncast.space import Space, Value

TTNN = "ttnn."


def parameters(space: Space) -> list[dict[str, Any]]:
    """The declared parameters as plain values."""
    return [
        {
            "name": name,
            "values": parameter.describe(),
            "default": parameter.usual_word or parameter.default,
            "conditional": parameter.when is not None,
            "codes": dict(parameter.codes) or None,
            "doc": parameter.doc,
        }
        for name, parameter in space.parameters.items()
    ]


def show_parameters(entries: list[dict[str, Any]], title: str) -> None:
    """The table of parameters that `ops` and `families` share."""
    rows = [
        (item["name"], item["values"] + (" (where it applies)" if item["conditional"] else ""), item["default"], item["doc"])
        for item in entries
    ]
    table(("parameter", "values", "default", "what"), rows, title)


def _describe(op: Op) -> dict[str, Any]:
    from kerncast.problems import named_sets

    work = op.work(op.namespace())
    return {
        "op": op.name,
        "doc": op.doc,
        "parameters": parameters(op.problem),
        "derived": list(op.derived),
        "split_group": list(op.split_group),
        "splits": {name: list(parameters) for name, parameters in op.splits.items()},
        "work": "unknown" if work is None else f"flops, bytes{', bytes over the links' if work.communicates else ''}",
        "features": list(op.features(op.namespace(), hardware_namespace())),
        "families": [family.id for family in FAMILIES if family.op is op],
        "aliases": {name: dict(values) for name, values in op.aliases.items()},
        "problem_sets": named_sets(op),
        "sweeps": dict(op.sweeps),
    }


def _other_names(aliases: dict[str, dict[str, Value]]) -> list[str]:
    """Each alias with the parameters that it sets; one that only adds TTNN's prefix to another is said with that one."""
    found = []
    for alias, values in aliases.items():
        if alias.removeprefix(TTNN) != alias and alias.removeprefix(TTNN) in aliases:
            continue
        name = f"[{TTNN}]{alias}" if f"{TTNN}{alias}" in aliases else alias
        set_to = ", ".join(f"{key}={value}" for key, value in values.items())
        found.append(f"{name} ({set_to})" if set_to else name)
    return found


@click.command("ops")
@click.argument("name", required=False, shell_complete=completing.ops)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the ops, or show one: its parameters, what folds group by, its features.

    \b
    kerncast ops
    kerncast ops gemm
    """
    if name is None:
        found = [_describe(op) for op in OPS]
        if as_json:
            print_json(found)
        else:
            table(
                ("op", "parameters", "families", "what"),
                [(o["op"], " ".join(p["name"] for p in o["parameters"]), " ".join(o["families"]), o["doc"]) for o in found],
            )
        return
    found_one = _describe(OPS.get(name))
    if as_json:
        print_json(found_one)
        return
    echo(*f"{found_one['op']}: {found_one['doc']}".split("\n"), "")
    show_parameters(found_one["parameters"], "problem")
    echo("", f"folds group by: {', '.join(found_one['split_group'])}")
    for name, unseen in found_one["splits"].items():
        echo(f"--split {name}: {', '.join(unseen)} unseen")
    echo(f"work: {found_one['work']}")
    echo(f"features: {', '.join(found_one['features'])}")
    echo(f"families: {', '.join(found_one['families'])}")
    if found_one["aliases"]:
        echo(f"also called: {', '.join(_other_names(found_one['aliases']))}")
    for kind in ("problem_sets", "sweeps"):
        for title, what in found_one[kind].items():
            echo(f"--problems {title}: {what}")
