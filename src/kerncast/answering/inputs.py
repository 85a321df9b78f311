"""What a user gives to ask about, problems in a file and configs to choose from; and what a selector is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.io.atomic import scratch_folder
from kerncast.core.io.foreign import JSON, guarded, load_json
from kerncast.core.io.parquet import read_parquet
from kerncast.core.op import Config, Family, Problem
from kerncast.core.progress import QUIET, Progress
from kerncast.data import schema
from kerncast.data.dataset import MANIFEST as DATASET
from kerncast.data.dataset import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files, recognised
from kerncast.errors import BadFile, CannotWrite, InvalidValue, KerncastError
from kerncast.learning.measurements import label_table
from kerncast.learning.table import judge_rules
from kerncast.library.problems.files import is_table
from kerncast.measuring.backends.contract import CannotCompile
from kerncast.measuring.sweeping.selection import (
    DIMENSIONS,
    NamedKernels,
    has_named_kernels,
    kernels_named,
    portfolio_file,
    read_build,
    read_kernel_list,
    read_portfolio,
)
from kerncast.models.answer import ALONE, CHOOSING, Tier
from kerncast.models.candidates import refuse_no_candidates, with_configs
from kerncast.models.model import Model
from kerncast.models.problem_frames import bare
from kerncast.native.binding import Binding
from kerncast.native.build import NotTrusted, load
from kerncast.native.c99 import NotInC
from kerncast.native.header import MOST_PINS
from kerncast.native.lower import Artefact, lower
from kerncast.native.overrides import Decided, Overrides, decide
from kerncast.native.tiers.build import TierOptions, plain_tiers, tiers_named
from kerncast.native.tiers.contents import Tiers


def read_problem_file(path: Path, family: Family) -> list[dict[str, Any]]:
    """The problems in a file: JSON objects, or rows of a parquet table, with names like `M` or `problem.M`."""
    if not path.is_file():
        raise InvalidValue(f"'{path}' is neither NAME=VALUE nor a file of problems (.json or .parquet)")
    if path.suffix.lower() == ".csv":
        raise InvalidValue(
            f"problems are NAME=VALUE or a file (.json or .parquet), and '{path}' is a csv table: convert it, "
            f"for example with polars.read_csv('{path}').write_parquet('{path.with_suffix('.parquet')}')"
        )
    with guarded(path, "give a JSON list of objects, or a parquet table", "cannot be read as problems"):
        if path.suffix == ".parquet":
            frame = read_parquet(path)
            named = {*family.problem.parameters, *family.op.products, "device"}
            known = [name for name in frame.columns if name.removeprefix("problem.") in named]
            rows = frame.select(known).unique(maintain_order=True).to_dicts()
        else:
            rows = load_json(JSON.read(path), _once)
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadFile(f'{path} is not a list of problems: give a JSON list of objects like {{"M": 128, …}}, or a parquet table')
    rows = [row["problem"] if isinstance(row.get("problem"), dict) else row for row in rows]
    found = [{name.removeprefix("problem."): value for name, value in row.items() if value is not None} for row in rows]
    if not found:
        raise BadFile(f"{path} holds no problem")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate keys: it would not be clear which of the values is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"the key '{twice}' is given twice")
    return found


Configs = str | Path | Sequence[str | Mapping[str, Any]] | pl.DataFrame
"""What `configs` takes: a specification, names of kernels, configs by their parameters, or a frame of `config.*`."""

FORMS = (
    "kernels:FILE (names of kernels), build:DIR (a build folder of CK Tile), portfolio:FILE (a table of configs), a dataset, a "
    "benchmark file, all, or sample:N"
)
# More are searched rather than ranked: `all` of them would take minutes for each problem.
MOST_CONFIGS = 200_000


def offering(model: Model, configs: Configs, *, seed: int = 0, progress: Progress = QUIET) -> Model:
    """The model, choosing from the given configs."""
    family = model.family
    if not family.config.parameters:
        raise InvalidValue(f"{family.id} has exactly one config: leave out `configs`, there is nothing to choose")
    if isinstance(configs, str | Path):
        return _specified(model, str(configs), seed, progress)
    if isinstance(configs, pl.DataFrame):
        return with_configs(model, _checked(family, configs.iter_rows(named=True)))
    items = list(configs)
    if all(isinstance(item, str) for item in items):
        names = ((f"entry {number}", str(item)) for number, item in enumerate(items, 1))
        return _with_kernels(model, kernels_named(family, names, "`configs`"), progress)
    if not all(isinstance(item, Mapping) for item in items):
        raise InvalidValue("`configs` is a text, a list of kernel names, a list of configs (mappings), or a frame of config.*")
    return with_configs(model, _checked(family, items))


def _checked(family: Family, items: Any) -> pl.DataFrame:
    """Configs by their parameters, validated, as a frame."""
    kinds = schema.schema_of(family)
    bare = ({str(name).removeprefix("config."): value for name, value in item.items()} for item in items)
    found = [Config(family, {name: value for name, value in item.items() if value is not None}).as_dict() for item in bare]
    columns = {f"config.{name}": [item[name] for item in found] for name in family.config.parameters}
    return pl.DataFrame({name: pl.Series(name, values, dtype=kinds[name]) for name, values in columns.items()})


def _specified(model: Model, text: str, seed: int, progress: Progress) -> Model:
    family = model.family
    kind, _, rest = text.partition(":")
    if kind == "kernels" and rest:
        return _with_kernels(model, read_kernel_list(family, Path(rest)), progress)
    if kind == "build" and rest:
        return _with_kernels(model, read_build(family, Path(rest)), progress)
    if (listed := portfolio_file(text)) is not None:
        return with_configs(model, _prefixed(read_portfolio(family, listed)))
    if text == "all" or (kind == "sample" and rest.isdigit() and int(rest) > 0):
        return with_configs(model, _of_space(model, int(rest) if rest else None, seed))
    if Path(text).exists():
        return _measured(model, Path(text), progress)
    raise InvalidValue(f"`configs` is {FORMS}, got '{text}', which is none of these")


def _prefixed(configs: pl.DataFrame) -> pl.DataFrame:
    return configs.rename(lambda name: f"config.{name}")


def _with_kernels(model: Model, kernels: NamedKernels, progress: Progress) -> Model:
    """Kernels by name: each runs the problems that it is built for."""
    if kernels.left_out:
        progress.say(kernels.left_out)
    rows, by, dimensions = kernels.rows, list(kernels.keys), None
    if DIMENSIONS in by:
        if rows[DIMENSIONS].n_unique() > 1:
            raise InvalidValue(
                f"{kernels.source}: kernels of two and of three dimensions are mixed, and each runs only its own problems: "
                "give them in two lists"
            )
        by.remove(DIMENSIONS)
        dimensions = int(rows[DIMENSIONS][0])
    table = rows.select(*(pl.col(name).alias(f"problem.{name}") for name in by), pl.col("^config\\..*$"), schema.LABEL)
    return with_configs(model, rows, table, named_only=True, dimensions=dimensions)


def _of_space(model: Model, count: int | None, seed: int) -> pl.DataFrame:
    """All configs that the family declares for the model's device and dtype, or a sample of them."""
    family, dtypes = model.family, model.manifest.dtypes
    known = family.bindings({"dtype": dtypes[0]} if len(dtypes) == 1 else None, model.profile)
    if count is not None:
        return _prefixed(family.config.sample(count, seed, known))
    parts, rows = [], 0
    for frame in family.config.frames(known):
        rows += frame.height
        if rows > MOST_CONFIGS:
            raise InvalidValue(
                f"{family.id} has more than {MOST_CONFIGS:,} configs, too many to rank for each problem: search them with "
                "`kerncast select --search`, or use sample:N"
            )
        parts.append(frame)
    if not parts:
        raise InvalidValue(f"no config of {family.id} can be built for {model.device.name}")
    return _prefixed(pl.concat(parts))


