"""From raw logs to rows: what an autotune timed, as measurements of the families that have such kernels.

A log is read when its process has ended, by the next one. Every autotune is a run of its own, named after its log and its
line, so a log that is read twice adds nothing. What no family can represent stays in the log and is counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl

from kerncast.core.device import Device
from kerncast.core.io.foreign import decode_json
from kerncast.core.io.lock import claimed
from kerncast.core.io.terminal import counted, line
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.data.dataset import Dataset, record_of
from kerncast.data.formats.inductor import PACKED, choice_rows
from kerncast.data.journal import checked, software_text
from kerncast.errors import KerncastError
from kerncast.library import devices
from kerncast.library.families.gemm_inductor_cpp import gemm_inductor_cpp
from kerncast.library.families.gemm_triton import flex_attention_triton, triton
from kerncast.library.families.torch_products import flex_problem, gemm_problem
from kerncast.torch.observed_log import FORMAT, VERSION, keep, logs_of, refuse_foreign, token_of

BACKEND = "torch.compile"
# What a line with a right checksum and foreign contents may cause.
UNFIT = (KerncastError, pl.exceptions.PolarsError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError)
LONGEST_REASON = 200
CACHED = "times from Inductor's cache"
PERHAPS_CACHED = "times that may be from Inductor's cache: this torch does not say"


@dataclass(frozen=True)
class Gathered:
    """What became of raw logs."""

    rows: Mapping[str, int] = field(default_factory=dict)
    """New rows by family."""
    autotunes: int = 0
    """Autotunes that were read."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Choices that no family represents, by reason; they are still in the logs."""

    def __str__(self) -> str:
        rows = ", ".join(f"{counted(count, 'row')} of {name}" for name, count in self.rows.items()) or "no rows"
        often = max(self.left_out, key=lambda reason: self.left_out[reason], default="")
        only = f"{'mostly: ' if len(self.left_out) > 1 else ''}{often}"
        left = f", {counted(sum(self.left_out.values()), 'choice')} only in the log ({only})" if self.left_out else ""
        return line(f"{counted(self.autotunes, 'autotune')}: {rows}{left}")


class LogHeader(msgspec.Struct, frozen=True):
    """The first line of a log."""

    format: str
    version: int
    cpu: dict[str, Any] = {}


class ObservedAutotune(msgspec.Struct, frozen=True):
    """A line of a log; every key is optional, because a later version may leave it out."""

    op: str = ""
    at: float = 0.0
    timed: bool | None = None
    inputs: list[dict[str, Any]] = []
    output: dict[str, Any] = {}
    choices: list[dict[str, Any]] = []
    threads: int = 1
    precision: str = "highest"
    software: dict[str, str] = {}
    gpu: dict[str, Any] = {}
    mod: dict[str, int] = {}


@dataclass
class _RowsSoFar:
    """Rows and what is left, while logs are read."""

    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    machines: dict[str, Device] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    autotunes: int = 0


def gather(path: str | Path, *, again: bool = False) -> Gathered:
    """Turn the logs of processes that have ended into rows of the dataset at `path`, which is made if there is none.

    `again` also reads the logs that were read before: a later kerncast may represent more of them.
    """
    refuse_foreign(Path(path))
    dataset = Dataset.ensured(path)
    found = _RowsSoFar()
    with ExitStack() as held:
        read = []
        for log in logs_of(dataset.path, kept=again):
            fd = claimed(log)
            if fd is None:
                continue
            held.callback(os.close, fd)
            if _read_log(log, dataset, found):
                read.append(log)
        rows = {name: _added(dataset, name, pl.concat(frames), found) for name, frames in sorted(found.frames.items())}
        for log in read:
            keep(log)
    return Gathered({name: count for name, count in rows.items() if count}, found.autotunes, dict(found.left_out))


def _added(dataset: Dataset, name: str, rows: pl.DataFrame, found: _RowsSoFar) -> int:
    """Append rows, without those of runs that are there: a crash after the last time left their log unread."""
    family = FAMILIES[name]
    parts = [dataset.stored(family, part) for part in dataset.contents.parts if part.family == name]
    if parts:
        known = pl.concat(parts).select("run_id").drop_nulls().unique().collect()
        rows = rows.join(known, on="run_id", how="anti", maintain_order="left")
    if rows.height:
        used = rows["device"].unique().to_list()
        dataset.append(family, rows, machines=[record_of(found.machines[name]) for name in used if name in found.machines])
    return rows.height


