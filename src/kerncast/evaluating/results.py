"""What `evaluate` returns: typed, frozen, and it prints as `kerncast evaluate` does."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from kerncast.core.io.artefact import ArtefactKind, Findings, PathContents, changed_since
from kerncast.core.io.atomic import write_atomically
from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.io.parquet import parquet_metadata, read_parquet
from kerncast.core.op.declaration import BANDWIDTH, TFLOPS
from kerncast.data.schema import content_digest
from kerncast.errors import BadFile, KerncastError
from kerncast.learning.metrics import Figure, Figures

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as PlotlyFigure

    from kerncast.evaluating.report.page import Charts


@dataclass(frozen=True)
class SliceFigures:
    """One part of the data: all problems or chosen configs (`of`) whose `by` is `value`."""

    of: str
    by: str
    value: str
    n: int
    efficiency_mean: float | None
    efficiency_p50: float | None
    efficiency_p10: float | None
    efficiency_min: float | None
    n_rows: int
    mape: float | None
    n_best: int | None = None
    """Of a config value: the number of problems on which the best config has it. `n` counts those where it was chosen."""
    n_agreed: int | None = None
    """The problems on which the best config and the chosen one have it."""
    efficiency_mean_where_best: float | None = None
    """The mean efficiency of the choices, whatever was chosen, on the problems where this value is best."""


@dataclass(frozen=True)
class WorstProblem:
    """A problem that lost much: what was chosen, what was best."""

    problem: Mapping[str, Any]
    chosen: Mapping[str, Any]
    best: Mapping[str, Any]
    efficiency: float
    chosen_ns: float | None
    """None: the choice failed."""
    best_ns: float
    predicted_ns: float | None
    configs: int
    chosen_tflops: float | None = None
    """None, here and below: the op's arithmetic (or its bytes) is unknown, or there is none."""
    best_tflops: float | None = None
    chosen_bandwidth_gb_s: float | None = None
    best_bandwidth_gb_s: float | None = None
    device: str | None = None
    """None: all problems are of one device."""


@dataclass(frozen=True)
class WorstPrediction:
    """A row whose predicted time is far from the measured one."""

    problem: Mapping[str, Any]
    config: Mapping[str, Any]
    measured_ns: float
    predicted_ns: float
    ratio: float
    """Predicted over measured."""
    tflops: float | None
    """Of the measured time, as `bandwidth_gb_s`; None: the op's arithmetic is unknown, or there is none."""
    bandwidth_gb_s: float | None
    device: str | None = None
    """None: all rows are of one device."""


@dataclass(frozen=True)
class Rate:
    """A rate in TFLOPS or GB/s over problems; a choice that failed counts as 0."""

    p10: float
    p50: float
    max: float


@dataclass(frozen=True)
class Rates:
    """The rates of the chosen and of the best configs."""

    chosen: Rate
    best: Rate


@dataclass(frozen=True)
class TierFigures:
    """The figures of one tier of a selector, on the problems that it answers itself."""

    tier: str
    efficiency: Figure | None
    n: int
    not_tried: int
    loses_to_full: float | None
    answers_itself: float
    p50_us: float
    p99_us: float
    bytes: int


@dataclass(frozen=True)
class TopK:
    """The efficiency after measuring the `k` best-scored configs."""

    k: int
    efficiency_mean: float
    hit: float