def _measured(model: Model, path: Path, progress: Progress) -> Model:
    """The configs that occur in measurements: a dataset, or a file that an importer reads."""
    if (path / DATASET).is_file():
        return _of_dataset(model, Dataset.open(path), progress)
    if path.is_dir():
        raise InvalidValue(f"{path} is not a dataset: for the kernels of a build folder, use build:{path}")
    try:
        name = recognised([path])
    except KerncastError:
        if is_table(str(path)):
            return with_configs(model, _prefixed(read_portfolio(model.family, path)))
        raise
    progress.stage(f"reading the kernels of {path.name}")
    with scratch_folder() as folder:
        return _of_dataset(
            model, import_files(name, [path], folder / "pool", ImportOptions(device=model.device.name)), progress
        )


def _of_dataset(model: Model, dataset: Dataset, progress: Progress) -> Model:
    """The configs that worked somewhere in a dataset. Rules that its measurements contradict do not apply to them."""
    family = model.family
    known = {item.id: item for item in dataset.families}
    if family.id not in known:
        raise InvalidValue(f"{dataset.path} has kernels of {', '.join(known) or 'no family'}, and the model is of {family.id}")
    rows = dataset.read(family)
    worked = rows.filter(pl.col("status") == "ok")
    if not worked.height:
        raise InvalidValue(f"no config of {family.id} worked in {dataset.path}: there is nothing to choose from")
    names = label_table(family, worked)
    # A kernel whose name says its dtype and layout runs no others.
    by_name = names is not None and has_named_kernels(family) and not worked[schema.LABEL].has_nulls()
    broken, _ = judge_rules(family, model.profile, rows, (rows["status"] == "ok").to_numpy())
    for item in broken:
        if item.ran:
            so = "the rule does not apply" if item.contradicted else "they are too few, so no kernel is chosen against the rule"
            progress.say(f"{item.ran:,} of {item.attempts:,} attempts worked against the rule '{item.rule.sentence}': {so}")
    lifted = tuple(item.rule.name for item in broken if item.contradicted)
    return with_configs(model, worked.select(pl.col("^config\\..*$")), names, named_only=by_name, contradicted=lifted)