def _read_log(path: Path, dataset: Dataset, found: _RowsSoFar) -> bool:
    """Sort the records of a log; False: it has to wait for its own machine."""
    lines = [checked(line) for line in path.read_bytes().splitlines(keepends=True)]
    try:
        header = msgspec.convert(decode_json(lines[0] or b"", dict[str, Any]) if lines else {}, LogHeader)
    except msgspec.DecodeError:
        header = None
    if header is None or header.format != FORMAT or header.version > VERSION:
        found.left_out["a log whose first line is damaged or of a later version"] += 1
        return False
    parsed: list[ObservedAutotune | None] = []
    for text in lines[1:]:
        try:
            parsed.append(None if text is None else msgspec.convert(decode_json(text, dict[str, Any]), ObservedAutotune))
        except msgspec.DecodeError:
            parsed.append(None)
    # The CPU that the log was written on: this one, with its measured speed, or one that the dataset knows already.
    name = header.cpu.get("name")
    known = next((item.device for item in dataset.contents.devices if item.name == name), None)
    cpu = _this_cpu() if name == devices.local().name else known
    if cpu is None and any(item is not None and _is_on_cpu(item) for item in parsed):
        found.left_out["a log of another machine, which is left for it"] += 1
        return False
    for number, item in enumerate(parsed, 1):
        if item is None:
            found.left_out["a line that was cut off or is damaged"] += 1
            continue
        found.autotunes += 1
        _sort(item, f"{token_of(path)}-{number}", cpu, found)
    return True


def _is_on_cpu(item: ObservedAutotune) -> bool:
    return item.output.get("device") == "cpu"


@cache
def _this_cpu() -> Device:
    """As the `inductor` backend names and measures it; without a compiler its speed stays unknown."""
    from kerncast.measuring.backends.cpu import CpuBackend

    return devices.local() if CpuBackend.unavailable() else CpuBackend().device()


def _sort(item: ObservedAutotune, run: str, cpu: Device | None, found: _RowsSoFar) -> None:
    """One autotune: its rows, or why it has none."""
    if item.timed is not True:
        found.left_out[CACHED if item.timed is False else PERHAPS_CACHED] += len(item.choices)
        return
    left_out: Counter[str] = Counter()
    try:
        _keep_rows(item, run, cpu, found, left_out)
    except UNFIT as error:
        said = str(error) if isinstance(error, KerncastError) else f"values of another kind ({type(error).__name__})"
        left_out = Counter({said.splitlines()[0][:LONGEST_REASON]: len(item.choices)})
    found.left_out.update(left_out)


def _keep_rows(item: ObservedAutotune, run: str, cpu: Device | None, found: _RowsSoFar, left_out: Counter[str]) -> None:
    place = _place(item, cpu)
    if isinstance(place, str):
        left_out[place[:LONGEST_REASON]] += len(item.choices)
        return
    family, problem, device = place
    rows = list(choice_rows(item.op, item.choices, family, problem, device, left_out))
    if not rows:
        return
    began = datetime.fromtimestamp(item.at, UTC).isoformat(timespec="seconds")
    shared = {"device": device.name, "backend": BACKEND, "software": software_text(item.software), "run_id": run,
              "started_at": began}  # fmt: skip
    frame = schema.conform(family, pl.DataFrame([{**row, **shared} for row in rows], infer_schema_length=None))
    found.machines.setdefault(device.name, device)
    found.frames.setdefault(family.id, []).append(frame)


# -- what an autotune timed ----------------------------------------------------------------------------


def _place(item: ObservedAutotune, cpu: Device | None) -> tuple[Family, dict[str, Any], Device] | str:
    """The family, the problem and the device of an autotune; a text says why there is none."""
    on_cpu, on_gpu = _is_on_cpu(item), bool(item.gpu)
    family: Family = gemm_inductor_cpp if on_cpu else triton
    if on_gpu and item.op == "flex_attention":
        family, problem = flex_attention_triton, flex_problem(item.inputs, item.mod)
    elif on_gpu or (on_cpu and item.op in PACKED):
        problem = gemm_problem(item.op, item.inputs, item.output, item.choices)
    else:
        return f"{item.op} on {item.output.get('device')}"
    if isinstance(problem, str):
        return problem
    device = _gpu(item.gpu) if on_gpu else cpu
    assert device is not None
    problem |= _environment(item, family, problem)
    broken = family.problem.validate(problem)
    if not broken:
        # What forbids the problem whatever the config is: the constraints that a library's kernel breaks.
        broken = family.config.validate(family.library, family.bindings(problem, device)) if family.library else []
    return str(broken[0]) if broken else (family, problem, device)


def _environment(item: ObservedAutotune, family: Family, problem: Mapping[str, Any]) -> dict[str, Any]:
    if "threads" in family.environment.parameters:
        told = [choice["num_threads"] for choice in item.choices if isinstance(choice.get("num_threads"), int)]
        return {"threads": told[0] if told else item.threads}
    if "tf32" in family.environment.parameters:
        return {"tf32": problem["dtype"] == "fp32" and item.precision != "highest"}
    return {}


def _gpu(properties: Mapping[str, Any]) -> Device:
    from kerncast.measuring.backends.triton import device_profile

    return device_profile(SimpleNamespace(**properties), str(properties.get("gcnArchName") or ""))


FAMILIES: Mapping[str, Family] = {item.id: item for item in (gemm_inductor_cpp, triton, flex_attention_triton)}
