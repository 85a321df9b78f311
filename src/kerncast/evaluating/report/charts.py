"""The charts as plotly figures: plain values, colours by name (`@model`), which the page fills in for light or dark."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.core.device import Device
from kerncast.core.io.html import chart_text
from kerncast.evaluating.report.figures import duration, percent, problem_of, short

Trace = dict[str, Any]

# Points are SVG elements: more than this slow a phone down and show nothing new.
MOST_POINTS = 4_000


@dataclass(frozen=True)
class Chart:
    """A figure with its title and the sentence that says how to read it."""

    name: str
    title: str
    reading: str
    data: list[Trace]
    x_axis: dict[str, Any]
    y_axis: dict[str, Any]
    layout: dict[str, Any] = field(default_factory=dict)

    @property
    def figure(self) -> dict[str, Any]:
        """As plotly takes it."""
        return {"data": self.data, "layout": {**self.layout, "xaxis": self.x_axis, "yaxis": self.y_axis}}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": title}, **more}


def share_axis(title: str, low: float | None = None) -> dict[str, Any]:
    """An axis of percent."""
    return axis(title, tickformat=",.0%", **({} if low is None else {"range": [low, 1.02]}))


def log_axis(title: str, values: Floats, text: Callable[[float], str] = "{:g}".format) -> dict[str, Any]:
    """A log axis with a little room at both ends; ticks at decades, and between them where there are few."""
    low, high = math.log10(values.min()), math.log10(values.max())
    margin = 0.05 * (high - low) + 0.03
    low, high = low - margin, high + margin
    digits = (1,) if high - low > 2 else (1, 2, 5) if high - low > 0.7 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    ticks = [digit * 10.0**place for place in range(math.floor(low), math.ceil(high) + 1) for digit in digits]
    return axis(title, type="log", range=short([low, high]), tickvals=short(ticks), ticktext=[text(tick) for tick in ticks])


def line(name: str, x: Any, y: Any, color: str, **more: Any) -> Trace:
    """A line; colours are names that the page fills in."""
    style = {"color": color, "width": more.pop("width", 2.5), "dash": more.pop("dash", "solid")}
    return {"type": "scatter", "mode": more.pop("mode", "lines"), "name": name, "x": x, "y": y, "line": style, **more}


def dotted(name: str, x: Any, y: Any, color: str, hover: str, size: int = 8, **more: Any) -> Trace:
    """A line with a dot at each point."""
    marker = {"size": size, "color": color}
    return line(name, x, y, color, mode="lines+markers", marker=marker, hovertemplate=hover, **more)


def dots(name: str, x: Any, y: Any, color: str, size: int, opacity: float, symbol: str = "circle", **more: Any) -> Trace:
    """Markers; colours are names that the page fills in."""
    marker = {"color": color, "size": size, "opacity": opacity, "symbol": symbol}
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker, **more}


def band(name: str, x: Any, lower: Any, upper: Any) -> list[Trace]:
    """The area between two lines."""
    hidden = {"width": 0, "hoverinfo": "skip"}
    return [
        line("", x, lower, "@band", showlegend=False, **hidden),
        line(name, x, upper, "@band", fill="tonexty", fillcolor="@band", **hidden),
    ]


def low_end(values: Floats) -> float:
    """Where an axis of shares begins: at 0, unless everything is far above it."""
    return max(0.0, math.floor(10 * float(values.min()) - 0.5) / 10) if len(values) else 0.0


def sampled(count: int, most: int = MOST_POINTS) -> Ints:
    """Indices of the points to draw: the same sample every time, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


# A long efficiency curve keeps all of the worst problems, and enough of the others to draw the line.
MOST_CURVE_POINTS = 2_000
BANDS = 10
RATIO_BINS = 41


