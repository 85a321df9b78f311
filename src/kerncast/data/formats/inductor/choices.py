"""Files of PyTorch Inductor: the template lookup table, and the log of a max-autotune run.

A lookup table (`torch._inductor.config.lookup_table.table`, as JSON) maps a key to configs in order of preference:

    "NVIDIA H100+((torch.float16, [M, K], [K, 1]), (torch.float16, [K, N], [1, K]))+mm":
        [{"template_id": "triton::mm", "BLOCK_M": 64, …, "num_warps": 4}, {"template_id": "aten::mm"}]

A key without a device is for any device; a key with the device takes precedence. The log (`TORCHINDUCTOR_MM_LOGGING_FILE`) is a
list of `{"(M, K, N)": [{"type": "triton", "time": 0.02, "BLOCK_M": 64, …}, {"type": "cublas", "time": 0.02}]}`; it says
neither dtype nor storage order. Formats as of torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerncast.data.choices import OPS, ChoiceTarget, LeftOutChoices, Solution, TritonTile, choice, of_tile, require_triton
from kerncast.data.formats.inductor.logs import runs_of
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.families.torch_products import dtype_of, storage_of

TABLE = "PyTorch Inductor lookup table"
LOG = "PyTorch Inductor max-autotune log"
# What a key of a product with a bias says of scales.
SCALARS = "alpha=1&beta=1"
KEY = re.compile(r"(?:(?P<device>.*?)\+)?(?P<inputs>\(\(torch\.[^+]*\),?\))(?:\+(?P<scalars>[^+=]+=.*))?\+(?P<op>\w+)")
# Keys are usually a tenth of this; matching time grows with the square of the length.
LONGEST_KEY = 2_000
NUMBERS = r"\[(\d{1,18}(?:, \d{1,18})*)\]"
INPUT = re.compile(rf"\((torch\.\w+), {NUMBERS}, {NUMBERS}\)", re.ASCII)
# The only template that belongs to the family; persistent and TMA variants, decompose_k, CUTLASS … are other kernels.
PLAIN = tuple(f"{prefix}{op}" for prefix in ("triton::", "") for op in OPS)
LIBRARY_PREFIX = "aten::"
# A product with a bias, neither scaled: the bias is the first operand, a vector or the same spread over C.
BIASED = "addmm"


@dataclass(frozen=True)
class Key:
    """A key of a lookup table, taken apart."""

    text: str
    device: str
    inputs: str
    op: str
    scalars: str = ""

    @classmethod
    def read(cls, text: str) -> Key:
        found = KEY.fullmatch(text) if len(text) <= LONGEST_KEY else None
        if found is None:
            raise BadFile(
                f"a key of a lookup table is [device+]((torch.dtype, [sizes], [strides]), …)[+scalars]+op, got '{text:.200}'"
            )
        return cls(text, found["device"] or "", found["inputs"], found["op"], found["scalars"] or "")


def is_lookup_table(data: Mapping[Any, Any]) -> bool:
    """Whether an object looks like a lookup table."""
    return bool(data) and any(isinstance(key, str) and len(key) <= LONGEST_KEY and KEY.fullmatch(key) for key in data)


def read_lookup_table(data: Mapping[str, Any], target: ChoiceTarget) -> Iterator[Solution | LeftOutChoices]:
    """The choices of a table; where the device has its own key for a problem, keys without a device are left out."""
    require_triton(target, TABLE)
    keys = [Key.read(text) for text in data]
    answered = set()
    for key in sorted(keys, key=lambda key: not key.device):  # keys with a device first, otherwise in file order
        configs = data[key.text]
        if not isinstance(configs, list):
            raise BadFile(f"a key of a lookup table has a list of configs, got {configs!r:.100} for '{key.text:.200}'")
        count = len(configs)
        if key.device and not target.is_on(key.device):
            yield LeftOutChoices("device", key.device, count)
        elif key.op not in (*OPS, BIASED) or (key.scalars and key.scalars != SCALARS):
            yield LeftOutChoices("op", key.op, count)
        elif not key.device and (key.inputs, key.op) in answered:
            yield LeftOutChoices("superseded", count=count)
        else:
            if key.device and count:
                answered.add((key.inputs, key.op))
            yield from _of_key(key, configs)


def _of_key(key: Key, configs: Sequence[Any]) -> Iterator[Solution | LeftOutChoices]:
    problem = _problem(key)
    for config in configs:
        template = config.get("template_id") if isinstance(config, dict) else None
        if not isinstance(template, str):
            raise BadFile(f"a config of a lookup table names its template_id, got {config!r:.200} for '{key.text:.200}'")
        if isinstance(problem, LeftOutChoices):
            yield problem
        elif template.startswith(LIBRARY_PREFIX):
            yield choice(problem, {"kind": "library"})
        elif template in PLAIN:
            yield of_tile(problem, TritonTile.read(config))
        else:
            yield LeftOutChoices("template", template)


def _problem(key: Key) -> dict[str, Any] | LeftOutChoices:
    """The product that a key describes."""
    parts = list(INPUT.finditer(key.inputs))
    shapes = [tuple(map(int, part[2].split(", "))) for part in parts]
    strides = [tuple(map(int, part[3].split(", "))) for part in parts]
    rank, bias = 3 if key.op == "bmm" else 2, key.op == BIASED
    added = (shapes.pop(0), strides.pop(0)) if bias and len(shapes) == 3 else None
    if f"({', '.join(part[0] for part in parts)})" != key.inputs or [len(item) for item in (*shapes, *strides)] != [rank] * 4:
        raise BadFile(f"{key.op} has two operands of {rank} dimensions, sizes and strides in brackets, got '{key.text:.200}'")
    (*batch, m, k), (*same_batch, also_k, n) = shapes
    if k != also_k or batch != same_batch:
        raise BadFile(f"the sizes of the operands do not match in '{key.text:.200}'")
    dtypes = [part[1] for part in parts]
    dtype = dtype_of(dtypes[0])
    if dtype is None or len(set(dtypes)) > 1:
        return LeftOutChoices("dtype", ", ".join(dtypes))
    if bias and added not in (((n,), (1,)), ((m, n), (0, 1))):
        return LeftOutChoices("layout", key.text)
    stored = [storage_of(shape, stride) for shape, stride in zip(shapes, strides, strict=True)]
    # A packed matrix has no gap between its rows or its columns.
    letters = [
        found[0]
        for found, shape in zip(stored, shapes, strict=True)
        if found is not None and found[1] == (shape[-1] if found[0] == "r" else shape[-2])
    ]
    if len(letters) < len(shapes):
        return LeftOutChoices("layout", key.text)
    return {
        "M": m,
        "N": n,
        "K": k,
        "batch": batch[0] if batch else 1,
        "dtype": dtype,
        "layout": "".join(letters) + "r",
        **({"bias": True} if bias else {}),
    }


def read_log(data: Sequence[Any], target: ChoiceTarget) -> Iterator[Solution | LeftOutChoices]:
    """The choices of a log, the fastest of each run first."""
    require_triton(target, LOG)
    for op, key, problem, listed in runs_of(data):
        timed = [part for part in listed if part is not None]  # null: a kind of kernel that the log does not describe
        if not all(isinstance(part, dict) and isinstance(part.get("time"), int | float) for part in timed):
            raise BadFile(f"every entry under '{key}' of a max-autotune log must have a number under `time`")
        if op != OPS[0] or problem is None:
            yield LeftOutChoices("op", op, len(timed)) if op != OPS[0] else LeftOutChoices("shape", key, len(timed))
            continue
        for part in sorted(timed, key=lambda part: part["time"]):
            kind = part.get("type")
            if kind not in ("triton", "cublas"):
                raise InvalidValue(f"the type of a choice in a max-autotune log is triton or cublas, got {kind!r}")
            library = choice(problem, {"kind": "library"}) if kind == "cublas" else None
            yield library or of_tile(problem, TritonTile.read(part))
