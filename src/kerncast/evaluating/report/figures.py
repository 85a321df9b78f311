"""The report's charts as plotly figures, in the colours of its light page."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from kerncast.errors import NotFound
from kerncast.evaluating.report.page import chart_sections, dtypes_of, without_fixed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from kerncast.evaluating.results import Evaluation


@cache
def palette() -> dict[str, str]:
    """The colours of the light page, by name."""
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): ([^;]+);", style[: style.index("@media")]))


def painted(value: Any, key: str = "") -> Any:
    """A figure with colours in place of their names, as the page's script fills them in."""
    if isinstance(value, str):
        return palette()[value[1:]] if value.startswith("@") and key.endswith("color") else value
    if isinstance(value, dict):
        return {name: painted(item, name) for name, item in value.items()}
    if isinstance(value, list) and value and (isinstance(value[0], dict | list) or key.endswith("color")):
        return [painted(item, key) for item in value]
    return value


class Charts(dict[str, "Figure"]):
    """Figures by name. A notebook shows all of them; elsewhere only their names are printed."""

    def __repr__(self) -> str:
        return f"Charts({', '.join(self)})"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for figure in self.values():
            display(figure)


def plotly_figures(evaluation: Evaluation, name: str | None = None) -> Charts | Figure:
    """Every chart that has something to show, by name; or only the chart called `name`."""
    try:
        from plotly.graph_objects import Figure
    except ImportError as error:
        raise NotFound.package("`plot()`", "plotly", "train") from error

    _, told = without_fixed(evaluation)
    budget = None if evaluation.budget is None else dict(evaluation.budget)
    sections = chart_sections(told, None, budget, dtypes_of(evaluation.problems))
    charts = {chart.name: chart for section in sections.values() for chart in section.charts}
    if name is not None and name not in charts:
        raise NotFound.named("chart of this evaluation", name, charts)
    wanted = charts if name is None else {name: charts[name]}
    found = Charts()
    for own, chart in wanted.items():
        figure = painted(chart.figure)
        layout = {"title": {"text": chart.title}, "template": "plotly_white", "hovermode": "closest", **figure["layout"]}
        found[own] = Figure(data=figure["data"], layout=layout)
    return found if name is None else found[name]
