"""Which configs of a family a sweep takes: all, a sample per problem, a list of a file or a build, what Inductor offers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from kerncast.core.op import Family
from kerncast.data.dataset import MANIFEST, Dataset
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.problems.tables import complete, is_table, read_points
from kerncast.measuring.sweeping.kernels import Kernels, read_build, read_kernel_list
from kerncast.measuring.sweeping.offered import Offered, offered


@dataclass(frozen=True)
class Selection:
    """`per_problem` limits the configs of each problem; `portfolio`, `kernels` or `offered` replaces the family's own."""

    per_problem: int | None = None
    portfolio: pl.DataFrame | None = None
    offered: Offered | None = None
    kernels: Kernels | None = None

    @property
    def notes(self) -> list[str]:
        """What a list of kernels is of, and what else was there."""
        return [] if self.kernels is None else [text for text in (str(self.kernels), self.kernels.left_out) if text]

    @property
    def given(self) -> pl.DataFrame | None:
        """The list that replaces the family's configs; None: there is none."""
        return self.portfolio if self.kernels is None else self.kernels.rows


def parse_selection(family: Family, text: str) -> Selection:
    """`all`, `sample:N`, `portfolio:FILE`, `kernels:FILE`, `build:DIR`, `inductor` or `inductor:exhaustive`."""
    kind, _, rest = str(text).partition(":")
    if text == "all":
        return Selection()
    if kind == "sample" and rest.isdigit() and int(rest) > 0:
        return Selection(per_problem=int(rest))
    if kind == "portfolio" and (is_table(rest) or (Path(rest) / MANIFEST).is_file()):
        return Selection(portfolio=read_portfolio(family, Path(rest)))
    if kind == "kernels" and rest:
        return Selection(kernels=read_kernel_list(family, Path(rest), as_named=True))
    if kind == "build" and rest:
        return Selection(kernels=read_build(family, Path(rest), as_named=True))
    if kind == "inductor":
        return Selection(offered=offered(family, rest or "default"))
    raise InvalidValue(
        "configs are all, sample:N (N ≥ 1, per problem), portfolio:FILE (.json, .parquet, .csv, or a dataset), kernels:FILE "
        f"(names of kernels), build:DIR (a build folder of CK Tile), inductor or inductor:exhaustive, got '{text}'"
    )


def read_portfolio(family: Family, path: Path) -> pl.DataFrame:
    """The configs that a file lists or that worked in a dataset; of rules, those that the config alone breaks are checked."""
    if not family.config.parameters:
        raise InvalidValue(f"{family.id} has exactly one config, so a portfolio has nothing to choose: use `configs=all`")
    if (path / MANIFEST).is_file():
        return _worked(family, path)
    points = read_points(path, family.config, "config.")
    try:
        return complete(family.config, points, str(path), strict=True)
    except InvalidValue as error:
        raise BadFile(str(error)) from error


def _worked(family: Family, path: Path) -> pl.DataFrame:
    """Every config that is `ok` somewhere in a dataset, once."""
    rows = Dataset.open(path).read(family, where=["status = ok"])
    if not rows.height:
        raise InvalidValue(f"no config of {family.id} worked in {path}: name a dataset that has some")
    found = rows.select(pl.col("^config\\..*$").name.map(lambda name: name.removeprefix("config.")))
    return found.unique(maintain_order=True)
