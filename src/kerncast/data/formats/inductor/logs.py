"""What max-autotune prints, and the files that it writes on request, as autotunes: ops, operands and the choices that were
timed.

It prints blocks between other lines, perhaps of several processes:

    Autotune Choices Stats:
    {"num_choices": 20, "best_kernel": "triton_mm_12", "best_time": 0.012288000445, …}
    AUTOTUNE mm(64x128, 128x256)
    strides: [128, 1], [256, 1]
    dtypes: torch.float16, torch.float16
      triton_mm_12 0.0123 ms 100.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, …, num_stages=3, num_warps=4
      mm 0.0133 ms 92.4%
    SingleProcess AUTOTUNE benchmarking takes 1.2345 seconds and 0.6789 seconds precompiling for 20 choices

Torch 2.3 and 2.4 print neither strides nor dtypes nor the arguments of a template. The statistics came with 2.8. A time has 4
decimals; with the statistics it follows more exactly from the best time and the percentage.

`LOG_AUTOTUNE_RESULTS=1` (with `TORCH_COMPILE_DEBUG=1`) writes `autotuning_result_json_list.txt`, a JSON object for each choice:

    {"backend": "Triton", "tile_shape": "(64, 32, 64)", "num_stages": 3, "num_warps": 4, "GROUP_M": 8, "allow_tf32": "False", …,
     "op_name": "mm", "cuda_device_name": "NVIDIA H100", "input_nodes": [{"size": "[64, 128]", "stride": "[128, 1]",
     "dtype": "torch.float16", …}, …], "benchmark_result": 0.0123}

`TORCHINDUCTOR_MM_LOGGING_FILE` writes a list that says neither dtype nor storage order, and the sizes of mm and addmm only:

    [{"(64, 128, 256)": [{"type": "triton", "time": 0.0123, "BLOCK_M": 64, …}, {"type": "cublas", "time": 0.0133}, null],
      "kernel_type": "mm"}, …]
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kerncast.core.io.foreign import decode_json, load_json
from kerncast.data.skipping import BadRows, Skips, bad_row
from kerncast.errors import BadFile
from kerncast.library.families.torch_products import Described, worded

# One argument in the description of a choice: torch 2.5 and later separate them by commas, earlier ones by hyphens.
ASSIGNMENT = re.compile(r"""(\w{1,60})=('[^']*'|"[^"]*"|\([^)]*\)|\[[^\]]*\]|-?[^,\s-]+)""")
NUMBERED = re.compile(r"_\d{1,9}$")
SPLIT_K = re.compile(r"decompose_k_mm_(\d{1,9})_split")
# How the names of choices begin that are neither a template of Triton's nor a library's kernel.
OTHERS = {"cutlass": "cutlass", "cuda_": "cutlass", "ck_": "ck", "rocm_": "ck", "nv_universal_gemm": "nv_universal_gemm",
          "cutedsl": "cutedsl", "subgraph": "subgraph"}  # fmt: skip
CPP = "cpp_"
UNTOLD = "a template whose tile the log does not give (torch prints it from 2.5 on)"


@dataclass(frozen=True)
class TimedChoice:
    """A choice that was timed; `ms` is None if it did not run."""

    line: int
    said: Described
    ms: float | None

    @property
    def described(self) -> Described:
        """As the rows of a log are made from it, with its time."""
        return {**self.said, "ms": self.ms}


@dataclass
class Autotune:
    """What one autotune timed; `choices` are in the order of the log."""

    line: int
    op: str
    inputs: Sequence[Described] = ()
    choices: list[TimedChoice] = field(default_factory=list)
    device: str | None = None
    """What the driver calls the GPU, if the log says so."""
    total: int | None = None
    """How many choices there were, if the log says so: it may list only the fastest."""
    problem: Mapping[str, int] | None = None
    """The sizes, where a log gives these instead of operands."""


def described(name: str, description: str) -> Described:
    """What a choice is, from its name and its description in a log."""
    params = {key: worded(value.strip('"')) for key, value in ASSIGNMENT.findall(description)}
    shared = {"name": name, "description": description}
    split = SPLIT_K.match(name)
    if split:
        return {"kind": "triton", **shared, "template": "decompose_k", "params": {"k_split": int(split[1])}}
    if name.startswith("contiguous_"):
        return {"kind": "triton", **shared, "template": NUMBERED.sub("", name), "params": params}
    if name.startswith("triton_"):
        template = f"triton::{NUMBERED.sub('', name.removeprefix('triton_'))}"
        return {"kind": "triton" if params else UNTOLD, **shared, "template": template, "params": params}
    if name.startswith(CPP):
        return {"kind": "default", **shared, "template": "CppGemmTemplate"}
    other = next((kind for beginning, kind in OTHERS.items() if name.startswith(beginning)), None)
    return {"kind": other or "extern", **shared}


