"""Frames of problems, and of vectors, as users have them: read by columns, refused by the first bad row.

Columns are called `problem.M` or `M`, and `config.tile_m`; their order is free, and columns that are no parameters are left
alone. An empty cell (null, NaN) is a parameter that was not given. Whole numbers may be floats (8.0), labels any kind of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core import dtypes
from kerncast.core.arrays import Ints
from kerncast.core.device import Device
from kerncast.core.op import Config, Family, Problem
from kerncast.core.parameters import Categorical
from kerncast.data import schema
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices

if TYPE_CHECKING:
    from kerncast.models.model import Model

DEVICE = "device"


def problems_in(model: Model, given: pl.DataFrame, device: str) -> pl.DataFrame:
    """The problems of a frame (`problem.*`) in stored types, defaults filled in; all of them are valid, and of this device."""
    refuse_other_devices(model.family, given, device)
    return _valid(model.family, _problem_columns(model, given), given.height, "problem.")


def vectors_in(model: Model, given: pl.DataFrame, device: str, config: Config | None) -> pl.DataFrame:
    """The vectors of a frame (`problem.*`, `config.*`) in stored types; `config` is that of all rows."""
    refuse_other_devices(model.family, given, device)
    kinds = schema.schema_of(model.family)
    columns = _problem_columns(model, given)
    columns |= {name: given[column] for name, column in config_columns(model.family, given).items()}
    if config is not None:
        same = {f"config.{name}": value for name, value in config.items()}
        columns |= {n: pl.Series(n, [value], kinds[n]).new_from_index(0, given.height) for n, value in same.items()}
    return _valid(model.family, columns, given.height)


def config_columns(family: Family, given: pl.DataFrame) -> dict[str, str]:
    """The columns of the frame that are configs, by their stored names; `BLOCK_M` is one unless the problem has that name."""
    stored = {f"config.{name}": name for name in family.config.parameters}
    refuse_differing(given, stored)
    bare = {name: name.partition(".")[2] for name in stored if name not in given.columns}
    found = {name: name for name in given.columns if name.startswith("config.")}
    return found | {name: own for name, own in bare.items() if own in given.columns and own not in family.problem.parameters}


def refuse_differing(given: pl.DataFrame, stored: Mapping[str, str]) -> None:
    """Refuse a frame with `M` and a different `problem.M`: which is meant? `stored` has the bare names by the others."""
    for name, bare in stored.items():
        if name not in given.columns or bare not in given.columns:
            continue
        one, other = given[bare], given[name]
        number = one.dtype.is_numeric() and other.dtype.is_numeric()
        pair = [series if number else series.cast(pl.String) for series in (one, other)]
        differs = pair[0].ne_missing(pair[1])
        if differs.any():
            row = differs.arg_max() or 0
            raise InvalidValue(
                f"row {row + 1} of the frame has {one[row]} in the column '{bare}' and {other[row]} in '{name}': drop one of "
                "them"
            )


def problem_frame(family: Family, problems: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Valid problems (all of their parameters), as stored in a dataset."""
    kinds, rows = schema.schema_of(family), list(problems)
    columns = {f"problem.{name}": [row[name] for row in rows] for name in family.problem.parameters}
    return pl.DataFrame({name: pl.Series(name, values, dtype=kinds[name]) for name, values in columns.items()})


def bare(values: Any) -> Problem | Mapping[str, Any]:
    """A problem with columns `problem.M` or `M`; empty cells are parameters that were not given."""
    if isinstance(values, Problem):
        return values
    if not isinstance(values, Mapping):
        raise InvalidValue(f"a problem is a mapping of parameters to values, got {type(values).__name__}")
    return {str(name).removeprefix("problem."): value for name, value in values.items() if value is not None}


def without_device(family: Family, problem: Mapping[str, Any], device: str) -> Mapping[str, Any]:
    """The problem without a `device` beside its parameters, which must be this one: another one's answer is not this one's."""
    if DEVICE not in problem or DEVICE in family.problem.parameters:
        return problem
    _refuse_other(problem[DEVICE], device)
    return {name: value for name, value in problem.items() if name != DEVICE}


def refuse_other_devices(family: Family, given: pl.DataFrame, device: str) -> None:
    """The same for the rows of a frame, which keeps its column `device`."""
    if DEVICE in given.columns and DEVICE not in family.problem.parameters:
        for name in given[DEVICE].unique(maintain_order=True).drop_nulls():
            _refuse_other(name, device)


def _refuse_other(name: Any, device: str) -> None:
    if isinstance(name, Device):
        name = name.name
    found = devices.find(name) if isinstance(name, str) and name != device else None
    if name != device and (found is None or found.name != device):
        raise InvalidValue(f"a problem names the device {name!r}, and this answers for {device}: ask about one at a time")


def configs_at(model: Model, rows: Ints) -> pl.DataFrame:
    """The configs (`config.*`) of some candidates, by their numbers; a negative one stands for no config."""
    columns = [f"config.{name}" for name in model.family.config.parameters]
    known = model.candidates[columns]
    return pl.concat([known, known.clear(1)])[np.where(rows < 0, known.height, rows)]


