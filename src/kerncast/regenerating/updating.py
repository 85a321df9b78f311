"""Update: a routine without a sweep. A model is continued with what was measured since, and replaced if that makes it no worse.

The model keeps the rows that it was trained on. It is continued on them and on the new ones, so that it does not forget, and
judged on held-out problems of the new data and on the old data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core import software as softwares
from kerncast.core.io.atomic import refuse_unwritable, replace_directory, scratch_folder
from kerncast.core.io.terminal import printable
from kerncast.core.progress import QUIET, Progress
from kerncast.data import Dataset, schema
from kerncast.errors import InvalidValue
from kerncast.evaluating import Limits, Verdict, compare
from kerncast.evaluating.compare import AMBIGUOUS, BETTER, SAME, WORSE
from kerncast.evaluating.evaluation import holders_of
from kerncast.learning.feature_rows import Rows
from kerncast.learning.measurements import CONDITIONS
from kerncast.learning.metrics import Predicted
from kerncast.learning.table import NOT_TRIED
from kerncast.models.manifest import MANIFEST, manifest_alone
from kerncast.models.measured import CARRIED
from kerncast.models.model import Model
from kerncast.models.store.entry import ENTRY, PREVIOUS, Entry
from kerncast.models.store.store import Changed, Store
from kerncast.regenerating.routine import Facts, walk
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

NOT_COMPARABLE = "NOT COMPARABLE"
"""The verdict where no problem can be used."""


class OutOfFold(Model):
    """A model that predicts out of fold for its training data, and as usual for everything else.

    Without `carried`, predictions that its base made do not count: it was not judged by these vectors itself.
    """

    def __init__(self, model: Model, carried: bool = True) -> None:
        super().__init__(model.path, model.manifest, model.family, model.learner)
        self._groups = model.seen
        types = schema.schema_of(model.family)
        columns = {name: types[name] for name in schema.parameter_columns(model.family)}
        own = model.out_of_fold
        if own is None:
            own = pl.DataFrame(schema={**columns, "time_ns": pl.Float64, "score": pl.Float64, "fold": pl.Int64})
        # A model that was trained without folds has no out-of-fold predictions.
        own = own.filter(pl.col("score").is_not_null() & (carried | (pl.col("fold") != CARRIED)))
        self._known = own.select(*columns, pl.col("time_ns").alias("__time_ns"), pl.col("score").alias("__score"))

    @property
    def seen(self) -> pl.DataFrame:
        """Nothing: out-of-fold predictions count as unseen."""
        return self._groups.clear()

    def fair(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of problems that it was not trained on, and those that it can answer out of fold."""
        columns = list(schema.parameter_columns(self.family))
        new = rows.join(self._groups, on=self._groups.columns, how="anti", nulls_equal=True, maintain_order="left")
        known = rows.join(self._known, on=columns, how="semi", nulls_equal=True, maintain_order="left")
        return pl.concat([new, known]).unique(maintain_order=True)

    def predict_rows(self, rows: Rows) -> Predicted:
        """Time and score of described vectors."""
        columns = list(schema.parameter_columns(self.family))
        found = rows.frame.select(columns).join(self._known, on=columns, how="left", nulls_equal=True, maintain_order="left")
        time_ns, score = (found[name].cast(pl.Float64).to_numpy().copy() for name in ("__time_ns", "__score"))
        missing = found["__score"].is_null().to_numpy()
        if missing.any():
            own = super().predict_rows(rows.take(missing))
            assert own.time_ns is not None
            time_ns[missing], score[missing] = own.time_ns, own.score
        return Predicted(score, time_ns)


def compare_fairly(
    old: Model, new: Model, dataset: Path, judged: Path, limits: Limits, where: Sequence[str] = (), carried: bool = True
) -> Verdict | None:
    """Compare two models; None if no row can score both. The rows that are used are written to `judged`."""
    views = [OutOfFold(old), OutOfFold(new, carried)]
    opened = Dataset.open(dataset)
    rows = opened.read(new.family, where).filter(~pl.col("status").is_in(NOT_TRIED))
    for view in views:
        rows = view.fair(rows)
    if old.manifest.dtypes:
        rows = rows.filter(pl.col("problem.dtype").is_in(old.manifest.dtypes))
    problem = [name for name in rows.columns if name.startswith("problem.")]
    if new.family.config.parameters:
        rows = rows.filter(pl.col("key").n_unique().over(problem) > 1)
    if not (rows["status"] == "ok").any():
        return None

    def fill(draft: Dataset) -> None:
        draft.append(new.family, rows, opened.contents.sources, opened.contents.devices)

    Dataset.build(judged, fill)
    return compare(views[0], views[1], [judged], limits=limits)