def numbers_of(text: Any) -> list[int | str]:
    """`[64, 1]` or `(64, 1)` as numbers; what is not a number stays text."""
    inner = str(text).strip().strip("[]()")
    return [int(part) if re.fullmatch(r"\d{1,18}", part.strip()) else part.strip() for part in inner.split(",") if part.strip()]


COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
# What launchers put before a line: `[rank0]: `, `[1,0]<stderr>:`, `worker-1  | `.
PREFIX = re.compile(r"(?:\[[^\]\n]{1,60}\](?:<\w{1,10}>)?:? ?|[\w.:/+-]{1,80} {0,20}\| )*")
BEGIN = re.compile(r"AUTOTUNE (?P<op>[\w.]{1,200})\((?P<sizes>[^)]*)\)")
STRIDES, DTYPES, STATS = "strides: ", "dtypes: ", "Autotune Choices Stats:"
TIMED = re.compile(
    r"(?P<name>\S{1,500}) (?P<time>\d{1,12}\.\d{1,12}|inf|nan) ms(?: (?P<share>\d{1,3}\.\d)%| <DIVIDED BY ZERO ERROR>)?"
    r"(?: (?P<about>.*))?"
)
END = re.compile(r"\w{1,40} AUTOTUNE (?:benchmarking )?takes .*?(?:precompiling for (?P<total>\d{1,9}) choices.*)?$")
BRACKETS = re.compile(r"\[[^\]]*\]")
# A log has other lines of any length; those of an autotune are far shorter.
LONGEST_LINE = 100_000
# Half of the last printed digit.
ROUNDING_MS = 0.00005


class Stats(msgspec.Struct, frozen=True):
    """The exact times of the fastest choices."""

    best_kernel: str | None = None
    best_time: float | None = None
    best_triton_kernel: str | None = None
    best_triton_time: float | None = None


@dataclass
class _Stream:
    """Where one process is in its output."""

    open: Autotune | None = None
    before: Stats | None = None
    """Statistics of the autotune that follows."""
    stats: Stats | None = None
    told: dict[str, str] = field(default_factory=dict)


def is_text_log(text: str) -> bool:
    """Whether a text has a block of max-autotune."""
    return any(BEGIN.match(_plain(line)[1]) for line in text.split("\n") if "AUTOTUNE " in line)


def read_text(text: str, skips: Skips) -> Iterator[Autotune]:
    """The autotunes in a log, each when it ends: at its last line, at the next one of its process, or at the end of the log."""
    streams: dict[str, _Stream] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            continue
        prefix, rest = _plain(line.rstrip("\r"))
        stream = streams.setdefault(prefix, _Stream()) if prefix in streams or _begins(rest) else None
        if stream is None:
            continue
        ended = _take(stream, number, rest, skips)
        if ended is not None:
            yield ended
    for stream in streams.values():
        if stream.open is not None:
            yield _closed(stream)


def _plain(line: str) -> tuple[str, str]:
    """What stands before a line, and the line."""
    line = COLOUR.sub("", line)
    prefix = PREFIX.match(line)
    end = prefix.end() if prefix else 0
    return line[:end].rstrip(), line[end:].strip()


def _begins(rest: str) -> bool:
    return rest.startswith(("AUTOTUNE ", STATS))


def _take(stream: _Stream, number: int, rest: str, skips: Skips) -> Autotune | None:
    """Add a line to what its process said; the autotune that it ends, if it ends one."""
    begin = BEGIN.match(rest)
    if begin or rest.startswith(STATS):
        ended = _closed(stream) if stream.open is not None else None
        if begin is None:
            stream.before = Stats()  # its JSON is on the next line
        else:
            stream.open = Autotune(number, begin["op"])
            stream.told, stream.stats, stream.before = {"sizes": begin["sizes"]}, stream.before, None
        return ended
    if rest.startswith("{") and stream.before is not None:
        stream.before = _stats(rest)
        return None
    if stream.open is None:
        return None
    for name in (STRIDES, DTYPES):
        if rest.startswith(name) and not stream.open.choices:
            stream.told[name] = rest.removeprefix(name)
            return None
    end, timed = END.match(rest), TIMED.fullmatch(rest)
    if timed:
        _add(stream, number, timed, skips)
    elif end:
        stream.open.total = int(end["total"]) if end["total"] else None
        return _closed(stream)
    return None