def efficiency_curve(problems: pl.DataFrame, levels: dict[str, tuple[float, str]]) -> Chart:
    """Every problem from the worst to the best; `levels` are horizontal lines to compare with (value, colour)."""
    ordered = problems.sort("efficiency", "number")
    count = ordered.height
    kept = np.arange(count)
    if count > MOST_CURVE_POINTS:
        spread = np.linspace(0, count - 1, MOST_CURVE_POINTS // 2).round().astype(np.int64)
        kept = np.unique(np.concatenate([np.arange(MOST_CURVE_POINTS // 2), spread]))
    ordered = ordered[kept]
    place = (kept + 1) / count
    labels = [
        f"{chart_text(problem_of(row))}<br>{percent(row['efficiency'])} of the best, "
        f"{duration(row['chosen_ns'])} against {duration(row['best_ns'])}"
        for row in ordered.iter_rows(named=True)
    ]
    model = line(
        "the model's choice", short(place), short(ordered["efficiency"]), "@model",
        text=labels, hovertemplate="%{text}<extra></extra>", fill="tozeroy", fillcolor="@model-soft",
        mode="lines+markers" if count <= 120 else "lines", marker={"size": 5, "color": "@model"},
    )  # fmt: skip
    lines = [
        line(f"{name}, {percent(value)}", [0, 1], [value, value], color, width=1.8, dash="dash", hoverinfo="skip")
        for name, (value, color) in levels.items()
    ]
    low = low_end(np.array([*ordered["efficiency"].to_list(), *(value for value, _ in levels.values())]))
    some = f" Drawn from {len(kept):,} of {count:,} problems, the worst {MOST_CURVE_POINTS // 2:,} among them."
    return Chart(
        "efficiency-curve",
        "How fast is the choice, problem by problem?",
        "Problems run from the worst on the left to the best on the right; the height is the speed of the chosen config as a "
        f"share of the fastest one measured, so a line that reaches 100 % early is good.{'' if len(kept) == count else some}",
        [model, *lines],
        axis("share of problems", tickformat=",.0%", dtick=0.25, range=[-0.01, 1.01]),
        share_axis("efficiency", low),
    )


def top_k_curve(points: list[dict[str, float]]) -> Chart:
    """What measuring a few of the best-scored configs is worth."""
    ks = [str(point["k"]) for point in points]
    means, hits = [point["efficiency_mean"] for point in points], [point["hit"] for point in points]
    hover = "%{x} measured: %{y:.1%}<extra>%{fullData.name}</extra>"
    return Chart(
        "top-k",
        "What if a few candidates are measured first?",
        "The model names its k best-scored configs, the device times them, and the fastest is used. The solid line is the "
        "efficiency of that choice, the dotted one how often the very best config is among the k.",
        [
            dotted("efficiency, mean", ks, short(means), "@model", hover),
            dotted("best config found", ks, short(hits), "@best", hover, dash="dot"),
        ],
        axis("configs measured (k)", type="category"),
        share_axis("", low_end(np.array([*means, *hits]))),
    )


def predicted_scatter(rows: pl.DataFrame, problems: pl.DataFrame, choosing: bool) -> Chart:
    """Measured against predicted time, both on log axes, the interval as a band."""
    known = rows.filter(pl.col("predicted_ns").is_finite() & (pl.col("predicted_ns") > 0) & (pl.col("measured_ns") > 0))
    kept = sampled(known.height)
    drawn = known[kept]
    both = np.concatenate([known["measured_ns"].to_numpy(), known["predicted_ns"].to_numpy()])
    ends = [float(both.min()), float(both.max())]
    hover = "predicted %{customdata[0]}<br>measured %{customdata[1]}<br>%{text}<extra></extra>"
    data = [*_band(known), line("exact", short(ends), short(ends), "@muted", width=1.5, dash="dash", hoverinfo="skip")]
    texts = [chart_text(problem_of(row)) for row in drawn.iter_rows(named=True)]
    shown = [[duration(row[0]), duration(row[1])] for row in drawn.select("predicted_ns", "measured_ns").iter_rows()]
    size, opacity = (4, 0.35) if choosing else (6, 0.6)
    data.append(
        dots("measured vectors", short(drawn["predicted_ns"]), short(drawn["measured_ns"]), "@model", size=size,
             opacity=opacity, text=texts, customdata=shown, hovertemplate=hover)
    )  # fmt: skip
    if choosing:
        picked = problems.filter(pl.col("chosen_ns").is_not_null() & pl.col("predicted_ns").is_not_null())
        picked = picked[sampled(picked.height, MOST_POINTS // 4)]
        data.append(
            dots("chosen configs", short(picked["predicted_ns"]), short(picked["chosen_ns"]), "@accent", size=6, opacity=0.9,
                  text=[chart_text(problem_of(row)) for row in picked.iter_rows(named=True)],
                  customdata=[[duration(a), duration(b)] for a, b in picked.select("predicted_ns", "chosen_ns").iter_rows()],
                  hovertemplate=hover)
        )  # fmt: skip
    left_out = "" if len(kept) == known.height else f" {len(kept):,} of {known.height:,} vectors are drawn, sampled evenly."
    return Chart(
        "predicted-measured",
        "Are the predicted times right?",
        "Each dot is one measured vector; on the diagonal the prediction is exact, above it the kernel ran slower than "
        f"predicted, below it faster.{' The band should hold 90 % of the dots.' if len(data) > 2 + choosing else ''}{left_out}",
        data,
        log_axis("predicted", both, duration),
        log_axis("measured", both, duration),
    )


def _band(rows: pl.DataFrame) -> list[Trace]:
    """The interval as an area: the median of its bounds in each band of predicted time."""
    known = _with_intervals(rows)
    if known.height < 2:
        return []
    parts = np.array_split(np.arange(known.height), min(24, known.height))
    predicted, lower, upper = (known[name].to_numpy() for name in ("predicted_ns", "lower_ns", "upper_ns"))
    x = np.array([predicted[0], *(np.exp(np.log(predicted[part]).mean()) for part in parts), predicted[-1]])
    below, above = (np.array([np.median(bound[part] / predicted[part]) for part in parts]) for bound in (lower, upper))
    below, above = (np.array([factor[0], *factor, factor[-1]]) * x for factor in (below, above))
    return band("90 % interval", short(x), short(below), short(above))


def _with_intervals(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows that have an interval, by their predicted times."""
    if "lower_ns" not in rows.columns:
        return rows.clear()
    known = rows.filter(pl.col("lower_ns").is_finite() & pl.col("upper_ns").is_finite())
    return known.sort("predicted_ns", maintain_order=True)


def coverage_chart(rows: pl.DataFrame, level: float) -> Chart | None:
    """How many rows fall inside their interval, by band of predicted time."""
    known = _with_intervals(rows)
    if known.height < 2 * BANDS:
        return None
    covered = known.select(pl.col("measured_ns").is_between("lower_ns", "upper_ns")).to_series().to_numpy()
    predicted = known["predicted_ns"].to_numpy()
    parts = np.array_split(np.arange(known.height), BANDS)
    # Four labels fit on a phone; the others are shown on hover.
    names = [duration(float(np.median(predicted[part]))) for part in parts[::3]]
    shares = [float(covered[part].mean()) for part in parts]
    texts = [
        f"{duration(predicted[part[0]])} to {duration(predicted[part[-1]])}: {percent(share)} of {len(part):,} rows"
        for part, share in zip(parts, shares, strict=True)
    ]
    places = list(range(BANDS))
    promised = line(
        f"promised, {percent(level, 0)}",
        [-0.5, BANDS - 0.5],
        [level, level],
        "@muted",
        width=1.8,
        dash="dash",
        hoverinfo="skip",
    )
    hover = "%{text}<extra></extra>"
    return Chart(
        "coverage",
        "Do the intervals hold?",
        f"Rows in ten equal bands, shortest predicted times on the left: each dot is the share whose measured time is inside "
        f"its {percent(level, 0)} interval, and should be near the dashed line; far below it the model is too sure of itself.",
        [promised, dotted("covered", places, short(shares), "@model", hover, 9, width=1.5, text=texts)],
        axis("predicted time (middle of the band)", tickvals=places[::3], ticktext=names, range=[-0.5, BANDS - 0.5]),
        share_axis("rows covered", low_end(np.array([*shares, level]))),
    )


def ratio_chart(rows: pl.DataFrame) -> Chart | None:
    """How far off the times are, as a histogram of measured over predicted."""
    known = rows.filter(pl.col("predicted_ns").is_finite() & (pl.col("predicted_ns") > 0))
    if known.height < 2:
        return None
    ratio = np.log2(known["measured_ns"].to_numpy() / known["predicted_ns"].to_numpy())
    reach = float(np.clip(np.quantile(np.abs(ratio), 0.99), 0.05, 3.0))
    edges = np.linspace(-reach, reach, RATIO_BINS + 1)
    counts = np.histogram(np.clip(ratio, -reach, reach), edges)[0] / len(ratio)
    middle = (edges[:-1] + edges[1:]) / 2
    texts = [
        f"{2**a:.2f}× to {2**b:.2f}×: {percent(c)} of the rows" for a, b, c in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    ticks = [t for t in (0.125, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0) if abs(math.log2(t)) <= reach]
    if reach > 1:
        ticks = [t for t in ticks if t in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)]
    elif reach > 0.5:
        ticks = [t for t in ticks if t not in (0.9, 1.1)]
    bars = {
        "type": "bar", "x": short(middle), "y": short(counts), "marker": {"color": "@model"}, "text": texts,
        "textposition": "none", "hovertemplate": "%{text}<extra></extra>", "showlegend": False,
    }  # fmt: skip
    return Chart(
        "ratio",
        "How far off are the times?",
        "Measured over predicted time: 1× is exact, right of it the kernel was slower than predicted; the narrower the hill, "
        "the better. The outermost bars hold everything beyond them.",
        [bars],
        axis("measured ÷ predicted", tickvals=short(map(math.log2, ticks)), ticktext=[f"{t:g}×" for t in ticks]),
        axis("share of rows", tickformat=",.0%"),
        {"bargap": 0.06},
    )


# More dots than this slow down the browser; then problems are sampled, and the caption says so.
MOST_PROBLEMS = 10_000


def roofline_chart(problems: pl.DataFrame, device: Device | None, dtypes: list[str], choosing: bool) -> Chart | None:
    """Arithmetic intensity against the rate that was reached, by the chosen config and by the fastest one."""
    known = problems.filter((pl.col("flops") > 0) & (pl.col("bytes") > 0) & (pl.col("best_ns") > 0))
    if not known.height:
        return None
    kept = sampled(known.height, MOST_PROBLEMS)
    drawn = known[kept]
    flops, intensity = drawn["flops"].to_numpy(), (drawn["flops"] / drawn["bytes"]).to_numpy()
    best = flops / drawn["best_ns"].to_numpy()
    peaks = _peaks(device, dtypes, sorted(set(drawn["peak_share"].drop_nulls())))
    # FLOP per ns are GFLOP/s.
    top = max(float(best.max()), *(peak * 1e3 for peak in peaks.values()), 0.0)
    unit, scale = ("TFLOP/s", 1e-3) if top >= 1e3 else ("GFLOP/s", 1.0)
    data = _roofs(device, peaks, intensity, scale)
    roofs = bool(data)
    labels = [chart_text(problem_of(row)) for row in drawn.iter_rows(named=True)]
    hover = f"%{{text}}<br>%{{y:.3g}} {unit} at %{{x:.3g}} FLOP/byte<br>%{{customdata}}<extra>%{{fullData.name}}</extra>"
    data.append(
        dots("fastest measured" if choosing else "measured", short(intensity), short(best * scale), "@best", size=8,
             opacity=0.9, symbol="circle-open" if choosing else "circle", text=labels,
             customdata=[duration(t) for t in drawn["best_ns"]],
             hovertemplate=hover)
    )  # fmt: skip
    if choosing:
        reached = flops / drawn["chosen_ns"].cast(pl.Float64).fill_null(math.nan).to_numpy()
        told = [f"{duration(t)}, {percent(e)} of the best" for t, e in drawn.select("chosen_ns", "efficiency").iter_rows()]
        data.append(
            dots("chosen by the model", short(intensity), short(reached * scale), "@model", size=5, opacity=0.9, text=labels,
                 customdata=told, hovertemplate=hover)
        )  # fmt: skip
    reading = ["Each problem has one position: further right means more arithmetic per byte, higher means faster."]
    if roofs:
        reading.append(
            "The lines are what the device's memory (slope) and arithmetic (flat) allow; data in a cache may pass the slope."
        )
    if choosing:
        reading.append("A dot well below its ring is speed left on the table.")
    if len(kept) < known.height:
        reading.append(f"{len(kept):,} of {known.height:,} problems are drawn, sampled evenly.")
    heights = np.array([y for trace in data for y in trace["y"] if y is not None])
    return Chart(
        "roofline",
        "How close to the machine's limits?",
        " ".join(reading),
        data,
        log_axis("arithmetic intensity, FLOP per byte", intensity),
        log_axis(unit, heights[heights > 0]),
    )


def _peaks(device: Device | None, dtypes: list[str], shares: list[float]) -> dict[str, float]:
    """The flat roofs by name, in TFLOP/s, of the dtypes that occur (a profile may list ten) and the cores in use."""
    if device is None:
        return {}
    known = {name: peak for name in dtypes or sorted(device.peak_tflops) if (peak := device.peak_of(name)) is not None}
    cores = device.numbers.get("num_cus", 1.0)
    peaks = {}
    for dtype in known:
        for share in shares or [1.0]:
            name = dtype if share == 1.0 else f"{dtype}, {share * cores:g} of {cores:g} cores"
            peaks[name] = share * known[dtype]
    return peaks


def _roofs(device: Device | None, peaks: dict[str, float], intensity: Floats, scale: float) -> list[Trace]:
    bandwidth = device.numbers.get("memory_bandwidth_gb_s") if device is not None else None
    low, high = float(intensity.min()) / 1.6, float(intensity.max()) * 1.6
    roofs = []
    for number, (name, peak) in enumerate(sorted(peaks.items(), key=lambda item: -item[1])):
        rate = peak * 1e3
        # On log axes the roof is two straight pieces that meet at the ridge.
        corners = [low, high]
        if bandwidth is not None and low < rate / bandwidth < high:
            corners.insert(1, rate / bandwidth)
        heights = [min(rate, (bandwidth or math.inf) * x) * scale for x in corners]
        dash = ("solid", "dash", "dot", "dashdot")[number % 4]
        roofs.append(line(f"roof, {name}", short(corners), short(heights), "@muted", width=2, dash=dash, hoverinfo="skip"))
    if not roofs and bandwidth is not None:
        ends = np.array([low, high])
        roofs.append(line("memory roof", short(ends), short(ends * bandwidth * scale), "@muted", width=2, hoverinfo="skip"))
    return roofs


HOVER = "%{x}: %{y:.1%}<extra>%{fullData.name}</extra>"


def budget_charts(budget: dict[str, Any] | None) -> list[Chart]:
    """The charts of the curves that are in `budget`."""
    budget, drawn = budget or {}, []
    if points := budget.get("problems"):
        reading = (
            "Trained on fewer problems, judged on the same held-out ones: where the line is flat, more of them add little."
        )
        title = "How many problems must be measured?"
        drawn.append(_curve("budget-problems", title, points, "problems", axis("problems measured"), reading))
    if points := budget.get("configs"):
        reading = (
            "Trained on a random share of each problem's configs: where the line goes flat, the rest need not be measured."
        )
        across = axis("configs measured on each problem", tickformat=",.0%")
        drawn.append(_curve("budget-configs", "How many configs per problem?", points, "share", across, reading))
    if points := budget.get("active"):
        x = short(point["vectors"] for point in points)
        kinds = (("active", "chosen by the model", "@model", "solid"), ("random", "at random", "@muted", "dash"))
        lines = [
            dotted(label, x, short(point[name] for point in points), color, HOVER, dash=dash)
            for name, label, color, dash in kinds
        ]
        low = low_end(np.array([point[name] for point in points for name in ("random", "active")]))
        reading = "The same number of measurements, chosen at random or by the model: the higher line learns faster."
        title = "Is it worth choosing what to measure?"
        drawn.append(Chart("budget-active", title, reading, lines, axis("vectors measured"), share_axis("efficiency", low)))
    return drawn


def _curve(name: str, title: str, points: list[dict[str, Any]], by: str, x_axis: dict[str, Any], reading: str) -> Chart:
    x, mean = short(point[by] for point in points), short(point["efficiency_mean"] for point in points)
    bounds = [(point.get("lower"), point.get("upper")) for point in points]
    data = [dotted("efficiency, mean", x, mean, "@model", HOVER)]
    if all(low is not None and high is not None for low, high in bounds):
        data = [*band("95 % interval", x, short(low for low, _ in bounds), short(high for _, high in bounds)), *data]
    lowest = np.array([value for value in (*mean, *(low for low, _ in bounds)) if value is not None])
    return Chart(name, title, reading, data, x_axis, share_axis("efficiency", low_end(lowest)))