def _problem_columns(model: Model, given: pl.DataFrame) -> dict[str, pl.Series]:
    """The columns of the problem; sizes in the place of a product that is given instead of them."""
    family, names = model.family, {}
    refuse_differing(given, {f"problem.{name}": name for name in family.problem.parameters})
    for name in (*family.problem.parameters, *family.op.products):
        column = f"problem.{name}" if f"problem.{name}" in given.columns else name
        if column in given.columns:
            names[column] = name
    known = {*names, *(f"config.{name}" for name in family.config.parameters)}
    unknown = [name for name in given.columns if name.startswith(("problem.", "config.")) and name not in known]
    if unknown:
        what, _, name = unknown[0].partition(".")
        space = family.problem if what == "problem" else family.config
        raise NotFound.named(f"{what} parameter of {family.id}", name, space.parameters)
    refuse_other_case(family, given.columns)
    problems = _by_sizes(model, given.select(list(names)).rename(names))
    return {f"problem.{series.name}": _spelled(family, series) for series in problems}


def _spelled(family: Family, cells: pl.Series) -> pl.Series:
    """A column with the spellings of dtypes that imports know (`float16`, `torch.bfloat16`) as the family names them."""
    parameter = family.problem.parameters[cells.name]
    if not isinstance(parameter, Categorical) or cells.dtype.is_numeric():
        return cells
    known, given = dtypes.spellings_of(parameter), cells.cast(pl.String)
    return given.replace({text: meaning for text in given.unique().drop_nulls() if (meaning := known(text)) is not None})


def respelled(family: Family, problem: Mapping[str, Any]) -> dict[str, Any]:
    """One problem in the same way."""
    known = {
        name: dtypes.spellings_of(item) for name, item in family.problem.parameters.items() if isinstance(item, Categorical)
    }
    return {
        name: known[name](value) or value if isinstance(value, str) and name in known else value
        for name, value in problem.items()
    }


def _by_sizes(model: Model, problems: pl.DataFrame) -> pl.DataFrame:
    """Problems with two sizes instead of each product; a product next to its sizes is only another column."""
    for product in model.products:
        if product.name not in problems.columns:
            continue
        if not set(product.factors) & set(problems.columns):
            distinct = problems.unique(maintain_order=True)
            rows = [product.whole(row) for row in distinct.iter_rows(named=True)]
            sizes = distinct.with_columns(
                pl.Series(name, [row[name] for row in rows], dtype=pl.Int64) for name in product.factors
            )
            problems = problems.join(sizes, on=problems.columns, how="left", nulls_equal=True, maintain_order="left")
        problems = problems.drop(product.name)
    return problems


def refuse_other_case(family: Family, columns: Sequence[str]) -> None:
    """Foreign columns are kept, but `m` instead of `M` would leave a parameter at its default without a word."""
    spaces = {"": family.problem, "config.": family.config}
    own = {name.lower(): (prefix, name) for prefix, space in reversed(spaces.items()) for name in space.parameters}
    exact = {*family.problem.parameters, *family.config.parameters}
    for column in columns:
        prefix, name = own.get(column.lower(), ("", column))
        if column not in exact and not {name, f"problem.{name}", f"config.{name}"} & set(columns):
            raise InvalidValue(
                f"the column '{column}' is not a parameter of {family.id}: did you mean '{prefix}{name}'? Rename it, or drop it"
            )


def no_column(name: str, family: Family) -> InvalidValue:
    """The refusal of a frame without a column that must be there."""
    return InvalidValue(f"the frame has no column '{name}', which {family.id} needs")


def _valid(family: Family, columns: Mapping[str, pl.Series], height: int, of: str = "") -> pl.DataFrame:
    """Every parameter (of one half, "problem.") in its stored type, defaults filled in; other values are refused."""
    kinds, filled, absent = schema.schema_of(family), [], []
    wanted = {name: item for name, item in schema.parameter_columns(family).items() if name.startswith(of)}
    for name, (space, bare) in wanted.items():
        parameter = space.parameters[bare]
        if name in columns:
            series = columns[name].alias(name)
            filled.append(series.fill_nan(None) if series.dtype.is_float() else series)
        elif parameter.default is None and not parameter.nullable:
            raise no_column(name, family)
        else:
            absent.append(name)
            filled.append(pl.Series(name, [parameter.default], kinds[name]).new_from_index(0, height))
    frame = schema.in_stored_types(pl.DataFrame(filled), {name: kinds[name] for name in wanted})
    defaults = {
        name: space.parameters[bare].default
        for name, (space, bare) in wanted.items()
        if name in columns and space.parameters[bare].default is not None and bare not in space.active
    }
    if defaults:
        frame = frame.with_columns(pl.col(name).fill_null(pl.lit(value, kinds[name])) for name, value in defaults.items())
    frame = _without_inactive(family, frame, absent, of)
    schema.check_parameters(family, frame, of)
    for half, space in (("problem.", family.problem), ("config.", family.config)):
        frame = space.without_usual(frame, half) if half.startswith(of) else frame
    symbols = schema.symbol_columns(family, frame, of)
    for constraint in family.problem.constraints:
        bad = np.flatnonzero(constraint.program.frame(symbols, trusted=True).to_series().to_numpy() == 0.0)
        if len(bad):
            read = {item.name for item in constraint.program.symbols}
            values = frame.row(int(bad[0]), named=True)
            shown = " ".join(f"{name}={values[f'problem.{name}']}" for name in family.problem.parameters if f"p.{name}" in read)
            raise InvalidValue(f"row {bad[0] + 1}: {constraint.sentence}, got {shown} ({len(bad)} such rows)")
    return frame


def _without_inactive(family: Family, frame: pl.DataFrame, absent: Sequence[str], of: str) -> pl.DataFrame:
    """A default is filled in only where its parameter applies."""
    for name in absent:
        space, bare = schema.parameter_columns(family)[name]
        if bare in space.active:
            applies = space.active[bare].frame(schema.symbol_columns(family, frame, of), trusted=True).to_series() != 0.0
            frame = frame.with_columns(pl.when(applies).then(pl.col(name)).alias(name))
    return frame
