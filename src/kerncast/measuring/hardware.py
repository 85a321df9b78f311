"""Ask rocminfo, nvidia-smi and lscpu about this machine, and read the numbers that a device profile has.

Their output is data: it is bounded, a tool that hangs or prints without end is ended, and what cannot be read is left out.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from kerncast.data.manifest import Hardware, Reported, Tool
from kerncast.measuring.backends.command.process import ProgramRunner
from kerncast.measuring.backends.contract import Ended
from kerncast.measuring.backends.environment import PLAIN_WORDS

# What is kept of a tool's output: rocminfo prints about 8 KB per agent.
MOST_CHARACTERS = 1 << 16
MOST_DEVICES = 64
LONGEST_NAME = 200
SECONDS = 20.0
ROCMINFO, NVIDIA_SMI, LSCPU = "rocminfo", "nvidia-smi", "lscpu"
_NVIDIA_FIELDS = ("name", "driver_version", "memory.total", "clocks.max.sm")
# A dataset may be published: lines that identify one card are left out.
_IDENTITY = re.compile(r"^\s*(uuid|serial)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,6})?")
# rocminfo's words → a number of a profile, and what one unit of it is.
_AGENT = {
    "Compute Unit": ("num_cus", 1), "SIMDs per CU": ("simds_per_cu", 1), "Shader Engines": ("shader_engines", 1),
    "Max Clock Freq. (MHz)": ("max_clock_mhz", 1), "Max Waves Per CU": ("max_waves_per_cu", 1),
    "Wavefront Size": ("wavefront_size", 1), "Workgroup Max Size": ("max_work_group_size", 1), "L1": ("l1_cache_kb", 1),
    "L2": ("l2_cache_kb", 1), "L3": ("l3_cache_kb", 1),
}  # fmt: skip
_POOLS = {"GLOBAL": ("memory_capacity_gb", 1024 / 1e9), "GROUP": ("lds_capacity_bytes", 1024)}
_UNITS = {"": 1 / 1024, "B": 1 / 1024, "K": 1, "M": 1024, "G": 1024**2}


def capture(device: str) -> Hardware:
    """What the tools say now; `device` is the one that is measured."""
    programs = ProgramRunner()
    try:
        tools = [_asked(programs, name, arguments) for name, (arguments, _) in TOOLS.items()]
    finally:
        programs.close()
    reported = [found for tool in tools for found in TOOLS[tool.name][1](tool.text)]
    return Hardware(datetime.now(UTC).isoformat(timespec="seconds"), device, tuple(tools), tuple(reported))


def _asked(programs: ProgramRunner, name: str, arguments: tuple[str, ...]) -> Tool:
    if shutil.which(name) is None:
        return Tool(name, error="not installed")
    try:
        outcome = programs.run([name, *arguments], SECONDS, PLAIN_WORDS)
    except Ended as error:
        return Tool(name, error=_words(error))
    failure = outcome.failure({})
    text = "\n".join(line for line in outcome.stdout.splitlines() if not _IDENTITY.match(line))
    return Tool(name, text[:MOST_CHARACTERS], len(text) > MOST_CHARACTERS, "" if failure is None else _words(failure))


def _words(error: Ended) -> str:
    return " ".join(str(error).split())[:LONGEST_NAME]


def _number(text: str, unit: float = 1.0) -> float | None:
    found = _NUMBER.match(text.strip())
    number = float(found[0]) * unit if found else 0.0
    return number if number > 0 else None


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            yield name.strip(), value.strip()


def read_lscpu(text: str) -> list[Reported]:
    """The CPU: caches per core, except the last level, which is in total."""
    fields = dict(_fields(text))
    numbers = {
        "num_cus": _number(fields.get("CPU(s)", "")),
        "max_clock_mhz": _number(fields.get("CPU max MHz", "")),
        "l1_cache_kb": _cache_kb(fields.get("L1d cache", "")),
        "l2_cache_kb": _cache_kb(fields.get("L2 cache", "")),
        "l3_cache_kb": _cache_kb(fields.get("L3 cache", ""), each=False),
    }
    if not any(numbers.values()):
        return []
    name = fields.get("Model name", "unknown CPU")[:LONGEST_NAME]
    return [Reported(LSCPU, "cpu", name, {key: value for key, value in numbers.items() if value is not None})]


def _cache_kb(text: str, each: bool = True) -> float | None:
    """`96 KiB (2 instances)` in total, or `48K` of one (older versions)."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMG]?)i?B?(?: \((\d{1,9}) instances?\))?", text)
    if found is None:
        return None
    total = float(found[1]) * _UNITS[found[2]]
    count = int(found[3]) if found[3] and each else 1
    return total / count if count and total > 0 else None


def read_nvidia_smi(text: str) -> list[Reported]:
    """The GPUs of a CSV table; it does not say how many SMs they have."""
    found = []
    for row in csv.reader(io.StringIO(text)):
        if len(row) != len(_NVIDIA_FIELDS) or not row[0].strip():
            continue
        name, driver, memory, clock = (cell.strip()[:LONGEST_NAME] for cell in row)
        numbers = {"memory_capacity_gb": _number(memory, 1024**2 / 1e9), "max_clock_mhz": _number(clock)}
        known = {key: value for key, value in numbers.items() if value is not None}
        found.append(Reported(NVIDIA_SMI, "gpu", name, known, {"driver": driver}))
    return found[:MOST_DEVICES]


def read_rocminfo(text: str) -> list[Reported]:
    """The GPU agents: their numbers, the group segment (LDS) and the largest global pool (memory)."""
    agents = (_agent(block) for block in re.split(r"^Agent \d+\s*$", text, flags=re.MULTILINE)[1:])
    return [found for found in agents if found is not None][:MOST_DEVICES]


def _agent(block: str) -> Reported | None:
    numbers: dict[str, float] = {}
    facts: dict[str, str] = {}
    segment = ""
    for name, value in _fields(block):
        if name in ("Name", "Marketing Name", "Device Type"):
            facts.setdefault(name, value[:LONGEST_NAME])
        elif name in _AGENT and (number := _number(value, _AGENT[name][1])) is not None:
            numbers.setdefault(_AGENT[name][0], number)
        elif name == "Segment":
            segment = value.partition(";")[0].strip()
        elif name == "Size" and segment in _POOLS and (number := _number(value, _POOLS[segment][1])) is not None:
            pool = _POOLS[segment][0]
            numbers[pool] = max(number, numbers.get(pool, 0.0))
    if facts.get("Device Type") != "GPU" or not facts.get("Name"):
        return None
    marketing = facts.get("Marketing Name", "")
    return Reported(ROCMINFO, "gpu", facts["Name"], numbers, {"marketing_name": marketing} if marketing else {})


TOOLS: dict[str, tuple[tuple[str, ...], Callable[[str], list[Reported]]]] = {
    ROCMINFO: ((), read_rocminfo),
    NVIDIA_SMI: ((f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader,nounits"), read_nvidia_smi),
    LSCPU: ((), read_lscpu),
}
"""Each tool's arguments, and what reads its output."""
