"""`kerncast.Selector`: the selector, which shows how far it is with the tiers that it builds and the C that it compiles."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from kerncast.answering.selector import Selector as Base
from kerncast.app.api.results import model_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.models.model import Model


class Selector(Base):  # noqa: D101 as its base, which has the options
    __doc__ = Base.__doc__
    __signature__ = inspect.signature(Base)

    def __init__(self, model: Model | str | Path, *, progress: Wanted = "auto", **options: Any) -> None:
        with shown(progress) as show:
            super().__init__(model_of(model), progress=show, **options)
        if self._several:  # each device has a display of its own, when it is prepared
            self._options["progress"] = progress