def _stats(text: str) -> Stats | None:
    try:
        return decode_json(text, Stats)
    except msgspec.DecodeError:
        return None


def _add(stream: _Stream, number: int, timed: re.Match[str], skips: Skips) -> None:
    assert stream.open is not None
    printed = float(timed["time"])
    if printed == math.inf:
        ms: float | None = None
    elif not printed > 0:
        skips.one(bad_row(number, "a time must be a positive number of milliseconds", timed["time"]), timed[0])
        return
    else:
        ms = _exact(stream.stats, timed["name"], printed, timed["share"])
    stream.open.choices.append(TimedChoice(number, described(timed["name"], timed["about"] or ""), ms))


def _exact(stats: Stats | None, name: str, printed: float, share: str | None) -> float:
    """The time of a choice: from the statistics if they name it, else from the best time and its share, else as printed."""
    if stats is None:
        return printed
    low, high = printed - ROUNDING_MS, printed + ROUNDING_MS
    for own, time in ((stats.best_kernel, stats.best_time), (stats.best_triton_kernel, stats.best_triton_time)):
        if own == name and time is not None and low <= time <= high:
            return time
    best, part = stats.best_time, float(share or 0) / 100
    if best is None or not math.isfinite(best) or best <= 0 or part <= 0:
        return printed
    # The share has one decimal: it narrows what was printed, and never leaves it.
    smallest, largest = max(low, best / (part + 0.0005)), min(high, best / max(part - 0.0005, 1e-9))
    return (smallest + largest) / 2 if smallest <= largest else printed


def _closed(stream: _Stream) -> Autotune:
    """The autotune that is open, with its operands."""
    found = stream.open
    assert found is not None
    stream.open = None
    sizes = [part.strip() for part in stream.told["sizes"].split(",")]
    strides = BRACKETS.findall(stream.told.get(STRIDES, ""))
    dtypes = [part.strip() for part in stream.told.get(DTYPES, "").split(",") if part.strip()]
    found.inputs = [
        _tensor(size, strides[place] if place < len(strides) else None, dtypes[place] if place < len(dtypes) else None)
        for place, size in enumerate(sizes)
    ]
    return found


def _tensor(size: str, stride: str | None, dtype: str | None) -> Described:
    found: dict[str, Any] = {"size": numbers_of(size.replace("x", ","))}
    if stride is not None:
        found["stride"] = numbers_of(stride)
    if dtype is not None:
        found["dtype"] = dtype
    return found


LOGGED = re.compile(r"\(([^,()]+), ([^,()]+), ([^,()]+)\)")
# The operators whose sizes this list has right: it takes a batch for M, and the packed weights of a CPU for a matrix.
LISTED = ("mm", "addmm")
TILE_SHAPE = re.compile(r"\((-?\d{1,9}), (-?\d{1,9}), (-?\d{1,9})\)")
# AMD's arguments. Inductor writes these values where a kernel has none.
UNSET = {"matrix_instr_nonkdim": 0, "waves_per_eu": 0, "kpack": 2}
LINE_KEYS = ("benchmark_result", "op_name", "input_nodes")


def is_choice_line(text: str) -> bool:
    """Whether a line is one of `autotuning_result_json_list.txt`."""
    return text.lstrip().startswith("{") and all(f'"{name}"' in text for name in LINE_KEYS)


def is_list(data: Any) -> bool:
    """Whether a document is the list of `TORCHINDUCTOR_MM_LOGGING_FILE`."""
    return isinstance(data, list) and any(
        isinstance(item, dict) and any(LOGGED.fullmatch(str(key)) for key in item) for item in data
    )


def read_choice_lines(text: str, skips: Skips) -> Iterator[Autotune]:
    """The autotunes of `autotuning_result_json_list.txt`: neighbouring lines with the same op, inputs and duration."""
    found: Autotune | None = None
    identity: Any = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = _record(line, number)
            own = (item["op_name"], item["input_nodes"], item.get("autotuning_time"), item.get("cuda_device_name"))
            choice = _choice_of_line(item, number)
        except BadRows as error:
            skips.one(error, line)
            continue
        if found is None or own != identity:
            if found is not None:
                yield found
            identity = own
            device = item.get("cuda_device_name")
            found = Autotune(number, str(item["op_name"]), [_tensor_of_node(node) for node in item["input_nodes"]])
            found.device = device if isinstance(device, str) else None
        found.choices.append(choice)
    if found is not None:
        yield found


