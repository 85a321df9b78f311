"""Compare the old and the new model on the new measurements. No model is scored on data it was trained on.

A routine measures the same problems every time, so no problem is unseen by both models. But each model keeps an
out-of-fold prediction for every training vector, made without that vector's fold. So the new model is scored by its
out-of-fold predictions. The old model is scored by its out-of-fold predictions for problems it was trained on, and
by ordinary predictions for the others. Both are compared with the new times. A vector is left out for both if the old
model was trained on its problem but has no out-of-fold prediction for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from kerncast.data import Dataset, schema
from kerncast.evaluating import Limits, Verdict, compare
from kerncast.learning.scoring.metrics import Predicted
from kerncast.learning.tables.feature_rows import Rows
from kerncast.learning.tables.table import NOT_TRIED
from kerncast.models.limits.record import CARRIED
from kerncast.models.model import Model

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