# The backend of rows that torch.compile timed.
LISTENED = "torch.compile"
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


def fresh_rows(model: Model, datasets: Sequence[Dataset], pool: bool = False) -> Fresh:
    """The rows of the model's family, device, dtypes and conditions that it has not learned from yet."""
    family, manifest = model.family, model.manifest
    rows = pl.concat([item.read(family) for item in holders_of(model, datasets)], how="diagonal_relaxed")
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
    return alike["software"] & pl.col("backend").eq_missing(LISTENED) if listened else pl.all_horizontal(alike.values())


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


NOTHING_NEW, TOO_FEW, PLANNED = "NOTHING NEW", "TOO FEW", "PLANNED"
# Verdicts with which the new model takes the place of the old one.
REPLACES = (BETTER, SAME)
# From worst to best: the verdict on two sets of data is the worse one.
ORDER = (WORSE, NOT_COMPARABLE, AMBIGUOUS, SAME, BETTER)
# Fewer groups of problems than this leave none to judge by.
FEWEST_GROUPS = 2


@dataclass(frozen=True)
class ModelPlace:
    """Where a model is, and where the one that replaces it goes: a new directory, the store, or its own directory."""

    model: Model
    store: Store
    entry: Entry | None = None
    out: Path | None = None
    mark: str | None = None
    """That of the entry, from before the work."""

    @classmethod
    def of(cls, model: Model | str | Path, store: Store, out: Path | None) -> ModelPlace:
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

    def put(self, new: Model, verdict: str) -> tuple[str, str]:
        """Put the new model there; returns where it is and where the old one is kept.

        Raises `Changed` if another process has replaced the old one meanwhile.
        """
        if self.out is not None:
            return str(new.save(self.out).path), str(self.model.path)
        if (entry := self.entry) is not None:
            name, record = entry.record.name, entry.record
            stated = softwares.parts(record.software[0]) if self.mark is None and record.software else None
            if self.store.get(entry.id).record.checksum != record.checksum:
                raise Changed(f"{entry.id} was replaced while it was being updated: run the same command again")
            kept = self.store.add(self.model, name=f"{name}{PREVIOUS}", replace=True, software=stated)
            origin = {**record.origin, "updated": verdict}
            added = self.store.add(new, name=name, replace=True, software=stated, origin=origin, over=self.mark)
            return added.id, kept.id
        if manifest_alone(self.model.path).checksum != self.model.manifest.checksum:
            raise Changed(f"{self.model.path} was replaced while it was being updated: run the same command again")
        replace_directory(new.path, self.directory, self.aside)
        return str(self.model.path), str(self.aside)


@dataclass(frozen=True, repr=False)
class Updated:
    """What became of a model and new data. `bool(updated)` is False if there were new rows and the old model stays."""

    model: str
    """The model to use now: a directory, or an id in the store."""
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    replaced: bool = False
    previous: str = ""
    """Where the old model is kept; empty if it was not replaced."""
    rows: int = 0
    problems: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
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