def _record(line: str, number: int) -> dict[str, Any]:
    try:
        item = load_json(line)
        line.encode()
    except ValueError as error:
        raise bad_row(number, "a line must be a JSON object") from error
    if not isinstance(item, dict) or not all(name in item for name in LINE_KEYS) or not isinstance(item["input_nodes"], list):
        raise bad_row(number, f"a line must be an object with {', '.join(LINE_KEYS)}", line)
    return item


def _tensor_of_node(node: Any) -> Described:
    if not isinstance(node, Mapping):
        return {}
    found: Described = {name: numbers_of(node[name]) for name in ("size", "stride") if name in node}
    return {**found, **({"dtype": str(node["dtype"])} if "dtype" in node else {})}


def _choice_of_line(item: Mapping[str, Any], number: int) -> TimedChoice:
    ms = milliseconds(item["benchmark_result"], number)
    backend, op = str(item.get("backend")), str(item["op_name"])
    if backend == "Triton":
        return TimedChoice(number, {**_tile(item), "name": f"triton_{op}"}, ms)
    called = str(item.get("kernel_call_name") or item.get("kernel_name") or backend.lower()).rpartition(".")[2]
    return TimedChoice(number, described("cpp_" if backend == "CPP" else called, ""), ms)


def _tile(item: Mapping[str, Any]) -> Described:
    """The plain template: these files do not name another one."""
    params = {name: worded(item[name]) for name in ("GROUP_M", "num_stages", "num_warps", *UNSET) if name in item}
    shape = TILE_SHAPE.fullmatch(str(item.get("tile_shape", "")))
    sizes = map(int, shape.groups()) if shape else (item.get(name) for name in ("BLOCK_M", "BLOCK_K", "BLOCK_N"))
    params |= dict(zip(("BLOCK_M", "BLOCK_K", "BLOCK_N"), sizes, strict=True))
    if params.get("GROUP_M") == -1:
        del params["GROUP_M"]
    if params.get("matrix_instr_nonkdim", 0) == UNSET["matrix_instr_nonkdim"]:
        params = {name: value for name, value in params.items() if name not in UNSET}
    tf32 = worded(item.get("allow_tf32"))
    return {
        "kind": "triton", "template": "triton::mm",
        "params": {**params, **({"ALLOW_TF32": tf32} if isinstance(tf32, bool) else {})},
    }  # fmt: skip


def runs_of(data: Any) -> Iterator[tuple[str, str, dict[str, int] | None, list[Any]]]:
    """The runs in such a list: the op, the text of its sizes, the sizes (None: they are symbols), and what was timed."""
    for item in data:
        if not isinstance(item, dict):
            raise BadFile(f"an entry of a max-autotune log is an object, got {item!r:.100}")
        for key, listed in item.items():
            sizes = LOGGED.fullmatch(str(key))
            if sizes is None:
                continue  # other keys: what was invoked, and the kernel's type
            if not isinstance(listed, list):
                raise BadFile(f"'{key:.100}' of a max-autotune log has a list of what was timed, got {listed!r:.100}")
            known = all(re.fullmatch(r"[0-9]{1,18}", size) for size in sizes.groups())
            problem = dict(zip("MKN", map(int, sizes.groups()), strict=True)) if known else None
            yield str(item.get("kernel_type", LISTED[0])), key, problem, listed


def read_list(data: Any, skips: Skips) -> Iterator[Autotune]:
    """The autotunes of a `TORCHINDUCTOR_MM_LOGGING_FILE`; a line is the number of a timing."""
    number = 0
    for op, _, problem, listed in runs_of(data):
        run = Autotune(number + 1, op, problem=problem if op in LISTED else None)
        for part in listed:
            number += 1
            if part is None:
                continue  # a kind of kernel that the log does not describe
            try:
                run.choices.append(_choice_of_list(part, op, number))
            except BadRows as error:
                skips.one(error, part)
        yield run


def _choice_of_list(part: Any, op: str, number: int) -> TimedChoice:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("triton", "cublas"):
        raise bad_row(number, "a timing must be an object with the type triton or cublas", part)
    ms = milliseconds(part.get("time"), number)
    return TimedChoice(number, {**_tile(part), "name": f"triton_{op}"} if kind == "triton" else described(op, ""), ms)


def milliseconds(time: Any, number: int) -> float | None:
    """A time as these files have it; None: the choice did not run."""
    if isinstance(time, bool) or not isinstance(time, int | float) or not (time == math.inf or 0 < time < 1e15):
        raise bad_row(number, "a time must be a positive number of milliseconds", time)
    return None if time == math.inf else float(time)
