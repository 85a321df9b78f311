"""What is said about one problem on one device: how long it takes, how sure that is, and what the answer comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kerncast.core.io import html
from kerncast.core.io.terminal import assignments, duration, known, printable, three_digits

Basis = Literal["model", "roofline", "none"]


@dataclass(frozen=True, repr=False)
class Prediction:
    """The answer to one problem; `basis` says whether a model, a roofline or nothing is behind its time."""

    op: str
    problem: Mapping[str, Any]
    """The parameters, those that were filled in among them."""
    device: str
    status: str
    """`ok`, or why the model did not answer or extrapolates (`out_of_range`, `unsupported` …)."""
    time_ns: float | None = None
    lower_ns: float | None = None
    upper_ns: float | None = None
    roofline_ns: float | None = None
    """What the device's peak rates allow at best; None: the work, or a number of the device, is not known."""
    basis: Basis = "none"
    model: str | None = None
    """The id of the model that answered."""
    software: str | None = None
    """What the model was trained on: `vllm==0.24.0`."""
    config: Mapping[str, Any] | None = None
    """The config that was asked about, or the best one; None: there is nothing to choose, or nothing was chosen."""
    filled: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that were not given, and of which the model saw one value only."""
    taken: Mapping[str, Any] = field(default_factory=dict)
    """Element types that stand for those asked about, for no model saw these: fp16 for bf16."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """The size of the parts whose times were added, for no model saw a problem as large as the whole: M of a product."""
    reason: str = ""
    """Why it is not an answer of a model that was trained on the like."""
    card: str = ""
    """What the answer comes from, in one line."""
    note: str = ""
    """What else to know: a warning about the software, the other software that models are there for."""
    tflops: float | None = None
    bandwidth_gb_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the status is ok."""
        return self.status == "ok"

    def lines(self) -> list[tuple[str, str]]:
        """What is known, as names and texts for people."""
        found = [("problem", f"{self.op} {assignments(known(self.problem))} on {self.device}")]
        if self.status != "ok":
            found.append(("status", self.status))
        if self.time_ns is not None:
            label = "time" if self.basis == "model" else "time, by roofline"
            between = (
                f" (90 % interval {duration(self.lower_ns)} to {duration(self.upper_ns)})"
                if self.lower_ns is not None and self.upper_ns is not None
                else " (no interval)"
            )
            found.append((label, duration(self.time_ns) + between))
        if self.roofline_ns is not None:
            times = f", {self.time_ns / self.roofline_ns:.2f} times that" if self.time_ns and self.basis == "model" else ""
            found.append(("roofline", duration(self.roofline_ns) + (f" (the time is{times[1:]})" if times else "")))
        rates = [(self.tflops, "TFLOPS"), (self.bandwidth_gb_s, "GB/s")]
        if any(rate for rate, _ in rates):
            found.append(("rates", ", ".join(f"{three_digits(rate)} {unit}" for rate, unit in rates if rate)))
        if self.config:
            found.append(("best config", assignments(known(self.config))))
        if self.filled:
            found.append(("filled in", f"{assignments(known(self.filled))} (the model saw no other value)"))
        if self.taken:
            found.append(("taken as", assignments(known(self.taken))))
        if self.parts:
            found.append(("in parts", f"{assignments(known(self.parts))} (their times are added)"))
        found.append(("basis", self.basis if self.model is None else f"{self.basis} {self.model}"))
        if self.software:
            found.append(("software", self.software))
        found += [(name, text) for name, text in (("card", self.card), ("reason", self.reason), ("note", self.note)) if text]
        return found

    def __repr__(self) -> str:
        parts = self.lines()
        return f"Prediction({self.status}: {printable('; '.join(f'{name} {text}' for name, text in parts))})"

    def _repr_html_(self) -> str:
        return html.panel(f"{self.op} on {self.device}: {self.status}", html.facts(self.lines()[1:]))

    def as_json(self) -> dict[str, Any]:
        """The values that are known, for `--json` and JSON files."""
        found: dict[str, Any] = {"status": self.status, "op": self.op, "device": self.device, "problem": dict(self.problem)}
        if self.config is not None:
            found["config"] = {name: value for name, value in self.config.items() if value is not None}
        for name in ("time_ns", "lower_ns", "upper_ns", "roofline_ns", "tflops", "bandwidth_gb_s"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        found["basis"] = self.basis
        for name in ("model", "software"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        for name in ("filled", "taken", "parts"):
            if getattr(self, name):
                found[name] = dict(getattr(self, name))
        return found | {name: text for name in ("reason", "card", "note") if (text := getattr(self, name))}
