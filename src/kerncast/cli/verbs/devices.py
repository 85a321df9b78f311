"""`kerncast devices`."""

from __future__ import annotations

from typing import Any

import click

from kerncast import devices
from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.device import NUMBERS, Device


def _describe(device: Device) -> dict[str, Any]:
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


@click.command("devices")
@click.argument("name", required=False, shell_complete=completing.devices)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the hardware profiles and this machine, or show one with the source of each number.

    \b
    kerncast devices
    kerncast devices h100
    kerncast devices 'NVIDIA H100 80GB HBM3'   # as torch and nvidia-smi print it; case does not matter
    kerncast devices local        # this machine
    kerncast devices ./mine.toml  # your own profile, in the format of the shipped ones
    """
    if name is not None:
        device = devices.get(name)
        if as_json:
            print_json(_describe(device))
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
        return
    found = [*devices.profiles().values(), devices.local()]
    if as_json:
        print_json([_describe(device) for device in found])
        return
    listed = [
        (
            device.name + (" (this machine)" if device is devices.local() else ""),
            device.kind,
            device.architecture or "-",
            _number(device.numbers.get("num_cus")),
            _number(device.numbers.get("max_clock_mhz")),
            _number(device.numbers.get("memory_bandwidth_gb_s")),
            " ".join(f"{key} {value:g}" for key, value in device.peak_tflops.items()) or "unknown",
            device.title,
        )
        for device in found
    ]
    table(("device", "kind", "architecture", "CUs", "MHz", "GB/s", "peak TFLOPS", "what"), listed, right=("CUs", "MHz", "GB/s"))
