"""Learning on: continue a model with what was measured since, and keep the result only if it is not worse.

The model keeps the rows that it was trained on. It is continued on them and on the new ones, so that it does not forget, and
judged on held-out problems of the new data and on the old data. Rows that the model has learned from already are recognised by
their problem and config.

Times of another backend, software or cache state are not repeats of the model's: Inductor's own timer says another number
for the same kernel than the collector does. Such rows are left out, unless `pool` asks for them or torch.compile timed them
with the model's own software. Then they are scaled by one factor per condition, so that the median of measured over predicted
time is 1: what is learned from them is which config is faster, not that all times have changed. What the model's times mean
stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.data import Dataset, schema
from kerncast.errors import InvalidValue
from kerncast.evaluating import Limits, Verdict, compare
from kerncast.evaluating.compare import AMBIGUOUS, BETTER, SAME, WORSE
from kerncast.files.atomic import refuse_unwritable, replace_directory, scratch_folder
from kerncast.inductor.observed_rows import BACKEND
from kerncast.models import software as softwares
from kerncast.models.coverage import CARRIED
from kerncast.models.manifest import MANIFEST, manifest_alone
from kerncast.models.model import Model
from kerncast.progress import QUIET, Progress
from kerncast.regenerating.comparing import compare_fairly
from kerncast.store.entry import PREVIOUS
from kerncast.store.store import ENTRY, Changed, Entry, Store
from kerncast.tables.measurements import CONDITIONS
from kerncast.tables.table import NOT_TRIED
from kerncast.training.recipe import Recipe
from kerncast.training.train import train
from kerncast.writing.terminal import printable

NOTHING_NEW, TOO_FEW, NOT_COMPARABLE, PLANNED = "NOTHING NEW", "TOO FEW", "NOT COMPARABLE", "PLANNED"
# Verdicts with which the new model takes the place of the old one.
REPLACES = (BETTER, SAME)
# From worst to best: the verdict on two sets of data is the worse one.
ORDER = (WORSE, NOT_COMPARABLE, AMBIGUOUS, SAME, BETTER)
# Fewer groups of problems than this leave none to judge by.
FEWEST_GROUPS = 2
# Fewer rows of a condition than this do not tell by which factor its times differ.
FEWEST_TO_SCALE = 10
TIMES = ("time_ns", "time_ns_min", "time_ns_mean", "time_ns_std", "time_ns_mad")
HOW = (*CONDITIONS, "software")
# Reasons for leaving rows out, in words.
SEEN = "the model has learned from them already"
OTHER_DEVICE = "of another device"
OTHER_DTYPE = "of a dtype that the model does not know"
OTHER_CONDITIONS = "measured by another backend, software or cache state (`pool` uses them, scaled)"
FEW_TO_SCALE = f"timed by another timer, and fewer than {FEWEST_TO_SCALE} rows do not tell by which factor: record more"


@dataclass(frozen=True)
class Fresh:
    """Rows that a model has not learned from yet, and how many others were left out, by reason."""

    rows: pl.DataFrame
    left_out: dict[str, int]
    factors: dict[str, float]
    """By condition: what its times were divided by."""

    @property
    def problems(self) -> int:
        return self.rows.select(pl.col("^(device|problem\\..*)$")).n_unique() if self.rows.height else 0

    def groups(self, model: Model) -> int:
        """How many groups of problems have a row that worked."""
        columns = [f"problem.{name}" for name in model.family.op.split_group]
        return self.rows.filter(pl.col("status") == "ok").select(columns).n_unique()


@dataclass(frozen=True, repr=False)
class Updated:
    """What became of a model and new data. `bool(updated)` is False if there were new rows and the old model stays."""

    verdict: str
    reasons: tuple[str, ...]
    replaced: bool
    model: str
    """The model to use now: a directory, or an id in the store."""
    previous: str
    """Where the old model is kept; empty if it was not replaced."""
    rows: int
    problems: int
    left_out: dict[str, int]
    factors: dict[str, float]
    new_data: Verdict | None = None
    old_data: Verdict | None = None

    def __bool__(self) -> bool:
        return self.replaced or self.verdict in (*REPLACES, NOTHING_NEW, PLANNED)

    def as_json(self) -> dict[str, Any]:
        """What `kerncast regenerate update --json --replace` prints."""
        facts = {name: getattr(self, name) for name in ("verdict", "replaced", "model", "previous", "rows", "problems")}
        sides = {name: None if one is None else one.as_json() for name, one in (("new", self.new_data), ("old", self.old_data))}
        more = {"reasons": list(self.reasons), "left_out": self.left_out, "factors": self.factors}
        return {**facts, **more, "compared_on": sides}

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {'; '.join(self.reasons)}"]
        lines += [f"- {self.rows:,} new rows of {self.problems:,} problems"]
        lines += [f"- {count:,} rows left out: {reason}" for reason, count in self.left_out.items()]
        lines += [f"- times of {what} were divided by {factor:.3f}" for what, factor in self.factors.items()]
        return "\n".join(map(printable, lines))

    __repr__ = __str__


def fresh_rows(model: Model, datasets: Sequence[Dataset], pool: bool = False) -> Fresh:
    """The rows of the model's family, device, dtypes and conditions that it has not learned from yet."""
    family, manifest = model.family, model.manifest
    holders = [item for item in datasets if family.id in {held.id for held in item.families}]
    if not holders:
        held = sorted({one.id for item in datasets for one in item.families})
        raise InvalidValue(f"{model.path} is a model of {family.id}; the data holds {', '.join(held) or 'no rows'}")
    rows = pl.concat([item.read(family) for item in holders], how="diagonal_relaxed")
    rows = rows.filter(~pl.col("status").is_in(NOT_TRIED)).unique(maintain_order=True)
    left_out: dict[str, int] = {}

    def keep(condition: pl.Expr, reason: str) -> None:
        nonlocal rows
        kept = rows.filter(condition)
        if kept.height < rows.height:
            left_out[reason] = left_out.get(reason, 0) + rows.height - kept.height
        rows = kept

    keep(pl.col("device").is_in([item.name for item in manifest.devices]), OTHER_DEVICE)
    if manifest.dtypes:
        keep(pl.col("problem.dtype").is_in(manifest.dtypes), OTHER_DTYPE)
    rows, again = _unseen(model, rows)
    if again:
        left_out[SEEN] = again
    factors: dict[str, float] = {}
    own = _own_conditions(model)
    if not pool:
        keep(own | _own_conditions(model, listened=True), OTHER_CONDITIONS)
    rows, factors, unscaled = _scaled(model, rows, own)
    if unscaled:
        left_out[FEW_TO_SCALE] = unscaled
    return Fresh(rows, left_out, factors)


