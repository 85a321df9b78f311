"""What an estimate says: one row for each call, the step, and what it leaves out. Frozen, and prints itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kerncast.core import dtypes
from kerncast.core.device import NOT_MEASURED, Device
from kerncast.core.io import html
from kerncast.core.io.terminal import TextTable, assignments, counted, duration, line
from kerncast.estimating.calls import KernelCall
from kerncast.estimating.decoder import Decoder, DeltaAttention, Deployment, GroupedAttention, Workload
from kerncast.estimating.fields import weight_bytes
from kerncast.estimating.listing import state_bytes

# A profile's gigabyte: NVIDIA's "80 GB" and "141 GB" are 2^30 bytes each, others' are fewer.
GIGABYTE = 1e9


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one GPU. Activations, graphs and the server's own buffers are not counted."""

    weights_bytes: float
    cache_bytes: float
    capacity_bytes: float | None
    """None: the profile does not say."""

    @property
    def needed_bytes(self) -> float:
        """Weights and cache."""
        return self.weights_bytes + self.cache_bytes

    @property
    def fits(self) -> bool | None:
        """Whether weights and cache fit; None: unknown."""
        return None if self.capacity_bytes is None else self.needed_bytes <= self.capacity_bytes

    def sentence(self, device: str) -> str:
        """For people."""
        need = f"memory of one GPU: weights {self.weights_bytes / 1e9:,.1f} GB, cache {self.cache_bytes / 1e9:,.1f} GB"
        if self.capacity_bytes is None:
            return f"{need}; the profile of {device} does not say how much it has (memory_capacity_gb)"
        share = f"{need} of {self.capacity_bytes / 1e9:,.0f} GB"
        if self.fits:
            return share
        return f"{share}: DOES NOT FIT; use more GPUs, a narrower dtype, a smaller batch or a shorter context"


def memory_of(decoder: Decoder, calls: Iterable[KernelCall], spread: Deployment, work: Workload, device: Device) -> MemoryUse:
    """What one GPU holds."""
    weights = sum(call.count * call.weights * weight_bytes(call.weight_format) for call in calls)
    capacity = device.numbers.get("memory_capacity_gb")
    return MemoryUse(weights, cache_bytes(decoder, spread, work), None if capacity is None else capacity * GIGABYTE)


