"""Hardware profiles: TOML files in this folder, each number with its source, and the local machine."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, NotFound

LOCAL = "local"


class _Number(msgspec.Struct, forbid_unknown_fields=True):
    value: float
    source: str


class _Profile(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    title: str
    kind: str
    aliases: list[str] = []
    numbers: dict[str, _Number] = {}
    peak_tflops: dict[str, _Number] = {}


def read_profile(path: Path | Traversable) -> Device:
    """A device from a TOML profile (the format of the files in this folder)."""
    try:
        profile = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Profile)
        return Device(
            name=profile.name,
            title=profile.title,
            kind=profile.kind,
            aliases=tuple(profile.aliases),
            numbers={name: entry.value for name, entry in profile.numbers.items()},
            peak_tflops={name: entry.value for name, entry in profile.peak_tflops.items()},
            sources={name: entry.source for name, entry in {**profile.numbers, **profile.peak_tflops}.items()},
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, InvalidValue) as error:
        raise BadFile(f"{path} is not a device profile: {error}") from error


@cache
def profiles() -> dict[str, Device]:
    """The shipped profiles by name."""
    files = [item for item in resources.files(__name__).iterdir() if item.name.endswith(".toml")]
    found = [read_profile(item) for item in sorted(files, key=lambda item: item.name)]
    return {device.name: device for device in found}


@cache
def local() -> Device:
    """The local machine, as far as it describes itself."""
    from kerncast.devices.detect import detect

    return detect()


def get(name: str) -> Device:
    """A profile by name or alias, `local` for this machine, or the path of a TOML profile."""
    if name == LOCAL:
        return local()
    if name.endswith(".toml"):
        return read_profile(Path(name))
    known = profiles()
    by_alias = {alias: device for device in known.values() for alias in device.aliases}
    device = known.get(name) or by_alias.get(name)
    if device is None and name == local().name:
        device = local()
    if device is None:
        raise NotFound.named("device", name, [*known, *by_alias, LOCAL], "kerncast devices")
    return device
