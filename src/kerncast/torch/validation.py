"""What `validate` found: typed, printable, and as a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kerncast.core.io.html import escape
from kerncast.core.io.terminal import assignments, duration, printable

PRODUCT_HEADERS = ("problem", "decision", "chosen", "time", "max-autotune", "speed", "of the best")
AS_GOOD = 0.97
MODE_HEADERS = ("compiled with", "compile CPU s", "compile s", "run", "speed", "kernels timed")


@dataclass(frozen=True)
class ValidatedProduct:
    """One matrix product: what was chosen, what stock Inductor would have timed, and the fastest that was measured."""

    problem: dict[str, Any]
    status: str
    reason: str
    chosen: str = ""
    chosen_ns: float | None = None
    stock: Mapping[str, float] = field(default_factory=dict)
    best: str = ""
    best_ns: float | None = None
    measured: int = 0
    skipped: int = 0
    """Configs that were ranked but need not be compiled."""
    log_errors: tuple[float, ...] = ()
    """log(predicted / measured) of all that were measured."""

    @property
    def autotuned_ns(self) -> float | None:
        """The faster of what stock max-autotune times."""
        return min(self.stock.values(), default=None)

    @property
    def speed(self) -> float | None:
        """Against max-autotune: above 1 is faster."""
        return None if self.chosen_ns is None or self.autotuned_ns is None else self.autotuned_ns / self.chosen_ns

    @property
    def efficiency(self) -> float | None:
        """The best measured time over the chosen one's."""
        return None if self.chosen_ns is None or self.best_ns is None else self.best_ns / self.chosen_ns


@dataclass(frozen=True)
class Mode:
    """A whole model, compiled in one way."""

    name: str
    compile_cpu_seconds: float
    compile_seconds: float
    run_ns: float
    timed: int
    """Kernels that Inductor timed while compiling."""
    largest_difference: float
    """From the result without torch.compile."""


@dataclass(frozen=True, repr=False)
class Validation:
    """Products and modes, with the figures over all of them."""

    model: str
    device: str
    digest: str
    products: tuple[ValidatedProduct, ...] = ()
    modes: tuple[Mode, ...] = ()

    @property
    def speeds(self) -> list[float]:
        """Of the products against max-autotune."""
        return [item.speed for item in self.products if item.speed is not None]

    @property
    def efficiencies(self) -> list[float]:
        return [item.efficiency for item in self.products if item.efficiency is not None]

    @property
    def rmse_log(self) -> float | None:
        """The root mean square of log(predicted / measured)."""
        errors = [error for item in self.products for error in item.log_errors]
        return math.sqrt(statistics.fmean(error**2 for error in errors)) if errors else None

    @property
    def as_good(self) -> bool:
        """Whether the chosen kernels, and each whole model, have at least 97 % of the speed of max-autotune's."""
        times = {item.name: item.run_ns for item in self.modes}
        networks = [times["max-autotune"] / times["kerncast"]] if {"max-autotune", "kerncast"} <= set(times) else []
        found = [*([geometric_mean(self.speeds)] if self.speeds else []), *networks]
        return bool(found) and all(speed is not None and speed >= AS_GOOD for speed in found)

    def worst(self, count: int = 5) -> list[ValidatedProduct]:
        """The products whose chosen kernel is furthest behind max-autotune's."""
        return sorted((item for item in self.products if item.speed is not None), key=lambda item: item.speed or 0)[:count]

    def as_json(self) -> dict[str, Any]:
        """Every product and mode, and the figures."""
        return {
            "model": self.model,
            "device": self.device,
            "digest": self.digest,
            "speed_geometric_mean": geometric_mean(self.speeds),
            "efficiency_mean": statistics.fmean(self.efficiencies) if self.efficiencies else None,
            "rmse_log": self.rmse_log,
            "products": [
                {**asdict(item), "speed": item.speed, "efficiency": item.efficiency, "autotuned_ns": item.autotuned_ns}
                for item in self.products
            ],
            "modes": [asdict(item) for item in self.modes],
        }

    def product_rows(self, products: Sequence[ValidatedProduct] | None = None) -> list[tuple[str, ...]]:
        """For a table under PRODUCT_HEADERS."""
        return [
            (
                assignments(item.problem),
                item.status,
                item.chosen or item.reason,
                duration(item.chosen_ns) if item.chosen_ns is not None else "",
                duration(item.autotuned_ns) if item.autotuned_ns is not None else "",
                f"{item.speed:.2f} x" if item.speed is not None else "",
                f"{item.efficiency:.1%}" if item.efficiency is not None else "",
            )
            for item in (self.products if products is None else products)
        ]

    def mode_rows(self) -> list[tuple[str, ...]]:
        """For a table under MODE_HEADERS; speeds are against max-autotune."""
        reference = next((item.run_ns for item in self.modes if item.name == "max-autotune"), None)
        return [
            (
                item.name,
                f"{item.compile_cpu_seconds:.1f}",
                f"{item.compile_seconds:.1f}",
                duration(item.run_ns),
                "" if reference is None else f"{reference / item.run_ns:.2f} x",
                f"{item.timed:,}",
            )
            for item in self.modes
        ]

    def headline(self) -> str:
        """The figures over all products."""
        if not self.speeds:
            return "no product was measured"
        decided = sum(item.status == "chosen" for item in self.products)
        best = f", {statistics.fmean(self.efficiencies):.1%} of the best measured" if self.efficiencies else ""
        worst = min(self.speeds)
        return (
            f"{len(self.products):,} products, {decided:,} chosen without timing: {geometric_mean(self.speeds):.2f} x the "
            f"speed of max-autotune's kernels (geometric mean; worst {worst:.2f} x){best}; "
            f"log-RMSE of predictions {'unknown' if self.rmse_log is None else format(self.rmse_log, '.2f')}"
        )

    def __repr__(self) -> str:
        lines = [self.headline()] if self.products else []
        lines += [f"{row[0]}: compile {row[1]} CPU s, run {row[3]} ({row[4]})" for row in self.mode_rows()]
        return "\n".join(map(printable, lines))

    def picture(self) -> str:
        """Speed against compile time, one point a mode, as SVG."""
        return _picture(self.modes)