@dataclass(frozen=True, eq=False)
class SelectorParts:
    """A model, its tiers and the artefact of both."""

    model: Model
    tiers: Tiers
    artefact: Artefact

    @classmethod
    def of(
        cls,
        model: Model,
        tiers: Tiers | str | Sequence[str] | None,
        options: TierOptions | None,
        configs: Configs | None,
        progress: Progress,
    ) -> SelectorParts:
        """With `configs`, these are chosen from, and there are no tiers of them."""
        if configs is not None:
            model = offering(model, configs, progress=progress)
            tiers = plain_tiers(model)
        if not isinstance(tiers, Tiers):
            refuse_no_candidates(model)
        if tiers is None and model.slim and model.family.config.parameters:
            tiers = plain_tiers(model)  # the others are built from measurements, which it does not have
        if isinstance(tiers, Tiers):
            return cls(model, tiers, lower(model, tiers, ALONE if tiers.alone else CHOOSING))
        built, include = tiers_named(model, CHOOSING if tiers is None else tiers, options, progress=progress)
        return cls(model, built, lower(model, built, include))

    def compiled(self, progress: Progress) -> tuple[Binding | None, str]:
        """The compiled artefact, and nothing to say; if the user has not trusted the model, None, and what to do about it."""
        try:
            known = f"selector {self.model.manifest.checksum} {self.tiers.digest} {','.join(self.artefact.include)}"
            return load(self.artefact, known, progress=progress), ""
        except NotTrusted as refused:
            progress.say(str(refused))
            return None, str(refused)
        except (CannotCompile, CannotWrite, NotInC) as error:
            progress.say(f"{error}; Python answers instead")
        return None, ""

    def decided(self, overrides: Overrides | Mapping[str, Any] | str | Path | None) -> tuple[Decided | None, Decided]:
        """What overrides decide, None without any; and the same with everything available where nothing is said."""
        decided = None if overrides is None else decide(self.model, overrides)
        if decided is not None and len(decided.pinned) > MOST_PINS:
            raise InvalidValue(
                f"a selector has room for {MOST_PINS:,} pins, got {len(decided.pinned):,}: pin several problems at once by "
                "leaving parameters out, or export them, for which there is no limit"
            )
        space, nothing = self.model.family.problem, np.empty(0, np.int64)
        patterns = np.empty((0, len(space.parameters)), np.int64)
        applied = decided or Decided(np.ones(self.artefact.candidates, dtype=bool), patterns, nothing, space)
        if (absent := np.setdiff1d(applied.pinned, self.artefact.stored)).size:
            raise InvalidValue(f"the pinned candidate {absent[0]} is in no tier of this selector: pin it in one with `full`")
        return decided, applied


def named_tier(given: Tier | str) -> Tier:
    """One of the tiers that choose, by its name."""
    try:
        found = Tier(given)
    except ValueError:
        found = Tier.MEMO
    if found not in CHOOSING:
        raise InvalidValue(f"`tier` must be one of {', '.join(CHOOSING)}, got '{given}'")
    return found


def listed(problems: Any) -> list[Problem | Mapping[str, Any]]:
    """Several problems, of columns `problem.M` or `M`."""
    if isinstance(problems, str | bytes | Mapping | pl.LazyFrame | pl.Series) or not isinstance(problems, Iterable):
        raise InvalidValue(f"several problems are a list of mappings or a frame, got {type(problems).__name__}")
    return [bare(item) for item in problems]
