"""Inductor's own files of what it timed: every choice, with exact times.

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
from collections.abc import Iterator, Mapping
from typing import Any

from kerncast.core.io.foreign import load_json
from kerncast.data.formats.inductor_logs.autotune import Autotune, Choice, described, numbers_of
from kerncast.data.skipping import BadRows, Skips, bad_row
from kerncast.errors import BadFile
from kerncast.library.families.torch_products import Described, worded

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
            found = Autotune(number, str(item["op_name"]), [_tensor(node) for node in item["input_nodes"]])
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


def _tensor(node: Any) -> Described:
    if not isinstance(node, Mapping):
        return {}
    found: Described = {name: numbers_of(node[name]) for name in ("size", "stride") if name in node}
    return {**found, **({"dtype": str(node["dtype"])} if "dtype" in node else {})}


def _choice_of_line(item: Mapping[str, Any], number: int) -> Choice:
    ms = milliseconds(item["benchmark_result"], number)
    backend, op = str(item.get("backend")), str(item["op_name"])
    if backend == "Triton":
        return Choice(number, {**_tile(item), "name": f"triton_{op}"}, ms)
    called = str(item.get("kernel_call_name") or item.get("kernel_name") or backend.lower()).rpartition(".")[2]
    return Choice(number, described("cpp_" if backend == "CPP" else called, ""), ms)


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


def read_list(data: Any, skips: Skips) -> Iterator[Autotune]:
    """The autotunes of a `TORCHINDUCTOR_MM_LOGGING_FILE`; a line is the number of a timing."""
    number = 0
    for item in data:
        if not isinstance(item, dict):
            raise BadFile(f"an entry of a max-autotune log is an object, got {item!r:.100}")
        op = str(item.get("kernel_type", LISTED[0]))
        for key, listed in item.items():
            sizes = LOGGED.fullmatch(str(key))
            if sizes is None:
                continue  # other keys: the kernel's type
            if not isinstance(listed, list):
                raise BadFile(f"'{key:.100}' of a max-autotune log has a list of what was timed, got {listed!r:.100}")
            found = Autotune(number + 1, op)
            if op in LISTED and all(re.fullmatch(r"[0-9]{1,18}", size) for size in sizes.groups()):
                found.problem = dict(zip("MKN", map(int, sizes.groups()), strict=True))
            for part in listed:
                number += 1
                if part is None:
                    continue  # a kind of kernel that the log does not describe
                try:
                    found.choices.append(_choice_of_list(part, op, number))
                except BadRows as error:
                    skips.one(error, part)
            yield found


def _choice_of_list(part: Any, op: str, number: int) -> Choice:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("triton", "cublas"):
        raise bad_row(number, "a timing must be an object with the type triton or cublas", part)
    ms = milliseconds(part.get("time"), number)
    return Choice(number, {**_tile(part), "name": f"triton_{op}"} if kind == "triton" else described(op, ""), ms)


def milliseconds(time: Any, number: int) -> float | None:
    """A time as these files have it; None: the choice did not run."""
    if isinstance(time, bool) or not isinstance(time, int | float) or not (time == math.inf or 0 < time < 1e15):
        raise bad_row(number, "a time must be a positive number of milliseconds", time)
    return None if time == math.inf else float(time)