def geometric_mean(values: Sequence[float]) -> float | None:
    """None where there are no values."""
    return statistics.geometric_mean(values) if values else None


WIDTH, HEIGHT, EDGE = 640, 400, 70


def _picture(modes: Sequence[Mode]) -> str:
    """Compile time to the right on a logarithmic axis, speed upwards: the best corner is the upper left one."""
    seconds = [max(item.compile_cpu_seconds, 0.1) for item in modes]
    reference = next((item.run_ns for item in modes if item.name == "max-autotune"), modes[0].run_ns if modes else 1.0)
    speeds = [reference / item.run_ns for item in modes]
    low, high = math.log(min(seconds, default=1) / 1.5), math.log(max(seconds, default=10) * 1.5)
    bottom, top = min([*speeds, 1.0]) * 0.9, max([*speeds, 1.0]) * 1.1
    parts = []
    for item, at, speed in zip(modes, seconds, speeds, strict=True):
        x = EDGE + (math.log(at) - low) / (high - low) * (WIDTH - 2 * EDGE)
        y = HEIGHT - EDGE - (speed - bottom) / (top - bottom) * (HEIGHT - 2 * EDGE)
        told = f"{escape(item.name)}: {speed:.2f} x, {at:.1f} CPU s"
        anchor = "end" if x > WIDTH * 0.6 else "start"
        shift = -12 if anchor == "end" else 12
        parts.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" fill="#2a6fb0"/>'
            f'<text x="{x + shift:.0f}" y="{y + 4:.0f}" text-anchor="{anchor}">{told}</text>'
        )
    frame = (
        f'<path d="M{EDGE} {EDGE} V{HEIGHT - EDGE} H{WIDTH - EDGE}" fill="none" stroke="#888"/>'
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 25}" text-anchor="middle">CPU seconds to compile (logarithmic)</text>'
        f'<text x="22" y="{HEIGHT / 2:.0f}" text-anchor="middle" transform="rotate(-90 22 {HEIGHT / 2:.0f})">'
        "speed, max-autotune = 1</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>{frame}{"".join(parts)}</svg>\n'
    )