def _fields(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the JSON as the fields of its value: `n_problems` is `n`, and what it holds cannot be changed."""
    return {
        "n" if name == "n_problems" else name: MappingProxyType(dict(value)) if isinstance(value, dict) else value
        for name, value in line.items()
    }


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """What `evaluate` found: figures by name, and a point per problem and per row. `as_json()` is what `--json` prints."""

    _summary: Mapping[str, Any]
    problems: pl.DataFrame
    """Per problem: its parameters and device, chosen and best config (`chosen.*`, `best.*`), times, efficiency."""
    rows: pl.DataFrame
    """Per row that worked: its parameters, `number` (its problem's), measured and predicted time, bounds, score."""
    failures: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Per row that failed: its parameters, and its problem's `number`."""

    # -- figures ---------------------------------------------------------------------------------------

    @cached_property
    def overall(self) -> Figures:
        """The model's figures."""
        return Figures.of(self._summary["overall"])

    @cached_property
    def baselines(self) -> Mapping[str, Figures]:
        """The figures of the baselines, which need no model, by name."""
        return MappingProxyType({name: Figures.of(card) for name, card in self._summary["baselines"].items()})

    @property
    def n(self) -> int:
        """Number of problems judged; a problem counts once for each device that it was measured on."""
        return self.overall.n

    @property
    def split(self) -> str | None:
        """How the data were held out; None: the model was judged as it is."""
        found: str | None = self._summary["split"]
        return found

    @property
    def model(self) -> str:
        """The path of the model."""
        return str(self._summary["model"])

    @property
    def family(self) -> str:
        """The family of the model."""
        return str(self._summary["family"])

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the model."""
        return tuple(self._summary["devices"])

    @property
    def datasets(self) -> tuple[str, ...]:
        """The paths of the datasets it was judged on."""
        return tuple(self._summary["datasets"])

    @property
    def includes_training_data(self) -> bool:
        """Whether problems that the model was trained on are among those judged."""
        return bool(self._summary["includes_training_data"])

    @property
    def noise_floor(self) -> float | None:
        """The median relative standard error of a label; None: not known."""
        found: float | None = self._summary.get("noise_floor")
        return found

    @cached_property
    def top_k(self) -> tuple[TopK, ...]:
        """The efficiency after measuring a few of the best-scored configs."""
        return tuple(TopK(**point) for point in self._summary.get("top_k") or ())

    @cached_property
    def slices(self) -> tuple[SliceFigures, ...]:
        """The figures of parts of the data."""
        return tuple(SliceFigures(**_fields(line)) for line in self._summary["slices"])

    @cached_property
    def worst(self) -> tuple[WorstProblem, ...]:
        """The problems that lost most, the worst first."""
        return tuple(WorstProblem(**_fields(line)) for line in self._summary["worst"])

    @cached_property
    def worst_predictions(self) -> tuple[WorstPrediction, ...]:
        """The rows whose predicted times are furthest off, the worst first; empty if the model predicts no times."""
        return tuple(WorstPrediction(**_fields(line)) for line in self._summary["worst_predictions"])

    @property
    def tflops(self) -> Rates | None:
        """TFLOPS of the chosen and the best configs; None: the op's arithmetic is unknown, or there is none."""
        return self._rate(TFLOPS)

    @property
    def bandwidth_gb_s(self) -> Rates | None:
        """GB/s of the chosen and the best configs, with each byte moved once; None: the op's bytes are unknown."""
        return self._rate(BANDWIDTH)

    def _rate(self, name: str) -> Rates | None:
        found = self._summary["rates"][name]
        return None if found is None else Rates(**{side: Rate(**values) for side, values in found.items()})

    @cached_property
    def tiers(self) -> tuple[TierFigures, ...]:
        """The figures of a selector's tiers; empty unless they were asked for."""
        lines = self._summary.get("tiers") or ()
        return tuple(TierFigures(**_fields(line) | {"efficiency": Figure.of(line["efficiency"])}) for line in lines)

    @property
    def against(self) -> Mapping[str, Any] | None:
        """The scores of another system's solutions, compared with the model; None: none were given."""
        found = self._summary.get("against")
        return None if found is None else MappingProxyType(deepcopy(found))

    @property
    def budget(self) -> Mapping[str, Any] | None:
        """The budget curves, which show how much must be measured; None: not asked for."""
        found = self._summary.get("budget")
        return None if found is None else MappingProxyType(deepcopy(found))

    @property
    def off_grid(self) -> tuple[Mapping[str, Any], ...]:
        """A line per kind of problems that was held out whole; empty unless asked for."""
        return tuple(MappingProxyType(deepcopy(line)) for line in self._summary.get("off_grid") or ())

    @property
    def seeds(self) -> tuple[Mapping[str, Any], ...]:
        """A line of figures per seed that the recipe was refitted with; empty unless several were asked for."""
        return tuple(MappingProxyType(dict(line)) for line in self._summary.get("seeds") or ())

    # -- forms -----------------------------------------------------------------------------------------

    def extended(self, **parts: Any) -> Evaluation:
        """The same evaluation with more parts of its JSON: `budget`, `tiers`, `off_grid`, `against`, `seeds`."""
        return replace(self, _summary={**self._summary, **parts})

    def as_json(self, worst: int | None = None) -> dict[str, Any]:
        """What `kerncast evaluate --json` prints, with at most `worst` of the worst choices and predictions (default: all)."""
        found: dict[str, Any] = deepcopy(dict(self._summary))
        return found if worst is None else {**found, **{name: found[name][:worst] for name in ("worst", "worst_predictions")}}

    def plot(self, name: str | None = None) -> Charts | PlotlyFigure:
        """The report's charts as plotly figures, by name; or only the chart called `name`."""
        from kerncast.evaluating.report.page import plotly_figures

        return plotly_figures(self, name)

    def __str__(self) -> str:
        from kerncast.evaluating.text import evaluation_blocks, joined

        return joined(evaluation_blocks(self._summary))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from kerncast.evaluating.report.figures import evaluation_html

        return evaluation_html(self)


KEY = "kerncast-predictions"
AGAIN = "evaluate the model again"


def write_predictions(path: Path, frame: pl.DataFrame) -> None:
    """Write a table, whole or not at all."""
    write_atomically(path, lambda draft: frame.write_parquet(draft, metadata={KEY: content_digest([frame])}))


def is_predictions(path: Path) -> bool:
    """Whether a parquet file says that it is such a table."""
    try:
        return KEY in parquet_metadata(path)
    except (OSError, KerncastError, pl.exceptions.PolarsError):
        return False


def read_predictions(path: Path) -> pl.DataFrame:
    """A table as it was written; one that was changed is refused."""
    with guarded(path, AGAIN):
        metadata, frame = parquet_metadata(path), read_parquet(path)
    if content_digest([frame]) != metadata.get(KEY):
        raise changed_since(path, AGAIN)
    return frame


def check_predictions(findings: Findings) -> None:
    """A table of predictions: the checksum of its cells."""
    with findings.looking(findings.path):
        frame = read_predictions(findings.path)
        findings.checks += ["checksum", f"{frame.height:,} rows"]


def check_evaluation(findings: Findings) -> None:
    """What `evaluate --json` printed: the figures of the model and the baselines."""
    with findings.looking(findings.path, "figures"):
        try:
            data = read_json(findings.path, dict[str, Any])
            for card in (data["overall"], *data["baselines"].values()):
                Figures.of(card)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadFile(f"{findings.path} is damaged ({type(error).__name__}: {error}): evaluate the model again") from error
        findings.notes.append(f"{findings.path} has no checksum: what a command prints has none")


def _is_evaluation(contents: PathContents) -> bool:
    head = contents.head
    return contents.path.suffix == ".json" and b'"includes_training_data"' in head and b'"overall"' in head


PREDICTIONS = ArtefactKind(
    "predictions", lambda contents: contents.path.suffix == ".parquet" and is_predictions(contents.path), check_predictions
)
EVALUATION = ArtefactKind("evaluation", _is_evaluation, check_evaluation)
