"""Hardware profiles: TOML files in this folder, each number with its source, and the local machine.

A profile is found by its name or an alias; case and punctuation do not matter (`MI300X`, `nvidia a100-sxm4-80gb`). An
architecture such as `gfx942` is shared by several parts: a profile of that name, if there is one, stands for the
architecture, and any part of it agrees with it.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from kerncast.core.device import LONGEST_NAME, Device
from kerncast.core.io.artefact import kind_of_toml
from kerncast.core.io.foreign import TOML, decode_toml, key_rule
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
    architecture: str | None = None
    numbers: dict[str, _Number] = {}
    peak_tflops: dict[str, _Number] = {}


def read_profile(path: Path | Traversable) -> Device:
    """A device from a TOML profile (the format of the files in this folder)."""
    if isinstance(path, Path) and path.exists() and not path.is_file():  # a pipe would never end
        raise BadFile(f"{path} is not a device profile: it is not a file (docs/devices.md shows one)")
    try:
        profile = msgspec.convert(decode_toml(TOML.read(path) if isinstance(path, Path) else path.read_bytes()), _Profile)
        return Device(
            name=profile.name,
            title=profile.title,
            kind=profile.kind,
            aliases=tuple(profile.aliases),
            architecture=profile.architecture,
            numbers={name: entry.value for name, entry in profile.numbers.items()},
            peak_tflops={name: entry.value for name, entry in profile.peak_tflops.items()},
            sources={name: entry.source for name, entry in {**profile.numbers, **profile.peak_tflops}.items()},
        )
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise BadFile(f"{path} is not a device profile: {key_rule(error)} (docs/devices.md shows one)") from error


@cache
def profiles() -> dict[str, Device]:
    """The shipped profiles by name."""
    files = [item for item in resources.files(__name__).iterdir() if item.name.endswith(".toml")]
    found = [read_profile(item) for item in sorted(files, key=lambda item: item.name)]
    return {device.name: device for device in found}


@cache
def local() -> Device:
    """The local machine, as far as it describes itself."""

    return detect()


def plain(name: str) -> str:
    """A device's name without case and punctuation: `NVIDIA L40S` is `nvidia_l40s`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


@cache
def _by_plain_name() -> dict[str, Device]:
    """Every shipped profile by its plain name and aliases; a name beats an alias."""
    aliased = {plain(alias): device for device in profiles().values() for alias in device.aliases}
    return {**aliased, **{plain(name): device for name, device in profiles().items()}}


@lru_cache(1024)
def _alone(name: str) -> Device | None:
    """The shipped profile that is called so, read alone: an answer about one device need not wait for thirty files."""
    file = resources.files(__name__) / f"{name}.toml"
    device = read_profile(file) if name and file.is_file() else None
    return device if device is not None and device.name == name else None


def named(name: str) -> Device | None:
    """The shipped profile of this name or alias, or None; `gfx942:sramecc+:xnack-` is `gfx942`."""
    if len(name) <= LONGEST_NAME and (device := _alone(plain(name))) is not None:
        return device
    return _by_plain_name().get(plain(name)) or _by_plain_name().get(plain(name.partition(":")[0]))


def parts(architecture: str) -> tuple[Device, ...]:
    """The shipped profiles of one architecture."""
    wanted = plain(architecture.partition(":")[0])
    return tuple(item for item in profiles().values() if item.architecture is not None and plain(item.architecture) == wanted)


def names_an_architecture(device: Device) -> bool:
    """Whether a profile stands for its architecture, so that any part of it may be meant (`gfx942`)."""
    return device.name == device.architecture


def known(name: str) -> Device | None:
    """The shipped profile of this name, or this machine, or None. No file is read, so the name may come from data."""
    if name == LOCAL:
        return local()
    return named(name) or (local() if plain(name) in (LOCAL, plain(local().name)) else None)


def get(name: str) -> Device:
    """A profile by name or alias, `local` for this machine, or the path of a TOML profile."""
    device = find(name)
    if device is None:
        raise unknown(name)
    return device


def find(name: str) -> Device | None:
    """As `get`, but None for a name that is no device. The error of `get` suggests names, which takes a millisecond."""
    return read_profile(Path(name)) if name.endswith(".toml") else known(name)


def unknown(name: str) -> InvalidValue | NotFound:
    """The error for a name that is no device."""
    sharing = ", ".join(item.name for item in parts(name))
    if sharing:
        # Never the only one that ships: other boards of the architecture have no profile here.
        return InvalidValue(f"'{name}' is an architecture, not a device: name one, such as {sharing}")
    aliases = [alias for item in profiles().values() for alias in item.aliases]
    return NotFound.named("device", name, [*profiles(), *aliases, LOCAL], "kerncast list device")


