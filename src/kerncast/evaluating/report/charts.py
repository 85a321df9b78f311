"""The charts as plotly figures: plain values, colours by name (`@model`), which the page fills in for light or dark."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

from kerncast.evaluating.report.plot import MOST_POINTS, Chart, axis, dots, line, low_end, sampled, share_axis, time_axis
from kerncast.evaluating.report.words import chart_text, duration, percent, problem_of, short

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
    left_out = (
        ""
        if len(kept) == count
        else f" Drawn from {len(kept):,} of {count:,} problems, the worst {MOST_CURVE_POINTS // 2:,} among them."
    )
    return Chart(
        "efficiency-curve",
        "How fast is the choice, problem by problem?",
        "Problems run from the worst on the left to the best on the right; the height is the speed of the chosen config as a "
        f"share of the fastest one measured, so a line that reaches 100 % early is good.{left_out}",
        {
            "data": [model, *lines],
            "layout": {
                "xaxis": axis("share of problems", tickformat=",.0%", dtick=0.25, range=[-0.01, 1.01]),
                "yaxis": share_axis("efficiency", low),
            },
        },
    )


def top_k_curve(points: list[dict[str, float]]) -> Chart:
    """What measuring a few of the best-scored configs is worth."""
    ks = [str(point["k"]) for point in points]
    means, hits = [point["efficiency_mean"] for point in points], [point["hit"] for point in points]
    values = np.array([*means, *hits])
    hover = "%{x} measured: %{y:.1%}<extra>%{fullData.name}</extra>"
    marks = {"mode": "lines+markers", "hovertemplate": hover}
    return Chart(
        "top-k",
        "What if a few candidates are measured first?",
        "The model names its k best-scored configs, the device times them, and the fastest is used. The solid line is the "
        "efficiency of that choice, the dotted one how often the very best config is among the k.",
        {
            "data": [
                line("efficiency, mean", ks, short(means), "@model", marker={"size": 8, "color": "@model"}, **marks),
                line("best config found", ks, short(hits), "@best", dash="dot", marker={"size": 8, "color": "@best"}, **marks),
            ],
            "layout": {"xaxis": axis("configs measured (k)", type="category"), "yaxis": share_axis("", low_end(values))},
        },
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
        {"data": data, "layout": {"xaxis": time_axis("predicted", both), "yaxis": time_axis("measured", both)}},
    )


def _band(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """The interval as an area: the median of its bounds in each band of predicted time."""
    if "lower_ns" not in rows.columns:
        return []
    known = rows.filter(pl.col("lower_ns").is_finite() & pl.col("upper_ns").is_finite()).sort(
        "predicted_ns", maintain_order=True
    )
    if known.height < 2:
        return []
    parts = np.array_split(np.arange(known.height), min(24, known.height))
    predicted, lower, upper = (known[name].to_numpy() for name in ("predicted_ns", "lower_ns", "upper_ns"))
    x = np.array([predicted[0], *(np.exp(np.log(predicted[part]).mean()) for part in parts), predicted[-1]])
    below, above = (np.array([np.median(bound[part] / predicted[part]) for part in parts]) for bound in (lower, upper))
    below, above = (np.array([factor[0], *factor, factor[-1]]) * x for factor in (below, above))
    hidden = {"width": 0, "hoverinfo": "skip"}
    return [
        line("", short(x), short(below), "@band", showlegend=False, **hidden),
        line("90 % interval", short(x), short(above), "@band", fill="tonexty", fillcolor="@band", **hidden),
    ]


def coverage_chart(rows: pl.DataFrame, level: float) -> Chart | None:
    """How many rows fall inside their interval, by band of predicted time."""
    if "lower_ns" not in rows.columns:
        return None
    known = rows.filter(pl.col("lower_ns").is_finite() & pl.col("upper_ns").is_finite()).sort(
        "predicted_ns", maintain_order=True
    )
    if known.height < 2 * BANDS:
        return None
    covered = (
        known.select((pl.col("measured_ns") >= pl.col("lower_ns")) & (pl.col("measured_ns") <= pl.col("upper_ns")))
        .to_series()
        .to_numpy()
    )
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
    low = low_end(np.array([*shares, level]))
    return Chart(
        "coverage",
        "Do the intervals hold?",
        f"Rows in ten equal bands, shortest predicted times on the left: each dot is the share whose measured time is inside "
        f"its {percent(level, 0)} interval, and should be near the dashed line; far below it the model is too sure of itself.",
        {
            "data": [
                line(f"promised, {percent(level, 0)}", [-0.5, BANDS - 0.5], [level, level], "@muted", width=1.8, dash="dash",
                     hoverinfo="skip"),
                line("covered", places, short(shares), "@model", mode="lines+markers", marker={"size": 9, "color": "@model"},
                      width=1.5, text=texts, hovertemplate="%{text}<extra></extra>"),
            ],
            "layout": {
                "xaxis": axis("predicted time (middle of the band)", tickvals=places[::3], ticktext=names,
                              range=[-0.5, BANDS - 0.5]),
                "yaxis": share_axis("rows covered", low),
            },
        },
    )  # fmt: skip


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
    return Chart(
        "ratio",
        "How far off are the times?",
        "Measured over predicted time: 1× is exact, right of it the kernel was slower than predicted; the narrower the hill, "
        "the better. The outermost bars hold everything beyond them.",
        {
            "data": [
                {
                    "type": "bar", "x": short(middle), "y": short(counts), "marker": {"color": "@model"}, "text": texts,
                    "textposition": "none", "hovertemplate": "%{text}<extra></extra>", "showlegend": False,
                }
            ],
            "layout": {
                "bargap": 0.06,
                "xaxis": axis("measured ÷ predicted", tickvals=short(math.log2(t) for t in ticks),
                              ticktext=[f"{t:g}×" for t in ticks]),
                "yaxis": axis("share of rows", tickformat=",.0%"),
            },
        },
    )  # fmt: skip
