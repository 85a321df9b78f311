"""torch-diode's files, as JSON or msgpack, taken apart.

    {"hardware": {"NVIDIA H100": {"operation": {"mm": {"solution": {SHAPE: {"config": [TILE, …]}}}}}}}    a table
    {"hardware": … {SHAPE: {"timed_configs": [{"config": TILE, "time": 0.02}, …]}}}                       a dataset
    {"config": [TILE, …]}                                                  a max-autotune solution, for every problem
    {"mm": {"config": [TILE, …]}, "addmm": …}                              one for each operation

SHAPE is the text of a JSON object (B, M, N, K, M_dtype, K_dtype, …), TILE an object (block_m, block_n, block_k,
num_stages, num_warps, …) or its text. Times are milliseconds, although torch-diode's types call them seconds: they are what
Inductor measured. A shape does not say how A and B are stored: torch-diode multiplies contiguous tensors, so an
import takes the layout rrr unless `constants` says another. Formats as written by https://github.com/exclamaforte/diode
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.device import Device
from kerncast.core.io.foreign import JSON, decode_json, guarded, key_rule, load_document
from kerncast.data.choices import OPS, ChoiceTarget, LeftOutChoices, Solution, TritonTile, of_tile, require_triton
from kerncast.data.formats import Head, Imported, Importer, ImportOptions, measured_on
from kerncast.data.formats.inductor import settings
from kerncast.data.schema import Status
from kerncast.data.skipping import LINE, BadRows, Skips, bad_row
from kerncast.errors import BadFile, InvalidValue, quoted
from kerncast.library import devices
from kerncast.library.families.gemm_triton import config_of, triton
from kerncast.library.families.torch_products import WORDS, dtype_of

LEVELS = ("hardware", "operation", "solution")
TIMED = "timed_configs"
CONFIGS = ("config", TIMED)
# torch-diode's converter gives this name to configs without an operation.
ANY_OP = "default"


class Shape(msgspec.Struct, frozen=True):
    """A matrix product; sizes that were symbols at compile time are text (`s77`)."""

    M: int | str
    N: int | str
    K: int | str
    M_dtype: str
    K_dtype: str
    B: int | str = 1


@dataclass(frozen=True)
class ConfigList:
    """The configs in one place of the file, and what they are for; None: the file does not say."""

    hardware: str | None
    op: str | None
    shape: str | None
    items: list[Any]
    """Configs, or with `timed` objects with a `config` and a `time`."""
    timed: bool


@dataclass(frozen=True)
class Unusable:
    """Why gemm has no such problem: `shape` (a symbol) or `dtype`, and what says so."""

    reason: str
    name: str


def is_diode(data: Mapping[Any, Any]) -> bool:
    """Whether an object looks like one of these files."""
    if any(isinstance(data.get(level), dict) for level in LEVELS) or isinstance(data.get("config"), list):
        return True
    parts = list(data.values())
    return bool(parts) and all(isinstance(part, dict) and isinstance(part.get("config"), list) for part in parts)


def as_object(value: Any, what: str) -> dict[str, Any]:
    """An object, or the text of one."""
    if isinstance(value, str):
        try:
            value = decode_json(value)
        except msgspec.DecodeError as error:
            raise BadFile(f"{what} is text that is not JSON ({error}): '{value:.100}'") from error
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise BadFile(f"{what} must be an object, got {value!r:.100}")
    return value


def entries(data: Mapping[str, Any], hardware: str | None = None, op: str | None = None) -> Iterator[ConfigList]:
    """Every list of configs in a file, in its order."""
    level = next((name for name in LEVELS if name in data), None)
    if level is not None:
        for name, part in as_object(data[level], f"`{level}`").items():
            inner = as_object(part, f"`{level}` of '{name:.100}'")
            if level == "solution":
                yield _entry(hardware, op, name, inner)
            else:
                yield from entries(inner, name if level == "hardware" else hardware, name if level == "operation" else op)
    elif any(name in data for name in CONFIGS):
        yield _entry(hardware, op, None, data)
    else:
        for name, part in data.items():
            yield _entry(hardware, None if name == ANY_OP else name, None, as_object(part, f"'{name:.100}'"))


def _entry(hardware: str | None, op: str | None, shape: str | None, part: Mapping[str, Any]) -> ConfigList:
    name = next((name for name in CONFIGS if name in part), None)
    listed = part[name] if name is not None else None
    if not isinstance(listed, list):
        raise BadFile(f"a solution must have a list of configs under `config` or `{TIMED}`, got {dict(part)!s:.100}")
    return ConfigList(hardware, op, shape, listed, name == TIMED)


def problem_of(text: str) -> dict[str, Any] | Unusable:
    """The sizes and the dtype of a shape; it never says how A and B are stored."""
    try:
        shape = msgspec.convert(as_object(text, "a shape"), Shape)
    except msgspec.ValidationError as error:
        raise BadFile(f"not a shape ({key_rule(error)}): '{text:.200}'") from error
    sizes = {"M": shape.M, "N": shape.N, "K": shape.K, "batch": shape.B}
    if any(isinstance(size, str) for size in sizes.values()):
        return Unusable("shape", text)
    dtype = dtype_of(shape.M_dtype)
    if dtype is None or shape.K_dtype != shape.M_dtype:
        return Unusable("dtype", f"{shape.M_dtype}, {shape.K_dtype}")
    return {**sizes, "dtype": dtype}


# Operation → what it computes beyond the product.
OPERATIONS: Mapping[str, Mapping[str, Any]] = {"mm": {}, "addmm": {"bias": True}, "bmm": {}}
LAYOUT = "rrr"
# What `constants` may say of all rows.
SETTABLE = ("layout", "tf32")
# torch-diode's names of a template's arguments.
ARGUMENTS = {
    "block_m": "BLOCK_M", "block_n": "BLOCK_N", "block_k": "BLOCK_K", "group_m": "GROUP_M", "num_stages": "num_stages",
    "num_warps": "num_warps",
}  # fmt: skip
NAMELESS = ("", "unknown", "cuda", "gpu", "default")
FAILED = "the time is inf: the config could not be launched, the file does not say why"
REASONS = {
    "shape": "a size must be a number, not a symbol",
    "dtype": "A and B must have one dtype, and gemm must have it",
}


class Diode(Importer):
    """A dataset of torch-diode."""

    name = "diode"
    doc = "datasets of torch-diode (JSON or msgpack): Triton configs of mm, addmm and bmm; `constants` layout, tf32"

    def recognises(self, head: Head) -> bool:
        return "timed_configs" in head.text and "hardware" in head.text

    def read(self, path: Path, options: ImportOptions) -> Iterator[Imported]:
        if options.mapping is not None:
            raise InvalidValue("a torch-diode dataset names its own parameters: `mapping` does not apply to it")
        fixed = settings(options.values, SETTABLE)
        with guarded("the file", "is it cut or damaged?", "is neither JSON nor msgpack"):
            data = load_document(JSON.read(path))
        if not isinstance(data, dict) or not is_diode(data):
            raise BadFile("this is not a torch-diode dataset: it has no `hardware` with operations and timed configs")
        found: dict[str, _DeviceRows] = {}
        for entry in entries(data):
            if not entry.timed:
                raise BadFile(
                    "this lists configs without times, so there is nothing to learn: give it to `kerncast evaluate` with "
                    "`against`, and import a dataset (`timed_configs`)"
                )
            _read_entry(found.setdefault(entry.hardware or "", _DeviceRows(fixed)), entry, options.skips, found)
        known = {hardware: _device(hardware, options) for hardware, rows in found.items() if rows.count}
        if options.device is not None and len(known) > 1:
            raise InvalidValue(
                f"it has several devices ({', '.join(map(quoted, known))}), and `device` names one: leave it out"
            )
        for hardware, device in known.items():
            yield Imported(triton, found[hardware].frame(), device, found[hardware].notes())


@dataclass
class _DeviceRows:
    """The rows of one device, column by column, while a file is read."""

    fixed: Mapping[str, Any]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    count: int = 0
    other_ops: Counter[str] = field(default_factory=Counter)
    added: int = 0
    twice: int = 0
    without_tf32: int = 0
    seen: int = 0

    def add(self, line: int, problem: Mapping[str, Any], config: Mapping[str, Any], label: Mapping[str, Any]) -> None:
        row = {f"problem.{name}": value for name, value in problem.items()}
        row |= {f"config.{name}": value for name, value in config.items()}
        for name, value in {**row, **label, LINE: line}.items():
            column = self.columns.setdefault(name, [])
            column.extend([None] * (self.count - len(column)))
            column.append(value)
        self.count += 1

    def frame(self) -> pl.DataFrame:
        for column in self.columns.values():
            column.extend([None] * (self.count - len(column)))
        types = {"time_ns": pl.Float64, "error": pl.String, LINE: pl.Int64}
        return pl.DataFrame(
            [pl.Series(name, values, dtype=types.get(name), strict=False) for name, values in self.columns.items()]
        )

    def notes(self) -> tuple[str, ...]:
        found = []
        if "layout" not in self.fixed and self.count:
            found.append(
                f"the file does not say how A and B are stored: read as {LAYOUT}, contiguous as in torch-diode's own "
                "collection; `constants` layout=… says another"
            )
        if self.without_tf32 and "tf32" not in self.fixed:
            found.append(
                f"{self.without_tf32:,} fp32 rows are read as computed without TF32: torch-diode does not record it; "
                "`constants` tf32=true if `torch.set_float32_matmul_precision` allowed it"
            )
        if self.added:
            found.append(f"{self.added:,} rows of addmm are products with a bias; the file does not say what was added")
        if self.twice:
            found.append(
                f"{self.twice:,} rows have a config that their problem has already: they count as repeats, but may be of "
                "another template, which the file does not name"
            )
        found += [
            f"left out {count:,} timings of {op}, which gemm/triton does not have" for op, count in self.other_ops.items()
        ]
        return tuple(found)


def _read_entry(rows: _DeviceRows, entry: Any, skips: Skips, found: Mapping[str, _DeviceRows]) -> None:
    """The timed configs of one problem. Their lines are their numbers in the file."""
    before = sum(item.seen for item in found.values())
    rows.seen += len(entry.items)
    if entry.op not in OPERATIONS:
        rows.other_ops[str(entry.op)[:100]] += len(entry.items)
        return
    try:
        problem: Any = problem_of(entry.shape) if entry.shape is not None else BadFile("a timed config must have a shape")
    except BadFile as error:
        problem = error
    known: set[str] = set()
    for number, item in enumerate(entry.items, before + 1):
        try:
            if isinstance(problem, Unusable):
                raise bad_row(number, REASONS[problem.reason], problem.name)
            if isinstance(problem, BadFile):
                raise bad_row(number, "a shape must be an object with M, N, K, M_dtype and K_dtype", entry.shape)
            config, tf32 = _config(item, number)
            label = _label(item, number)
        except BadRows as error:
            skips.one(error, item)
            continue
        fp32 = problem["dtype"] == "fp32"
        rows.without_tf32 += fp32 and not tf32
        rows.added += entry.op == "addmm"
        chosen = repr(sorted(config.items()))
        rows.twice += chosen in known
        known.add(chosen)
        said = {"layout": LAYOUT, **({"tf32": tf32} if fp32 else {}), **rows.fixed}
        if not fp32:
            said["tf32"] = False
        rows.add(number, {**problem, **OPERATIONS[entry.op], **said}, config, label)


def _config(item: Any, line: int) -> tuple[dict[str, Any], bool]:
    """The config of gemm/triton that a timed config is, and whether it may round to TF32."""
    try:
        given = as_object(as_object(item, "a timed config").get("config"), "`config`")
    except BadFile as error:
        raise bad_row(line, str(error).partition(",")[0]) from error
    arguments = {ARGUMENTS[name.lower()]: value for name, value in given.items() if name.lower() in ARGUMENTS}
    lacking = next(
        (name for name in ("block_m", "block_n", "block_k", "num_stages", "num_warps") if ARGUMENTS[name] not in arguments),
        None,
    )
    if lacking is not None:
        raise bad_row(line, f"a config must have {lacking}")
    # -1: the template has no such argument.
    config = config_of(
        "triton::mm", {name: None if name == "GROUP_M" and value == -1 else value for name, value in arguments.items()}
    )
    if config is None:
        raise bad_row(line, "a config must be one of gemm/triton's (`kerncast list family gemm/triton`)", given)
    flag = given.get("ALLOW_TF32", False)
    return config, (WORDS.get(flag) if isinstance(flag, str) else flag) is True


def _label(item: Mapping[str, Any], line: int) -> dict[str, Any]:
    time = item.get("time")
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise bad_row(line, "a time must be a number of milliseconds", time)
    if time == math.inf:
        return {"time_ns": None, "status": str(Status.LAUNCH_ERROR), "error": FAILED}
    if not (math.isfinite(time) and 0 < time < 1e15):
        raise bad_row(line, "a time must be a positive number of milliseconds", time)
    return {"time_ns": time * 1e6, "status": str(Status.OK), "error": None}


def _device(hardware: str, options: ImportOptions) -> Device | None:
    """The device that a file names; `device` must not contradict it, and says which one an unknown name means."""
    told = None if devices.plain(hardware) in NAMELESS else devices.named(hardware)
    if told is not None:
        return measured_on(told, options)
    if options.device is None:
        words = devices.plain(hardware).split("_")
        alike = next((name for name in devices.profiles() if name in words), "NAME")
        raise InvalidValue(
            f"its hardware '{quoted(hardware)}' is not the name of a known device: add `device={alike}` if it is that"
        )
    return None


DIODE = "torch-diode file"


def read_diode(data: Mapping[str, Any], target: ChoiceTarget) -> Iterator[Solution | LeftOutChoices]:
    """The choices of a file, in its order; the fastest first where it has times."""
    require_triton(target, DIODE)
    for entry in entries(data):
        configs = _preferred(entry)
        if entry.hardware is not None and not target.is_on(entry.hardware):
            yield LeftOutChoices("device", entry.hardware, len(configs))
        elif entry.op is not None and (entry.op not in OPS or (entry.shape is None and entry.op != OPS[0])):
            yield LeftOutChoices("op", entry.op, len(configs))
        else:
            problem = {} if entry.shape is None else problem_of(entry.shape)
            for config in configs:
                if isinstance(problem, Unusable):
                    yield LeftOutChoices(problem.reason, problem.name)
                else:
                    yield of_tile(problem, TritonTile.read(as_object(config, "a config")))


def _preferred(entry: ConfigList) -> list[Any]:
    if not entry.timed:
        return entry.items
    timed = [as_object(item, "a timed config") for item in entry.items]
    if not all(isinstance(item.get("time"), int | float) and "config" in item for item in timed):
        raise BadFile("a timed config must have `config` and a number under `time`")
    return [item["config"] for item in sorted(timed, key=lambda item: item["time"])]