def agreed(told: Device | None, asked: Device | None) -> Device | None:
    """The device of rows whose file tells one device and whose caller asks for another: they must not contradict.

    A file often tells only the architecture; then the caller chooses among its parts.
    """
    if told is None or asked is None or told.name == asked.name:
        return asked or told
    if told.architecture is not None and told.architecture == asked.architecture:
        if names_an_architecture(told):
            return asked
        if names_an_architecture(asked):
            return told
    sharing = [item.name for item in parts(told.name)] if names_an_architecture(told) else []
    hint = f"name one of its parts ({', '.join(sharing)}), or " if len(sharing) > 1 else ""
    raise InvalidValue(f"the rows were measured on {told.name}, not {asked.name}: {hint}leave `device` out")


PROFILE = kind_of_toml("device profile", frozenset({"title", "kind"}), read_profile, "numbers and their sources")


# Widest first: an instruction set, the register width it brings, the flag that /proc/cpuinfo shows.
_X86_VECTORS = (("avx512", 64, "avx512f"), ("avx2", 32, "avx2"), ("avx", 32, "avx"), ("sse2", 16, "sse2"))
_ARM_VECTORS = (("neon", 16, "asimd"),)
_AMX, _AMX_ROWS = {"amx_tile", "amx_bf16", "amx_int8"}, 16


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def parse_cpuinfo(text: str) -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    fields = (line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in fields}


def vector_isa(flags: set[str]) -> tuple[str, int] | None:
    """The widest vector instruction set among the flags, and its register width in bytes."""
    return next(((name, width) for name, width, flag in (*_X86_VECTORS, *_ARM_VECTORS) if flag in flags), None)


def product_numbers(flags: set[str]) -> dict[str, float]:
    """The group sizes of the instructions for products of narrow types; 1 for a CPU without them."""
    return {
        "bf16_group": 2.0 if "avx512_bf16" in flags else 1.0,
        "int8_group": 4.0 if flags & {"avx512_vnni", "avx_vnni"} else 1.0,
        "matrix_tile_rows": float(_AMX_ROWS) if flags >= _AMX else 1.0,
    }


def parse_size_kb(text: str) -> float | None:
    """sysfs cache sizes: `512K`, `32M`."""
    match = re.fullmatch(r"(\d+)([KMG])", text)
    return int(match[1]) * {"K": 1, "M": 1024, "G": 1024**2}[match[2]] if match else None


def cache_numbers(root: Path) -> dict[str, float]:
    """Data cache sizes and the line size from sysfs; last-level caches count once, private ones per core."""
    numbers: dict[str, float] = {}
    for entry in sorted(root.glob("index*")):
        level, kind, size = _read(entry / "level"), _read(entry / "type"), _read(entry / "size")
        kilobytes = parse_size_kb(size) if size else None
        if kilobytes and kind in ("Data", "Unified") and level in ("1", "2", "3"):
            numbers[f"l{level}_cache_kb"] = float(kilobytes)
        line = _read(entry / "coherency_line_size")
        if line and line.isdigit() and int(line):
            numbers["cache_line_bytes"] = float(line)
    return numbers


def detect(proc: Path = Path("/proc"), sys_root: Path = Path("/sys")) -> Device:
    """The local CPU as a device. Its identity is CPU model + cores + ISA; measured speeds are not part of it."""
    info = parse_cpuinfo(_read(proc / "cpuinfo") or "")
    model = info.get("model name") or platform.processor() or platform.machine() or "unknown CPU"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    isa = vector_isa(flags)

    cpu0 = sys_root / "devices/system/cpu/cpu0"
    numbers = cache_numbers(cpu0 / "cache")
    sources = dict.fromkeys(numbers, "sysfs cpu0/cache")
    if cores:
        numbers["num_cus"], sources["num_cus"] = float(cores), "CPUs that this process may run on"
    if isa:
        numbers["vector_bytes"], sources["vector_bytes"] = float(isa[1]), f"/proc/cpuinfo flags: {isa[0]}"
    if flags:
        found = product_numbers(flags)
        numbers |= found
        sources |= dict.fromkeys(found, "/proc/cpuinfo flags")
    highest = _read(cpu0 / "cpufreq/cpuinfo_max_freq")
    if highest and highest.isdigit() and int(highest):
        numbers["max_clock_mhz"], sources["max_clock_mhz"] = int(highest) / 1000, "sysfs cpufreq/cpuinfo_max_freq"
    elif re.fullmatch(r"\d+(\.\d+)?", info.get("cpu MHz", "")) and float(info["cpu MHz"]) > 0:
        numbers["max_clock_mhz"] = float(info["cpu MHz"])
        sources["max_clock_mhz"] = "/proc/cpuinfo: the clock at the moment of reading"
    memory = re.search(r"MemTotal:\s+(\d+) kB", _read(proc / "meminfo") or "")
    if memory:
        numbers["memory_capacity_gb"] = int(memory[1]) * 1024 / 1e9
        sources["memory_capacity_gb"] = "/proc/meminfo"

    slug = re.sub(r"[^a-z0-9]+", "_", model.lower().replace("(r)", "").replace("(tm)", "")).strip("_")
    name = "-".join([slug, f"{cores or 'unknown'}c", isa[0] if isa else platform.machine().lower() or "unknown"])
    return Device(name=name, title=model, kind="cpu", numbers=numbers, sources=sources)
