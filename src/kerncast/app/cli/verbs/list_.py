"""`kerncast list` and `doctor`: ops, kernel families and devices, and what works on this machine."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import kerncast
from kerncast.app.api.inspect import doctor
from kerncast.app.api.showing import echo
from kerncast.app.cli.verb import VerbCall, verb
from kerncast.app.cli.views import Json, parse_assignments, print_json, table
from kerncast.core import rates
from kerncast.core.device import NUMBERS, Device, hardware_namespace
from kerncast.core.io.arguments import Help
from kerncast.core.op import Family, Op
from kerncast.core.space import Space, Value
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.declared.declaration import is_written
from kerncast.library.declared.family_file import family_named
from kerncast.library.problems import named_sets
from kerncast.library.registry import FAMILIES, OPS

TTNN = "ttnn."


@verb("list")
def list_verb(
    what: Annotated[str, Help(metavar="op|family|device", choices=("op", "family", "device"))],
    name: Annotated[str | None, Help(metavar="[NAME]", names="listed")] = None,
    problem: Annotated[Sequence[str], Help(metavar="[NAME=VALUE]...")] = (),
    *,
    device: Annotated[
        str | None, Help("With a family: count the configs that fit this device.", metavar="NAME", names="devices")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the ops, the kernel families or the devices, or show one.

    An op has parameters, what folds group by, and features; a family has parameters, constraints and features; a device is a
    hardware profile, with the source of each number. With --device, a part of a problem, or both, the valid configs of a
    family are counted. With --device, features are named that need numbers which the device's profile does not have.

    \b
    kerncast list op
    kerncast list op gemm
    kerncast list family gemm/ck_tile
    kerncast list family gemm/ck_tile dtype=fp8 --device gfx950
    kerncast list device h100
    kerncast list device 'NVIDIA H100 80GB HBM3'   # as torch and nvidia-smi print it; case does not matter
    kerncast list device local        # this machine
    kerncast list device ./mine.toml  # your own profile, in the format of the shipped ones
    """
    if what != "family" and (problem or device is not None):
        raise InvalidValue("--device and a problem are for a family: kerncast list family gemm/triton --device a100")
    if name is None and device is not None:
        raise InvalidValue("--device needs the name of a family: kerncast list family gemm/triton --device a100")
    if name is not None:
        show = {"op": lambda: _show_op(OPS.get(name), as_json), "device": lambda: _show_device(devices.get(name), as_json)}
        show.get(what, lambda: _show_family(family_named(name), problem, device, as_json))()
        return
    known = [*devices.profiles().values(), devices.local()]
    if as_json:
        described: dict[str, Iterable[dict[str, Any]]] = {
            "op": map(_described_op, OPS),
            "family": map(_described_family, FAMILIES),
            "device": map(_described_device, known),
        }
        print_json(list(described[what]))
    elif what == "op":
        ops = map(_described_op, OPS)
        rows = [(o["op"], " ".join(p["name"] for p in o["parameters"]), " ".join(o["families"]), o["doc"]) for o in ops]
        table(("op", "parameters", "families", "what"), rows)
    elif what == "family":
        columns = ("family", "parameters", "raw configs", "constraints", "features", "what")
        cells = [
            (f["family"], len(f["parameters"]), f"{f['raw_configs']:,}", len(f["constraints"]), len(f["features"]), f["doc"])
            for f in map(_described_family, FAMILIES)
        ]
        table(columns, cells, right=columns[1:5])
    else:
        heads = ("device", "kind", "architecture", "CUs", "MHz", "GB/s", "peak TFLOPS", "what")
        table(heads, [_device_cells(item) for item in known], right=heads[3:6])


def _parameters(space: Space) -> list[dict[str, Any]]:
    """The declared parameters as plain values."""
    return [
        {
            "name": name, "values": parameter.describe(), "default": parameter.usual_word or parameter.default,
            "conditional": parameter.when is not None, "codes": dict(parameter.codes) or None, "doc": parameter.doc,
        }
        for name, parameter in space.parameters.items()
    ]  # fmt: skip


def _show_parameters(entries: list[dict[str, Any]], title: str) -> None:
    rows = [
        (item["name"], item["values"] + (" (where it applies)" if item["conditional"] else ""), item["default"], item["doc"])
        for item in entries
    ]
    table(("parameter", "values", "default", "what"), rows, title)


def _described_op(op: Op) -> dict[str, Any]:
    work = op.work(op.namespace())
    return {
        "op": op.name,
        "doc": op.doc,
        "parameters": _parameters(op.problem),
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


def _show_op(op: Op, as_json: bool) -> None:
    found_one = _described_op(op)
    if as_json:
        print_json(found_one)
        return
    echo(*f"{found_one['op']}: {found_one['doc']}".split("\n"), "")
    _show_parameters(found_one["parameters"], "problem")
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


def _described_family(family: Family) -> dict[str, Any]:
    return {
        "family": family.id,
        "op": family.op.name,
        "doc": family.doc,
        "parameters": _parameters(family.config),
        "environment": _parameters(family.environment),
        "constraints": [{"name": item.name, "sentence": item.sentence} for item in family.config.constraints],
        "raw_configs": math.prod(item.size for item in family.config.parameters.values()),
        "features": list(family.feature_program.outputs),
        "features_digest": family.feature_program.digest,
    }


def _show_family(family: Family, problem: Sequence[str], device: str | None, as_json: bool) -> None:
    found_one = _described_family(family)
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
    _show_parameters(found_one["environment"], "environment") if found_one["environment"] else None
    _show_parameters(found_one["parameters"], "config") if found_one["parameters"] else echo("config: nothing to choose")
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


def _described_device(device: Device) -> dict[str, Any]:
    return {
        "device": device.name,
        "title": device.title,
        "kind": device.kind,
        "architecture": device.architecture,
        "aliases": list(device.aliases),
        "numbers": {name: device.numbers.get(name) for name in NUMBERS},
        "peak_tflops": dict(device.peak_tflops),
        "sources": dict(device.sources),
        "digest": device.digest,
    }


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.10g}"


def _device_cells(device: Device) -> tuple[str, ...]:
    numbers = (device.numbers.get(name) for name in ("num_cus", "max_clock_mhz", "memory_bandwidth_gb_s"))
    peaks = " ".join(f"{key} {value:g}" for key, value in device.peak_tflops.items())
    name = device.name + (" (this machine)" if device is devices.local() else "")
    return (name, device.kind, device.architecture or "-", *map(_number, numbers), peaks or "unknown", device.title)


def _show_device(device: Device, as_json: bool) -> None:
    if as_json:
        print_json(_described_device(device))
        return
    echo(f"{device.name}: {device.title} ({', '.join(filter(None, (device.kind, device.architecture)))})")
    if device.aliases:
        echo(f"also: {', '.join(device.aliases)}")
    echo()
    rows = [(key, _number(device.numbers.get(key)), NUMBERS[key], device.sources.get(key, "")) for key in NUMBERS]
    rows += [
        (f"peak_tflops {key}", _number(value), "dense rate", device.sources.get(key, ""))
        for key, value in device.peak_tflops.items()
    ]
    table(("number", "value", "what", "source"), rows, right=("value",))


@verb("doctor", doctor)
def doctor_verb(call: VerbCall, *, as_json: Json = False) -> None:
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