def _unseen(model: Model, rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The rows whose vectors the model has not learned from, and the number of the others.

    A model that does not keep its training vectors knows only the problems.
    """
    known, columns = model.out_of_fold, ["device", *schema.parameter_columns(model.family)]
    earlier = known is not None and bool(model.manifest.warm_start) and CARRIED not in known["fold"].to_list()
    if known is None or "device" not in known.columns or earlier:
        known, columns = model.seen, model.seen.columns
    new = rows.join(known.select(columns).unique(), on=columns, how="anti", nulls_equal=True, maintain_order="left")
    return new, rows.height - new.height


def _own_conditions(model: Model, *, listened: bool = False) -> pl.Expr:
    """Whether a row was measured as the model's own data were; what either does not say is taken for the same.

    `listened`: whether torch.compile timed it, of which only the software can be the same.
    """
    known = {**model.manifest.conditions, "software": model.manifest.software}
    alike = {
        name: pl.col(name).is_null() | pl.lit(not known.get(name)) | pl.col(name).is_in(list(known.get(name, ())))
        for name in HOW
    }
    return alike["software"] & pl.col("backend").eq_missing(BACKEND) if listened else pl.all_horizontal(alike.values())


def _scaled(model: Model, rows: pl.DataFrame, own: pl.Expr) -> tuple[pl.DataFrame, dict[str, float], int]:
    """Rows of other conditions with their times brought to the model's; the factors; how many could not be."""
    others, kept, factors, unscaled = rows.filter(~own), [rows.filter(own)], {}, 0
    for part in others.partition_by([*HOW, "device"], maintain_order=True):
        worked = part.filter(pl.col("status") == "ok")
        if worked.height < FEWEST_TO_SCALE:
            unscaled += part.height
            continue
        machine = next(item.device for item in model.manifest.devices if item.name == part["device"][0])
        predicted = model.predict_rows(model.describe(worked.select(*schema.parameter_columns(model.family)), machine)).time_ns
        assert predicted is not None
        factor = float(np.exp(np.median(np.log(worked["time_ns"].to_numpy() / predicted))))
        said = [str(part[name][0]) for name in CONDITIONS if part[name][0] is not None]
        factors[" ".join(said) or "unnamed software"] = factor
        kept.append(part.with_columns(pl.col(name) / factor for name in TIMES if name in part.columns))
    return pl.concat(kept), factors, unscaled


def continue_and_judge(
    base: Model, fresh: Fresh, folder: Path, recipe: Recipe, limits: Limits, *, progress: Progress = QUIET
) -> tuple[Model | None, Updated]:
    """The continued model in `folder`, and the verdict on it; None if there was too little to continue with."""
    told = Updated("", (), False, str(base.path), "", fresh.rows.height, fresh.problems, fresh.left_out, fresh.factors)
    if not fresh.rows.height:
        return None, replace(told, verdict=NOTHING_NEW, reasons=("there is no row to learn from",))
    groups = fresh.groups(base)
    if groups < FEWEST_GROUPS:
        reason = f"{groups} new problems have rows that worked, and at least {FEWEST_GROUPS} are needed to hold one out"
        return None, replace(told, verdict=TOO_FEW, reasons=(reason,))
    data, old = folder / "new", kept_rows(base)
    # The conditions were dealt with: what the model's times mean stays what it was.
    plain = fresh.rows.with_columns(pl.lit(None, pl.String).alias(name) for name in HOW)

    def fill(draft: Dataset) -> None:
        for rows in (plain, old):
            if rows is not None:
                draft.append(base.family, rows, machines=base.manifest.devices)

    Dataset.build(data, fill)
    new = train(data, folder / "model", recipe, family=base.family.id, pool=True, warm_start=base, progress=progress)
    progress.stage("comparing on held-out problems")
    judged = _held_out_of(new, data, folder / "held_out")
    on_new = None if judged is None else compare_fairly(base, new, judged, folder / "judged", limits)
    if on_new is None:
        reason = "no held-out problem of the new data has several configs and is unseen by both models"
        return new, replace(told, verdict=NOT_COMPARABLE, reasons=(reason,))
    on_old = None if old is None else _on_old_data(base, new, old, folder / "old", limits)
    return new, _decided(told, on_new, on_old, limits)


def _held_out_of(new: Model, data: Path, out: Path) -> Path | None:
    """A dataset of the rows that the new model was judged by in training."""
    assert new.out_of_fold is not None
    columns = list(schema.parameter_columns(new.family))
    judged = new.out_of_fold.filter(pl.col("fold") != CARRIED).select(columns)
    opened = Dataset.open(data)
    rows = opened.read(new.family).join(judged, on=columns, how="semi", nulls_equal=True, maintain_order="left")
    if rows.is_empty():
        return None
    Dataset.build(out, lambda draft: draft.append(new.family, rows, machines=opened.contents.devices))
    return out


def kept_rows(base: Model) -> pl.DataFrame | None:
    """What a model keeps of its training data, repeats folded, as rows of a dataset; None: it keeps nothing that worked."""
    kept = base.out_of_fold
    if kept is None or "device" not in kept.columns or not kept["measured_ns"].is_not_null().any():
        return None
    status = pl.when(pl.col("measured_ns").is_not_null()).then(pl.lit("ok")).otherwise(pl.lit("launch_error"))
    return kept.select(
        "device", *schema.parameter_columns(base.family), status.alias("status"), pl.col("measured_ns").alias("time_ns"),
        (pl.col("noise") * pl.col("measured_ns")).alias("time_ns_std"), pl.lit(1).alias("samples"),
    )  # fmt: skip


def _on_old_data(base: Model, new: Model, rows: pl.DataFrame, out: Path, limits: Limits) -> Verdict:
    """Both models on what the old one keeps of its training, which both have seen."""
    Dataset.build(out, lambda draft: draft.append(base.family, rows, machines=base.manifest.devices))
    return compare(base, new, [out], limits=limits, include_seen=True)


def _decided(told: Updated, on_new: Verdict, on_old: Verdict | None, limits: Limits) -> Updated:
    """The worse of both verdicts; a loss on old data that is within the limits does not count."""
    reasons = [f"on {on_new.n:,} held-out problems of the new data {on_new.verdict}: {'; '.join(on_new.reasons)}"]
    verdict = on_new.verdict
    if on_old is not None:
        reasons.append(f"on {on_old.n:,} problems of the old data {on_old.verdict}: {'; '.join(on_old.reasons)}")
        before, after = on_old.old, on_old.new
        lost = any(getattr(before, name) - getattr(after, name) > getattr(limits, name) for name in ("mean", "median", "p10"))
        if on_old.verdict == WORSE or (on_old.verdict == AMBIGUOUS and lost):
            verdict = min(verdict, on_old.verdict, key=ORDER.index)
    else:
        reasons.append("the model keeps no rows of its training, so what it may have forgotten is not known")
    return replace(told, verdict=verdict, reasons=tuple(reasons), new_data=on_new, old_data=on_old)


@dataclass(frozen=True)
class Place:
    """Where a model is, and where the one that replaces it goes: a new directory, the store, or its own directory."""

    model: Model
    store: Store
    entry: Entry | None = None
    out: Path | None = None
    mark: str | None = None
    """That of the entry, from before the work."""

    @classmethod
    def of(cls, model: Model | str | Path, store: Store, out: Path | None) -> Place:
        """A model, its directory, or its id in the store."""
        if out is not None:
            refuse_unwritable(out)
        entry = None if isinstance(model, Model) else store.meant(model)
        if entry is not None:
            loaded = entry.load()
            there = store.at(loaded, entry.record.name)
            # A model whose data do not name their software may have been added with a name for it: it is elsewhere then.
            own = there is not None and there.id == entry.id
            return cls(loaded, store, entry, out, store.mark(loaded, entry.record.name) if own else None)
        loaded = model if isinstance(model, Model) else Model.load(model)
        place = cls(loaded, store, None, out)
        if out is None and (loaded.path.parent / ENTRY).exists():
            raise InvalidValue(f"{loaded.path} is a model of a store: update it by its id (`kerncast models`), or give `out`")
        if out is None and place.aside.exists() and (place.aside.is_symlink() or not (place.aside / MANIFEST).is_file()):
            raise InvalidValue(f"the old model would be kept as {place.aside}, but something else is there: give `out`")
        return place

    @property
    def directory(self) -> Path:
        """The model's directory itself: a link to it stays a link."""
        return self.model.path.resolve()

    @property
    def aside(self) -> Path:
        """Where the old directory is kept."""
        return self.directory.with_name(f"{self.directory.name}.previous")

    @property
    def beside(self) -> Path | None:
        """The folder for the work: on the disk of what is replaced."""
        return None if self.entry is not None or self.out is not None else self.directory.parent

    def put(self, new: Model, told: Updated) -> Updated:
        """Put the new model there; raises `Changed` if another process has replaced the old one meanwhile."""
        if self.out is not None:
            return replace(told, replaced=True, model=str(new.save(self.out).path), previous=str(self.model.path))
        if self.entry is None:
            if manifest_alone(self.model.path).checksum != self.model.manifest.checksum:
                raise Changed(f"{self.model.path} was replaced while it was being updated: run the same command again")
            replace_directory(new.path, self.directory, self.aside)
            return replace(told, replaced=True, model=str(self.model.path), previous=str(self.aside))
        return self._put_in_store(self.entry, new, told)

    def _put_in_store(self, entry: Entry, new: Model, told: Updated) -> Updated:
        name, record = entry.record.name, entry.record
        stated = softwares.parts(record.software[0]) if self.mark is None and record.software else None
        if self.store.get(entry.id).record.checksum != record.checksum:
            raise Changed(f"{entry.id} was replaced while it was being updated: run the same command again")
        kept = self.store.add(self.model, name=f"{name}{PREVIOUS}", replace=True, software=stated)
        origin = {**record.origin, "updated": told.verdict}
        added = self.store.add(new, name=name, replace=True, software=stated, origin=origin, over=self.mark)
        return replace(told, replaced=True, model=added.id, previous=kept.id)


def update(
    model: Model | str | Path,
    datasets: Sequence[Dataset],
    store: Store,
    *,
    out: Path | None = None,
    pool: bool = False,
    limits: Limits | None = None,
    seed: int = 0,
    threads: int = 0,
    dry_run: bool = False,
    progress: Progress = QUIET,
) -> Updated:
    """Continue a model with the rows that it has not learned from, and replace it if the verdict is BETTER or SAME."""
    place = Place.of(model, store, out)
    base = place.model
    if not type(base.learner).continues:
        raise InvalidValue(f"a {base.manifest.kind} model cannot be continued: train a new one with `kerncast train`")
    progress.stage("looking for new rows")
    fresh = fresh_rows(base, datasets, pool)
    if dry_run and fresh.rows.height:
        told = Updated(PLANNED, (), False, str(base.path), "", fresh.rows.height, fresh.problems, fresh.left_out, fresh.factors)
        return replace(told, reasons=("nothing was trained or written",), model=place.entry.id if place.entry else told.model)
    recipe = Recipe(base.manifest.kind, seed=seed, threads=threads)
    with scratch_folder(place.beside) as folder:
        new, told = continue_and_judge(base, fresh, folder, recipe, limits or Limits(), progress=progress)
        told = replace(told, model=place.entry.id) if place.entry is not None else told
        return told if new is None or told.verdict not in REPLACES else place.put(new, told)
