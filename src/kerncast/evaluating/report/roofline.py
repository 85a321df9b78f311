"""The roofline plot: every problem below what the arithmetic and the memory of the device allow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.device import Device
from kerncast.evaluating.report.plot import Chart, dots, line, log_axis, sampled
from kerncast.evaluating.report.words import chart_text, duration, percent, problem_of, short

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
    heights = np.array([y for trace in data for y in trace["y"] if y is not None])
    return Chart("roofline", "How close to the machine's limits?", _reading(choosing, roofs, len(kept), known.height), {
        "data": data,
        "layout": {
            "xaxis": log_axis("arithmetic intensity, FLOP per byte", intensity),
            "yaxis": log_axis(unit, heights[heights > 0]),
        },
    })  # fmt: skip


def _reading(choosing: bool, roofs: bool, drawn: int, known: int) -> str:
    text = "Each problem has one position: further right means more arithmetic per byte, higher means faster."
    if roofs:
        text += (
            " The lines are what the device's memory (slope) and arithmetic (flat) allow; data in a cache may pass the slope."
        )
    if choosing:
        text += " A dot well below its ring is speed left on the table."
    return text if drawn == known else f"{text} {drawn:,} of {known:,} problems are drawn, sampled evenly."


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


def _roofs(device: Device | None, peaks: dict[str, float], intensity: Floats, scale: float) -> list[dict[str, Any]]:
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
