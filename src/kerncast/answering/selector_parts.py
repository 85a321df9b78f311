"""What a selector is made of: the model with the configs to choose from, its tiers, the artefact, and its compiled form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kerncast.core.op import Problem
from kerncast.core.progress import Progress
from kerncast.errors import CannotWrite, InvalidValue
from kerncast.measuring.backends.contract import CannotCompile
from kerncast.models.answer import ALONE, CHOOSING, Tier
from kerncast.models.candidates import refuse_no_candidates
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

if TYPE_CHECKING:
    from kerncast.answering.inputs import Configs


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
            from kerncast.answering.inputs import offering

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