def cache_bytes(decoder: Decoder, spread: Deployment, work: Workload) -> float:
    """The cache of the sequences of one GPU; layers with a window keep no more than it, linear attention its states."""
    element = dtypes.BYTES[decoder.formats.cache]
    sequences = -(-work.batch // spread.copies)
    total = 0.0
    for kind in decoder.layers:
        attention = kind.attention
        if isinstance(attention, DeltaAttention):
            total += kind.count * sequences * state_bytes(attention, spread.tp, dtypes.BYTES[decoder.formats.activations])
            continue
        if isinstance(attention, GroupedAttention):
            length = min(work.longest, attention.window) if attention.window else work.longest
            kept = max(1, attention.kv_heads // spread.tp) * (attention.head_dim + attention.value_dim)
        else:
            length, kept = work.longest, attention.cached_dim
        total += kind.count * sequences * length * kept * element
    return total


COLUMNS = ("op", "shape", "calls", "time", "share", "90 % interval", "basis")
RIGHT = ("calls", "time", "share")


@dataclass(frozen=True)
class Row:
    """One call of a step: how often it runs, and what all of its runs together take."""

    name: str
    op: str | None
    problem: Mapping[str, Any]
    calls: int
    call_ns: float
    """Of one run."""
    time_ns: float
    lower_ns: float
    upper_ns: float
    share: float
    """Of the step."""
    basis: str
    """model or roofline."""
    model: str | None
    software: str | None
    reason: str | None
    """Why no model answered, or why the model is less sure of it."""
    note: str | None
    """What else the model says: a warning about its software, say."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table, as `COLUMNS` names its cells."""
        kind = f"{self.name} ({self.op})" if self.op else self.name
        interval = f"{duration(self.lower_ns)} to {duration(self.upper_ns)}"
        return (
            kind,
            assignments(self.problem),
            f"{self.calls:,}",
            duration(self.time_ns),
            f"{self.share:.1%}",
            interval,
            self.basis,
        )


@dataclass(frozen=True, repr=False)
class Estimate:
    """How long one step of a model takes on a device, op by op."""

    decoder: Decoder
    device: str
    spread: Deployment
    work: Workload
    rows: tuple[Row, ...]
    step_ns: float
    lower_ns: float
    upper_ns: float
    memory: MemoryUse
    left_out: tuple[str, ...]
    """What the step does besides, and is not in the time."""
    notes: tuple[str, ...]
    """What was assumed, and which ops no model covers."""

    @property
    def total_ns(self) -> float:
        """All steps until the new tokens are there."""
        return self.step_ns * self.work.steps

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all GPUs together: computed in prefill, generated in decode."""
        return self._rate(self.step_ns)

    @property
    def basis_share(self) -> dict[str, float]:
        """The share of the step by what it is estimated from."""
        found: dict[str, float] = {}
        for row in self.rows:
            found[row.basis] = found.get(row.basis, 0.0) + row.share
        return found

    @property
    def measured(self) -> bool:
        """Whether all models that answered were trained on the device."""
        told = [f"{row.reason} {row.note}" for row in self.rows if row.basis == "model"]
        return not any(f"{self.device} {NOT_MEASURED}" in text for text in told)

    def _rate(self, step_ns: float) -> float:
        return self.work.batch * self.work.tokens_per_sequence / step_ns * 1e9

    @property
    def table(self) -> TextTable:
        """One row for each call."""
        return TextTable(COLUMNS, [row.cells for row in self.rows], right=RIGHT)

    @property
    def title(self) -> str:
        """What was estimated."""
        work, spread = self.work, self.spread
        many = f", ep {spread.ep}" if spread.ep > 1 else ""
        new = f", {work.new_tokens:,} new tokens" if work.steps > 1 or (work.past and work.phase == "prefill") else ""
        return (
            f"{self.decoder.name} on {counted(spread.gpus, 'GPU')} ({self.device}, tp {spread.tp}{many}), {work.phase}: batch "
            f"{work.batch:,}, context {work.context:,}{new}"
        )

    @property
    def headline(self) -> str:
        """The step, in one line."""
        low, high = self._rate(self.upper_ns), self._rate(self.lower_ns)
        each = self.tokens_per_s / self.spread.gpus
        many = f"; {counted(self.work.steps, 'step')}: {duration(self.total_ns)}" if self.work.steps > 1 else ""
        return (
            f"step {duration(self.step_ns)} ({duration(self.lower_ns)} to {duration(self.upper_ns)}){many}; "
            f"{self.tokens_per_s:,.0f} tokens/s ({low:,.0f} to {high:,.0f}), {each:,.0f} per GPU"
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """The memory, what was assumed, what is left out: a sentence each."""
        of_rows = {row.software or row.model for row in self.rows if row.basis == "model"}
        servers = ", ".join(sorted({name for text in of_rows if text for name in text.split(", ")}))
        of = {"model": f" ({servers})"} if servers else {}
        shares = ", ".join(f"{share:.0%} by {basis}{of.get(basis, '')}" for basis, share in sorted(self.basis_share.items()))
        left = f"not in the time: {', '.join(self.left_out)}"
        return (self.memory.sentence(self.device), f"of the step, {shares}", *self.notes, left)

    @property
    def closing(self) -> tuple[str, ...]:
        """What comes after the table, line by line."""
        return (self.headline, *self.remarks)

    def __repr__(self) -> str:
        return "\n".join([line(self.title), str(self.table), *map(line, self.closing)])

    def _repr_html_(self) -> str:
        listed = html.table(COLUMNS, [row.cells for row in self.rows], right=RIGHT)
        return html.panel(self.title, html.note(self.headline), listed, *map(html.note, self.remarks))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        work, spread, memory = self.work, self.spread, self.memory
        return {
            "model": self.decoder.name,
            "model_type": self.decoder.model_type,
            "parameters": self.decoder.parameters,
            "device": self.device,
            "phase": work.phase,
            "batch": work.batch,
            "context": work.context,
            "new_tokens": work.new_tokens,
            "tp": spread.tp,
            "ep": spread.ep,
            "gpus": spread.gpus,
            "formats": asdict(self.decoder.formats),
            "step_ns": self.step_ns,
            "lower_ns": self.lower_ns,
            "upper_ns": self.upper_ns,
            "total_ns": self.total_ns,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s / spread.gpus,
            "memory": {**asdict(memory), "fits": memory.fits},
            "basis_share": self.basis_share,
            "rows": [{**asdict(row), "problem": dict(row.problem)} for row in self.rows],
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, repr=False)
class Comparison:
    """The same step on several devices, the fastest first."""

    estimates: tuple[Estimate, ...]
    refused: Mapping[str, str]
    """Devices that could not be estimated, and why."""

    COLUMNS = ("device", "step", "90 % interval", "tokens/s", "per GPU", "fits", "by model")

    @property
    def table(self) -> TextTable:
        """One row for each device."""
        rows = [
            (
                item.device,
                duration(item.step_ns),
                f"{duration(item.lower_ns)} to {duration(item.upper_ns)}",
                f"{item.tokens_per_s:,.0f}",
                f"{item.tokens_per_s / item.spread.gpus:,.0f}",
                {None: "unknown", True: "yes", False: "no"}[item.memory.fits],
                f"{item.basis_share.get('model', 0.0):.0%}",
            )
            for item in self.estimates
        ]
        return TextTable(self.COLUMNS, rows, right=("step", "tokens/s", "per GPU", "by model"))

    @property
    def title(self) -> str:
        """What was estimated."""
        first = self.estimates[0]
        return first.title.replace(f"({first.device}, ", "(", 1)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Devices without an estimate, those that nobody measured, and what is left out."""
        refused = [f"{name}: {why}" for name, why in self.refused.items()]
        plain = [item.device for item in self.estimates if "model" not in item.basis_share]
        guessed = [item.device for item in self.estimates if item.device not in plain and not item.measured]
        said = [f"not measured, so that models go by their profiles: {', '.join(guessed)}"] if guessed else []
        said += [f"by roofline alone, for no model answers: {', '.join(plain)}"] if plain else []
        return (*refused, *said, f"not in the time: {', '.join(self.estimates[0].left_out)}")

    @property
    def closing(self) -> tuple[str, ...]:
        """What comes after the table, line by line."""
        return self.remarks

    def __repr__(self) -> str:
        return "\n".join([line(self.title), str(self.table), *map(line, self.closing)])

    def _repr_html_(self) -> str:
        given = self.table
        return html.panel(self.title, html.table(given.columns, given.rows, right=given.right), *map(html.note, self.remarks))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"estimates": [item.as_json() for item in self.estimates], "refused": dict(self.refused)}