@dataclass
class Update:
    """The steps of an update. A step that ends it says why in `updated`, and returns None."""

    place: ModelPlace
    datasets: Sequence[Dataset]
    folder: Path
    recipe: Recipe
    limits: Limits
    pool: bool
    progress: Progress
    updated: Updated
    # What a step leaves for those after it.
    fresh: Fresh = field(init=False)
    old: pl.DataFrame | None = field(init=False)
    new: Model = field(init=False)

    @property
    def base(self) -> Model:
        """The model that is continued."""
        return self.place.model

    def collect(self) -> Facts | None:
        """Look for rows that the model has not learned from."""
        self.fresh = fresh = fresh_rows(self.base, self.datasets, self.pool)
        facts: Facts = {"rows": fresh.rows.height, "problems": fresh.problems}
        self.updated = replace(self.updated, **facts, left_out=fresh.left_out, factors=fresh.factors)
        return facts if fresh.rows.height else self._ended(NOTHING_NEW, "there is no row to learn from")

    def train(self) -> Facts | None:
        """Continue the model with the new rows and those that it keeps."""
        groups = self.fresh.groups(self.base)
        if groups < FEWEST_GROUPS:
            few = f"{groups} new problems have rows that worked, and at least {FEWEST_GROUPS} are needed to hold one out"
            return self._ended(TOO_FEW, few)
        self.old = kept_rows(self.base)
        # The conditions were dealt with: what the model's times mean stays what it was.
        plain = self.fresh.rows.with_columns(pl.lit(None, pl.String).alias(name) for name in HOW)

        def fill(draft: Dataset) -> None:
            for rows in (plain, self.old):
                if rows is not None:
                    draft.append(self.base.family, rows, machines=self.base.manifest.devices)

        Dataset.build(self.folder / "new", fill)
        self.new = train(
            self.folder / "new", self.folder / "model", self.recipe,
            family=self.base.family.id, pool=True, warm_start=self.base, progress=self.progress,
        )  # fmt: skip
        return {"checksum": self.new.manifest.checksum}

    def compare(self) -> Facts | None:
        """Compare the new model with the old one, on new problems that neither has seen and on the old data."""
        data, judged = self.folder / "new", self.folder / "judged"
        on_new = compare_fairly(self.base, self.new, data, judged, self.limits, carried=False)
        if on_new is None:
            why = "no held-out problem of the new data has several configs and is unseen by both models"
            return self._ended(NOT_COMPARABLE, why)
        on_old = None
        if self.old is not None:  # both have seen it
            rows, out = self.old, self.folder / "old"
            Dataset.build(out, lambda draft: draft.append(self.base.family, rows, machines=self.base.manifest.devices))
            on_old = compare(self.base, self.new, [out], limits=self.limits, include_seen=True)
        self.updated = _decided(self.updated, on_new, on_old, self.limits)
        return {"verdict": self.updated.verdict} if self.updated.verdict in REPLACES else None

    def replace(self) -> Facts | None:
        """Put the new model where it goes."""
        model, previous = self.place.put(self.new, self.updated.verdict)
        self.updated = replace(self.updated, replaced=True, model=model, previous=previous)
        return {"model": model}

    def _ended(self, verdict: str, reason: str) -> Facts | None:
        self.updated = replace(self.updated, verdict=verdict, reasons=(reason,))
        return None


def _decided(updated: Updated, on_new: Verdict, on_old: Verdict | None, limits: Limits) -> Updated:
    """The worse of both verdicts; a loss on old data that is within the limits does not count."""
    reasons = [f"on {on_new.n:,} held-out problems of the new data {on_new.verdict}: {'; '.join(on_new.reasons)}"]
    verdict = on_new.verdict
    if on_old is not None:
        reasons.append(f"on {on_old.n:,} problems of the old data {on_old.verdict}: {'; '.join(on_old.reasons)}")
        before, after = on_old.old, on_old.new
        lost = any(getattr(before, name) - getattr(after, name) > limits.shares[name] for name in ("mean", "median", "p10"))
        if on_old.verdict == WORSE or (on_old.verdict == AMBIGUOUS and lost):
            verdict = min(verdict, on_old.verdict, key=ORDER.index)
    else:
        reasons.append("the model keeps no rows of its training, so what it may have forgotten is not known")
    return replace(updated, verdict=verdict, reasons=tuple(reasons), new_data=on_new, old_data=on_old)


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
    place = ModelPlace.of(model, store, out)
    kind, family = place.model.manifest.kind, place.model.family.id
    if not type(place.model.learner).continues:
        raise InvalidValue(f"a {kind} model cannot be continued: train a new one with `kerncast train`")
    recipe, limits = Recipe(kind, seed=seed, threads=threads), limits or Limits()
    # The work is on the disk of what is replaced; a model of the store is called by its id.
    beside = None if dry_run or place.entry is not None or out is not None else place.directory.parent
    name = place.entry.id if place.entry is not None else str(place.model.path)
    with scratch_folder(beside) as folder:
        run = Update(place, datasets, folder, recipe, limits, pool, progress, Updated(name))
        steps = {name: getattr(run, name) for name in ("collect", "train", "compare", "replace")[: 1 if dry_run else None]}
        ended = walk(steps, family, progress)
        if dry_run and ended is None:
            return replace(run.updated, verdict=PLANNED, reasons=("nothing was trained or written",))
        return run.updated
