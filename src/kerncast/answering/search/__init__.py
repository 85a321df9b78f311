"""Searching the declared space of configs with a model, including configs that were never measured.

A selector chooses among the configs that worked in training. A search covers every config that the family declares and
that the problem and the device allow. Constraints are checked first, so every result can be built.
"""

from __future__ import annotations

from kerncast.answering.search.measure import Measured, measure
from kerncast.answering.search.run import BUDGET, Finalist, Search, search
from kerncast.answering.search.strategies import STRATEGIES

__all__ = ["BUDGET", "STRATEGIES", "Finalist", "Measured", "Search", "measure", "search"]
