"""Which model answers, and how: in Python or compiled, from JSON or by name; `Model.predict` of many problems is compiled."""

from __future__ import annotations

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats, Ints
from kerncast.models.answer import Answered, Tier
from kerncast.models.model import Bests, Model


def compiled_bests(model: Model) -> Bests | None:
    """What finds the best candidates of a model; None if it cannot be compiled here, or is not trusted."""
    from kerncast.answering.selector import Selector
    from kerncast.answering.tiered import NativeAnswerer
    from kerncast.native.tiers.build import plain_tiers

    if model.given is not None or len(model.manifest.devices) > 1:
        return None
    answerer = Selector(model, tiers=plain_tiers(model), tier="full").answerer
    if not isinstance(answerer, NativeAnswerer):
        return None

    def bests(problems: pl.DataFrame) -> tuple[Ints, Floats]:
        found = answerer.replies(problems, Tier.FULL)
        chosen = found["candidate"].astype(np.int64)
        return chosen, np.where(found["status"] == Answered.NO_VALID_CONFIG.number, np.nan, found["time_ns"])

    return bests


Model.compiled = staticmethod(compiled_bests)
