"""What an estimate says: one row for each call, the step, and what it leaves out. Frozen, and prints itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kerncast.core.device import NOT_MEASURED
from kerncast.core.io import html
from kerncast.core.io.terminal import TextTable, assignments, counted, duration, line
from kerncast.estimating.decoder import Decoder
from kerncast.estimating.deployment import Deployment, Workload
from kerncast.estimating.memory import Memory

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
    memory: Memory
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
