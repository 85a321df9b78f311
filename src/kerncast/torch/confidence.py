"""Whether a model's preference between the library's kernel and a generated one can be relied on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from kerncast.data import schema
from kerncast.models.model import Model

# How often the ratio of two predicted times was within the error, out of fold.
LEVEL = 0.9
# A wrong choice that costs no more than this does not matter.
HARMLESS = 1.05
# Too few problems tell nothing about the error.
FEWEST_PROBLEMS = 20


@dataclass(frozen=True)
class Confidence:
    """The error of log(time of the library / time of the best generated kernel), from predictions out of fold."""

    error: float
    """Nine of ten predictions were at most this far off; infinite where that is not known."""
    problems: int

    @classmethod
    def of(cls, model: Model) -> Confidence:
        """Measured on the model's own training problems, each predicted by a model that had not seen it."""
        rows = model.out_of_fold
        if rows is None or not model.family.library or "time_ns" not in rows.columns:
            return cls(math.inf, 0)
        usable = rows.filter(pl.col("measured_ns").is_not_null() & pl.col("time_ns").is_not_null())
        is_library = schema.is_library(model.family).fill_null(False)
        problem = [name for name in rows.columns if name.startswith("problem.") or name == "device"]

        def ratio(column: str) -> pl.Expr:
            ours = pl.col(column).filter(~is_library).sort_by(pl.col("score").filter(~is_library)).first()
            return (pl.col(column).filter(is_library).first() / ours).log()

        pairs = usable.group_by(problem).agg(error=(ratio("measured_ns") - ratio("time_ns")).abs()).drop_nulls("error")
        if pairs.height < FEWEST_PROBLEMS:
            return cls(math.inf, pairs.height)
        found = pairs["error"].quantile(LEVEL, "higher")
        return cls(math.inf if found is None else float(found), pairs.height)

    def sure(self, library_ns: float, generated_ns: float) -> bool:
        """Whether preferring the faster of the two by these predictions loses no more than is harmless, nine times in ten."""
        return self.error - abs(math.log(library_ns / generated_ns)) <= math.log(HARMLESS)

    def doubt(self, one: str, other: str) -> str:
        """Why both are kept."""
        if self.problems < FEWEST_PROBLEMS:
            measured = f"{one} and {other} were both measured on {self.problems} problems"
            return f"{measured}, and it takes {FEWEST_PROBLEMS} to know how far predictions are off"
        return f"the model cannot tell {one} from {other}"


NONE_MEASURED = Confidence(math.inf, 0)
