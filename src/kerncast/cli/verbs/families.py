"""`kerncast families`."""

from __future__ import annotations

import math
from typing import Any

import click

from kerncast import devices, rates
from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.verbs.ops import parameters, show_parameters
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.declared.declaration import is_written
from kerncast.declared.family_file import family_named
from kerncast.errors import InvalidValue
from kerncast.op import Family
from kerncast.registry import FAMILIES


def _describe(family: Family) -> dict[str, Any]:
    return {
        "family": family.id,
        "op": family.op.name,
        "doc": family.doc,
        "parameters": parameters(family.config),
        "environment": parameters(family.environment),
        "constraints": [{"name": item.name, "sentence": item.sentence} for item in family.config.constraints],
        "raw_configs": math.prod(item.size for item in family.config.parameters.values()),
        "features": list(family.feature_program.outputs),
        "features_digest": family.feature_program.digest,
    }


def parse_assignments(pairs: tuple[str, ...], parameter_names: dict[str, Any]) -> dict[str, Any]:
    """`M=128 dtype=fp8` as values; numbers and flags are read as the parameter declares them."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InvalidValue(f"expected NAME=VALUE, got '{pair}'")
        if name in values:
            raise InvalidValue(f"{name} is given twice: keep one")
        parameter = parameter_names.get(name)
        if parameter is None or parameter.codes:
            values[name] = text
        elif isinstance(parameter.value(0), bool):
            values[name] = {"true": True, "false": False}.get(text.lower(), text)
        else:
            try:
                values[name] = int(text)
            except ValueError:
                values[name] = text
    return values


@click.command("families")
@click.argument("name", required=False, shell_complete=completing.families)
@click.argument("problem", nargs=-1)
@click.option(
    "--device",
    metavar="NAME",
    shell_complete=completing.devices,
    help="Count the configs that fit this device (see `kerncast devices`).",
)
@json_option
def command(name: str | None, problem: tuple[str, ...], device: str | None, as_json: bool) -> None:
    """List the kernel families, or show one: its parameters, constraints and features.

    With --device, a part of a problem, or both, it counts the valid configs. With --device it also names the
    features that need numbers which the device's profile does not have.

    \b
    kerncast families
    kerncast families gemm/ck_tile
    kerncast families gemm/ck_tile dtype=fp8 --device gfx950
    """
    if name is None:
        if device is not None:
            raise InvalidValue("--device needs the name of a family: kerncast families gemm/triton --device a100")
        found = [_describe(family) for family in FAMILIES]
        if as_json:
            print_json(found)
        else:
            rows = [
                (
                    f["family"],
                    len(f["parameters"]),
                    f"{f['raw_configs']:,}",
                    len(f["constraints"]),
                    len(f["features"]),
                    f["doc"],
                )
                for f in found
            ]
            columns = ("family", "parameters", "raw configs", "constraints", "features", "what")
            table(columns, rows, right=columns[1:5])
        return
    family = family_named(name)
    found_one = _describe(family)
    given = parse_assignments(problem, dict(family.problem.parameters))
    if device or given:
        profile = devices.get(device) if device else None
        found_one["valid_configs"] = family.config.count(family.bindings(given, profile))
        if profile is not None:
            dtypes = [given["dtype"]] if "dtype" in given else None
            left_out = family.features_on(profile, dtypes).left_out
            found_one["features_left_out"] = {feature: list(missing) for feature, missing in left_out.items()}
    asked = {} if device is None else {devices.get(device): [given["dtype"]] if "dtype" in given else None}
    found_one["notes"] = rates.notes(family, asked, own=is_written(family))
    if as_json:
        print_json(found_one)
        return
    echo(*f"{found_one['family']}: {found_one['doc']}".split("\n"), "")
    show_parameters(found_one["environment"], "environment") if found_one["environment"] else None
    show_parameters(found_one["parameters"], "config") if found_one["parameters"] else echo("config: nothing to choose")
    if found_one["constraints"]:
        echo()
        table(("constraint", "rule"), [(item["name"], item["sentence"]) for item in found_one["constraints"]])
    echo("", f"raw configs: {found_one['raw_configs']:,}")
    if "valid_configs" in found_one:
        echo(f"valid configs: {found_one['valid_configs']:,} ({' '.join([*problem, *filter(None, [device])])})")
    echo(f"features ({len(found_one['features'])}): {', '.join(found_one['features'])}")
    for note in found_one["notes"]:
        echo(f"- {note}")
    for feature, missing in found_one.get("features_left_out", {}).items():
        echo(f"left out on {device}: {feature} needs {', '.join(missing)}, which the profile does not know")
