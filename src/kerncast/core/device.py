"""A device: a named hardware profile whose numbers features read as `hw.*`.

An unknown number is absent, never guessed; features that need it are left out and reported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kerncast.core import dtypes
from kerncast.core.expr import Expr, Namespace, Symbol, constant, symbol
from kerncast.core.io import html
from kerncast.core.io.terminal import printable
from kerncast.errors import InvalidValue

# Every number a profile may hold. Units are in the names; bytes and KB are powers of two, GB/s is 10^9.
NUMBERS: dict[str, str] = {
    "num_cus": "compute units: CUs, SMs, Tensix cores or CPU cores",
    "simds_per_cu": "SIMD units (AMD) or sub-partitions (NVIDIA) per compute unit",
    "shader_engines": "shader engines (AMD) or GPCs (NVIDIA)",
    "max_clock_mhz": "highest engine clock",
    "max_waves_per_cu": "wavefronts or warps that one compute unit holds",
    "wavefront_size": "lanes per wavefront or warp",
    "lds_capacity_bytes": "LDS or shared memory per compute unit",
    "smem_per_block_bytes": "LDS or shared memory that one block may use",
    "max_work_group_size": "work-items or threads that one work-group or block may have",
    "l1_cache_kb": "L1 data cache per compute unit",
    "l2_cache_kb": "L2 cache: per chiplet on AMD, per core on a CPU, in total on NVIDIA",
    "l3_cache_kb": "last-level cache, in total",
    "num_xcd": "compute chiplets",
    "memory_bandwidth_gb_s": "peak memory bandwidth",
    "memory_capacity_gb": "device memory",
    "vector_bytes": "widest SIMD register",
    "bf16_group": "bf16 products that one instruction adds to a 32-bit sum; 1 without such an instruction",
    "int8_group": "int8 products that one instruction adds to a 32-bit sum; 1 without such an instruction",
    "matrix_tile_rows": "rows of a matrix tile register (AMX); 1 without them",
    "cache_line_bytes": "cache line",
    "grid_x": "compute grid, columns",
    "grid_y": "compute grid, rows",
    "l1_bytes_per_core": "local memory of one core of a grid",
    "noc_link_bytes_per_cycle": "effective width of one network-on-chip link",
    "link_bandwidth_gb_s": "peak bandwidth to the other devices of a node, of one device and in one direction",
    "max_registers_per_thread": "registers that one thread may use",
    "node_devices": "devices that the links of a node join, if not 8",
    "node_bandwidth_gb_s": "peak bandwidth to the devices of other nodes, of one device and in one direction",
}
# The rate for the problem's own dtype, in FLOP/s: a table by dtype, bound to the problem's `dtype` parameter.
PEAK = "peak_flops"
# Numbers that only tell devices apart: a profile that lacks one reads as 0, unlike every device that was measured.
TELLING_APART = ("memory_capacity_gb",)
# Devices of a node, unless the profile says otherwise.
USUAL_NODE = 8
# What a note says of a device, after its name, that a model answers for by its profile alone.
NOT_MEASURED = "was not measured"

KINDS = ("gpu", "npu", "cpu")
# Far beyond any device on both sides, and so that products and ratios of numbers stay finite.
SMALLEST, LARGEST = 1e-12, 1e18
LONGEST_NAME, LONGEST_TITLE = 100, 300


def hardware_namespace() -> Namespace:
    """The symbols `hw.*` while tracing."""
    return Namespace("hw", {name: symbol(Symbol(f"hw.{name}")) for name in (*NUMBERS, PEAK)})


@dataclass(frozen=True, repr=False)
class Device:
    """A profile. `name` is its identity; `sources` say where each number comes from."""

    name: str
    title: str
    kind: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    architecture: str | None = None
    """What compilers call the chip (`gfx942`, `sm_90`); several parts may share it."""
    estimated: Mapping[str, float] = field(default_factory=dict)
    """Rates that the profile lacks, as the fastest rows of some data reached them (`kerncast.core.rates`): numbers by their
    name, peak rates by their dtype. Models learn times relative to them; they are neither limits nor features."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", self.name) or self.name.endswith(".toml"):
            raise InvalidValue(
                f"a device's name is letters, digits, '_', '-', '+', '.' and does not end in .toml, got '{self.name}'"
            )
        if len(self.name) > LONGEST_NAME or len(self.title) > LONGEST_TITLE:
            raise InvalidValue(
                f"a device's name has at most {LONGEST_NAME} characters and its title {LONGEST_TITLE}, got {len(self.name):,} "
                f"and {len(self.title):,}: shorten them, or name a known device"
            )
        if self.kind not in KINDS:
            raise InvalidValue(f"device {self.name}: kind must be one of {', '.join(KINDS)}, got '{self.kind}'")
        either = {**NUMBERS, **dtypes.CODES}
        for known, given, what in (
            (NUMBERS, self.numbers, "number"), (dtypes.CODES, self.peak_tflops, "dtype"), (either, self.estimated, "rate"),
        ):  # fmt: skip
            unknown = sorted(set(given) - set(known))
            if unknown:
                raise InvalidValue(f"device {self.name}: unknown {what} '{unknown[0]}' (known: {', '.join(known)})")
        for name, value in {**self.numbers, **self.peak_tflops, **self.estimated}.items():
            if not SMALLEST <= value <= LARGEST:
                raise InvalidValue(
                    f"device {self.name}: {name} must be a positive number from {SMALLEST:g} to {LARGEST:g}, got {value}; "
                    "leave it out if unknown"
                )

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        peaks = ", ".join(f"{name} {value:g}" for name, value in self.peak_tflops.items())
        rates = f"peak TFLOPS {peaks}" if peaks else "peak rates unknown"
        return printable(f"Device({self.name}: {self.title}, {self.kind}; {len(self.numbers)} numbers; {rates})")

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:g}", NUMBERS[name], self.sources.get(name, "")) for name, value in self.numbers.items()]
        rows += [
            (f"peak of {name}", f"{value:g}", "TFLOPS", self.sources.get(name, "")) for name, value in self.peak_tflops.items()
        ]
        columns = ("number", "value", "what it is", "source")
        return html.panel(f"{self.name}: {self.title} ({self.kind})", html.table(columns, rows, right=("value",)))

    @property
    def digest(self) -> str:
        """A stable hash of the name and the numbers."""
        text = json.dumps([self.name, dict(self.numbers), dict(self.peak_tflops)], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def bindings(self, dtype: Expr | None = None, used: Iterable[str] | None = None) -> dict[str, Expr]:
        """What is known of `hw.*`, for `Program.bind`.

        `dtype` is the problem's dtype symbol and `used` the dtypes that occur (all that the op declares when
        left out): the peak rate counts as known only if it is known for all of them.
        """
        known = {**dict.fromkeys(TELLING_APART, 0.0), **self.numbers}
        bound = {f"hw.{name}": constant(value) for name, value in known.items()}
        if dtype is None:
            return bound
        assert isinstance(dtype.payload, Symbol)
        needed = {label for label, _ in dtype.payload.codes} if used is None else set(used)
        # What is left out is of dtypes that do not occur in the data.
        peaks = {name: peak * 1e12 for name in dtypes.CODES if (peak := self.peak_of(name)) is not None}
        if needed and needed <= set(peaks):
            bound[f"hw.{PEAK}"] = dtypes.by_dtype(peaks, dtype)
        return bound

    def rates(self, dtype: Expr | None = None, used: Iterable[str] | None = None) -> dict[str, Expr]:
        """As `bindings`, with the estimated rates too, and the rate of the implied dtype for an op without one."""
        numbers = {**self.numbers, **{name: value for name, value in self.estimated.items() if name in NUMBERS}}
        peaks = {**self.peak_tflops, **{name: value for name, value in self.estimated.items() if name in dtypes.CODES}}
        bound = replace(self, numbers=numbers, peak_tflops=peaks).bindings(dtype, used)
        if dtype is None and dtypes.IMPLIED in peaks:
            bound[f"hw.{PEAK}"] = constant(peaks[dtypes.IMPLIED] * 1e12)
        return bound

    @property
    def node_devices(self) -> int:
        """How many devices a node has: eight, unless the profile says otherwise."""
        return int(self.numbers.get("node_devices", USUAL_NODE))

    def peak_of(self, dtype: str) -> float | None:
        """The peak rate of a dtype in TFLOPS: its own, or that of the type in which it is multiplied; None: unknown."""
        return self.peak_tflops.get(dtype, self.peak_tflops.get(dtypes.MULTIPLIED_AS.get(dtype, dtype)))
