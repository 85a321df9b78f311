"""The optional section on how much must be measured: efficiency against problems, configs and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerncast.evaluating.report.plot import Chart, axis, line, low_end, share_axis
from kerncast.evaluating.report.words import short

HOVER = "%{x}: %{y:.1%}<extra>%{fullData.name}</extra>"


def budget_charts(budget: dict[str, Any] | None) -> list[Chart]:
    """The charts of the curves that are in `budget`."""
    if not budget:
        return []
    charts = []
    if budget.get("problems"):
        charts.append(
            _curve(
                "budget-problems", "How many problems must be measured?", budget["problems"], "problems",
                axis("problems measured"),
                "Trained on fewer problems, judged on the same held-out ones: where the line is flat, more of them add little.",
            )
        )  # fmt: skip
    if budget.get("configs"):
        charts.append(
            _curve(
                "budget-configs", "How many configs per problem?", budget["configs"], "share",
                axis("configs measured on each problem", tickformat=",.0%"),
                "Trained on a random share of each problem's configs: where the line goes flat, the rest need not be measured.",
            )
        )  # fmt: skip
    if budget.get("active"):
        charts.append(_active(budget["active"]))
    return charts


def _curve(name: str, title: str, points: list[dict[str, Any]], by: str, x_axis: dict[str, Any], reading: str) -> Chart:
    x, mean = short(point[by] for point in points), short(point["efficiency_mean"] for point in points)
    data = []
    bounds = [(point.get("lower"), point.get("upper")) for point in points]
    if all(low is not None and high is not None for low, high in bounds):
        hidden: dict[str, Any] = {"width": 0, "hoverinfo": "skip"}
        lower, upper = short(low for low, _ in bounds), short(high for _, high in bounds)
        data.append(line("", x, lower, "@band", showlegend=False, **hidden))
        data.append(line("95 % interval", x, upper, "@band", fill="tonexty", fillcolor="@band", **hidden))
    marker = {"size": 8, "color": "@model"}
    data.append(line("efficiency, mean", x, mean, "@model", mode="lines+markers", marker=marker, hovertemplate=HOVER))
    lowest = np.array([value for value in (*mean, *(low for low, _ in bounds)) if value is not None])
    layout = {"xaxis": x_axis, "yaxis": share_axis("efficiency", low_end(lowest))}
    return Chart(name, title, reading, {"data": data, "layout": layout})


def _active(points: list[dict[str, Any]]) -> Chart:
    x = short(point["vectors"] for point in points)
    kinds = (("active", "chosen by the model", "@model", "solid"), ("random", "at random", "@muted", "dash"))
    lines = [
        line(label, x, short(point[name] for point in points), color, dash=dash, mode="lines+markers",
             marker={"size": 8, "color": color}, hovertemplate=HOVER)
        for name, label, color, dash in kinds
    ]  # fmt: skip
    values = np.array([point[name] for point in points for name in ("random", "active")])
    layout = {"xaxis": axis("vectors measured"), "yaxis": share_axis("efficiency", low_end(values))}
    reading = "The same number of measurements, chosen at random or by the model: the higher line learns faster."
    return Chart("budget-active", "Is it worth choosing what to measure?", reading, {"data": lines, "layout": layout})
