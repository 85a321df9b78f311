"""`Model.predict` of many problems, compiled: the full tier of a selector finds the best configs."""

from __future__ import annotations

import numpy as np
import polars as pl

from kerncast.arrays import Floats, Ints
from kerncast.models.model import Bests, Model
from kerncast.models.statuses import Answered


def compiled_bests(model: Model) -> Bests | None:
    """What finds the best candidates of a model; None if it cannot be compiled here, or is not trusted."""
    from kerncast.models.offered import OfferedModel
    from kerncast.selecting.selector import Selector
    from kerncast.selecting.tiers.build import plain_tiers

    if isinstance(model, OfferedModel) or len(model.manifest.devices) > 1:
        return None
    selector = Selector(model, tiers=plain_tiers(model), tier="full")

    def bests(problems: pl.DataFrame) -> tuple[Ints, Floats]:
        found = selector.replies(problems)
        chosen = found["candidate"].astype(np.int64)
        return chosen, np.where(found["status"] == Answered.NO_VALID_CONFIG.number, np.nan, found["time_ns"])

    return bests if selector.is_compiled else None


Model.compiled = staticmethod(compiled_bests)
