"""The portfolio of a model or a dataset, to print: which configs are enough, and what fewer would lose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerncast.core.io.atomic import write_text
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.tables.table import load_table
from kerncast.models.manifest import MANIFEST
from kerncast.models.measured import Measured, measured_by_model, measured_in_table
from kerncast.models.model import Model
from kerncast.native.tiers.portfolio import PortfolioChoice, choose_portfolio


@dataclass(frozen=True)
class Portfolio:
    """The smallest set of configs within the allowed loss, and the losses of smaller sets."""

    measured: Measured
    found: PortfolioChoice
    loss: float

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The configs, in the order in which each adds most."""
        return [self.config(number) for number in self.found.configs]

    def config(self, number: int) -> dict[str, Any]:
        """One of the measured configs."""
        values = self.measured.configs.row(number, named=True)
        return {name.removeprefix("config."): value for name, value in values.items() if value is not None}

    @property
    def labels(self) -> list[list[str]]:
        """The names of each of the configs in the data: several if a name also says for which problems it is; or none."""
        known = self.measured.labels
        return [[] if known is None else known.all_of(number) for number in self.found.configs]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        found = self.found
        return {
            "family": self.measured.family.id, "problems": found.problems, "configs": self.measured.configs.height,
            "loss_wanted": self.loss, "reached": found.reached, "folds": found.folds,
            "problems_without_config": found.uncovered, "problems_not_tried": found.untried, "portfolio": self.configs,
            **({} if self.measured.labels is None else {"labels": self.labels}),
            "curve": [point.as_json() for point in found.curve],
        }  # fmt: skip

    def __repr__(self) -> str:
        last = self.found.curve[-1]
        return (
            f"Portfolio of {self.measured.family.id}: {len(self.found.configs)} of {self.measured.configs.height:,} configs "
            f"lose {last.loss:.2%} on held-out problems{f'; {self.caution}' if self.caution else ''}"
        )

    @property
    def caution(self) -> str:
        """Why the loss may say nothing about the configs, and what to do; empty if it does."""
        found = self.found
        if not found.untried:
            return ""
        return (
            f"on {found.untried:,} of {found.problems:,} held-out problems none of the set was tried, which counts as a loss "
            "of 100 %: if each problem has its own sample of configs, no set of them was tried on all problems; measure the "
            "same configs on every problem (`configs=all`, or `configs=portfolio:FILE` with a list of yours)"
        )


def portfolio_of(
    source: Model | Dataset | str | Path,
    *,
    loss: float = 0.002,
    max_configs: int = 64,
    family: str | None = None,
    where: Sequence[str] = (),
    out: str | Path | None = None,
    build_list: str | Path | None = None,
) -> Portfolio:
    """The smallest set of configs of a model or a dataset that is enough.

    `out` writes it as JSON, for sweeps; `build_list` writes the kernels' names, one per line, for a build.
    """
    place = None if out is None else Path(out)
    if place is not None and place.suffix != ".json":
        raise InvalidValue(f"`out` must be a .json file, so that `configs=portfolio:FILE` reads it, got {place}")
    measured = _measured(source, family, tuple(where))
    if not measured.configs.width:
        raise InvalidValue(f"{measured.family.id} has exactly one config: there is nothing to choose")
    portfolio = Portfolio(measured, choose_portfolio(measured, loss, max_configs), loss)
    if build_list is not None:
        if measured.labels is None:
            raise InvalidValue(
                f'`build_list` {build_list}: the data name no kernels; import them with a label column (`label = "column"` in '
                "a mapping), or write the configs with `out`"
            )
        write_text(Path(build_list), "".join(f"{label}\n" for names in portfolio.labels for label in names))
    if place is not None:
        write_text(place, json.dumps(portfolio.configs, indent=2) + "\n")
    return portfolio


def _measured(source: Model | Dataset | str | Path, family: str | None, where: tuple[str, ...]) -> Measured:
    if isinstance(source, Dataset) or (not isinstance(source, Model) and not (Path(source) / MANIFEST).exists()):
        opened = source if isinstance(source, Dataset) else Dataset.open(source)
        return measured_in_table(load_table([opened], family, where))
    if where or family is not None:
        raise InvalidValue("`where` and `family` are for datasets; a model has one family and its own rows: leave them out")
    return measured_by_model(source if isinstance(source, Model) else Model.load(source))
